// The short convolution, forward and backward, in blocks of tokens and strips of channels.
//
//     z_t = b + sum_j w_j e_{t+j},  y = act(z)
//     dz = act'(z) dy,  de_i = sum_j w_j dz_{i-j} + dtail_{i-T},  dw_j = sum_t dz_t e_{t+j},  db = sum_t dz_t
//
// Every number is computed in the same order wherever its block begins. A block also computes the width - 1 rows of dz behind
// it, which its own inputs reach, so blocks share nothing; each block has its own sums over tokens, added in order at the end.
#include "check.h"
#include "head_slice.h"

// One call, described by pointers and strides.
struct ConvolutionCall {
    int64_t T, D, N, width;
    int64_t block, blocks;  // tokens of a block, at which sums are made; blocks of all sequences, each of which has one at least
    int32_t silu;
    int32_t dtype;  // Dtype of x, y, the tails and their gradients
    int32_t weight_dtype, bias_dtype;
    const void* x;  // [N,T,D], or packed [1,T,D]; strides in elements, channels contiguous; all else is contiguous
    int64_t x_row, x_token;
    void* y;
    const void* tail;  // [N,width-1,D] or null for zeros
    void* tail_out;
    const void *weight, *bias;    // [D,width]; [D] or null
    const int64_t* offsets;       // [N+1], tokens of packed sequences, or null
    const int64_t* first_block;   // [N+1], of packed sequences
    const void* grad_y;           // or null for zeros, as is grad_tail_out
    int64_t grad_y_row, grad_y_token;
    const void* grad_tail_out;
    void *grad_x, *grad_tail;     // grad_tail may be null
    float* sums;                  // [blocks,width+1,D], of each block: gradients of the weight, then of the bias
    float *grad_weight, *grad_bias;
};

namespace {

const char* check_convolution(const ConvolutionCall& a) {
    auto known = [](int32_t dtype) { return dtype >= FLOAT32 && dtype <= FLOAT16; };
    REQUIRE(a.T >= 0 && a.N >= 0 && a.blocks >= 0, "T, N and blocks must be >= 0, got %lld, %lld and %lld", a.T, a.N, a.blocks);
    REQUIRE(a.D >= 1 && a.width >= 1 && a.block >= 1, "D, width and block must be >= 1, got %lld, %lld and %lld", a.D, a.width,
            a.block);
    REQUIRE(a.T <= INT64_MAX - a.block && a.width <= LARGEST, "T = %lld, block = %lld or width = %lld is too large", a.T, a.block,
            a.width);
    REQUIRE(countable({a.offsets ? 1 : a.N, a.T, a.D}) && countable({a.N, a.width, a.D}) && countable({a.blocks, a.width + 1, a.D}),
            "N = %lld, T = %lld, D = %lld, width = %lld and blocks = %lld are too many numbers to count", a.N, a.T, a.D, a.width,
            a.blocks);
    REQUIRE(known(a.dtype) && known(a.weight_dtype) && known(a.bias_dtype), "x, weight or bias has an unknown dtype: %lld, %lld, %lld",
            int64_t(a.dtype), int64_t(a.weight_dtype), int64_t(a.bias_dtype));
    if (a.offsets) {
        CHECK(check_offsets(a.offsets, a.N, a.T));
        CHECK(check_parts("first_block", a.first_block, a.offsets, a.N, a.T, 1, a.block, 1));
    }
    REQUIRE(a.offsets || !a.first_block, "first_block is for packed sequences");
    int64_t each = a.T / a.block + (a.T % a.block > 0), needed = a.offsets ? a.first_block[a.N] : a.N * (each ? each : 1);
    REQUIRE(a.blocks == needed, "blocks must be %lld for these sequences, got %lld", needed, a.blocks);
    return nullptr;
}

// A tensor [N,T,D] of the convolution, or [1,T,D] where sequences are packed, by its strides.
const char* check_sequence(const char* name, const ConvolutionCall& a, const void* data, int64_t row, int64_t token) {
    Rows all{const_cast<void*>(data), row, token, 0, 1, a.dtype, a.offsets ? 1 : a.N, a.T, a.D};
    return check_rows(name, all, Use::READ, all.B, all.T, 1, all.D);
}

const char* check_convolution_forward(const ConvolutionCall& a) {
    CHECK(check_convolution(a));
    CHECK(check_sequence("x", a, a.x, a.x_row, a.x_token));
    REQUIRE(a.y || a.N == 0 || a.T == 0, "y is missing");
    REQUIRE(a.tail_out || a.N == 0 || a.width == 1, "tail_out is missing");
    REQUIRE(a.weight, "weight is missing");
    return nullptr;
}

const char* check_convolution_backward(const ConvolutionCall& a) {
    CHECK(check_convolution(a));
    CHECK(check_sequence("x", a, a.x, a.x_row, a.x_token));
    if (a.grad_y) CHECK(check_sequence("the gradient of y", a, a.grad_y, a.grad_y_row, a.grad_y_token));
    REQUIRE(a.grad_x || a.N == 0 || a.T == 0, "the gradient of x is missing");
    REQUIRE(a.sums || a.blocks == 0, "sums is missing");
    REQUIRE(a.weight && a.grad_weight && a.grad_bias, "weight or the gradient of weight or bias is missing");
    return nullptr;
}

constexpr int ROWS = 8;            // tokens at a time
constexpr int64_t STRIP = 1024;   // channels of a strip, which is what a thread works on
constexpr int64_t COLUMNS = 64;   // channels of which a thread adds up the sums of all blocks

struct Sigmoid {
    vec it, rest;  // sigmoid(z) and 1 - sigmoid(z), neither by a difference
};

INLINE Sigmoid sigmoid(vec z) {
    ivec negative = z < vec{};
    vec e = exp_negative(negative ? z : -z), large = 1.0f / (1.0f + e), small = e * large;
    return {negative ? small : large, negative ? large : small};
}

// The last step for z: y, or dz from dy.
struct Plain {
    INLINE static vec of(vec z, const float*) { return z; }
};
struct Silu {
    INLINE static vec of(vec z, const float*) { return z * sigmoid(z).it; }
};
struct SiluSlope {
    INLINE static vec of(vec z, const float* dy) {
        Sigmoid s = sigmoid(z);
        return load(dy) * (s.it * (1.0f + z * s.rest));
    }
};

// The sequence that a block belongs to.
int64_t sequence(const ConvolutionCall& a, int64_t block) {
    if (!a.first_block) return block / (a.blocks / a.N);
    int64_t low = 0, high = a.N;  // first_block[low] <= block < first_block[high]
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        (a.first_block[middle] <= block ? low : high) = middle;
    }
    return low;
}

// One block of tokens of a sequence and one strip of channels; tokens are counted from the sequence's first.
struct Strip {
    const ConvolutionCall& call;
    int64_t block, n, length, first, begin, end, before, from, channels, pitch;
    float *taps, *bias, *inputs;  // [width,pitch], [pitch], [before + ROWS,pitch] of which the last rows are the current tokens'
    Stream x, tail;

    Strip(const ConvolutionCall& a, int64_t index);
    // A tensor as its rows of this sequence and strip.
    Stream rows(const void* data, int64_t row, int64_t token) const {
        Rows all{const_cast<void*>(data), row, token, 0, 1, call.dtype};
        Stream mine(all, call.offsets ? 0 : n, 0, 1, from, channels);
        if (data) mine.base += first * mine.step;
        return mine;
    }
    Stream tail_rows(const void* data) const {
        return Stream({const_cast<void*>(data), before * call.D, call.D, 0, 1, call.dtype}, n, 0, 1, from, channels);
    }
    void read_filter();
    void read(float* to, int64_t token) const;
    float* window() const { return arena.take((before + ROWS) * pitch); }
};

// Floats from row to row: a cache line more than the channels, for rows a page apart would share one set of the cache.
int64_t row_pitch(int64_t channels) { return padded(channels) + 16; }

int64_t strips(const ConvolutionCall& a) { return (a.D + STRIP - 1) / STRIP; }

// Floats that one strip takes from the arena.
int64_t scratch(const ConvolutionCall& a) {
    int64_t pitch = row_pitch(a.D < STRIP ? a.D : STRIP);
    return pitch * (2 * a.width + 1 + 2 * (a.width - 1 + ROWS) + (a.width + 1) + ROWS + 1);
}

Strip::Strip(const ConvolutionCall& a, int64_t index) : call(a), block(index / strips(a)), n(sequence(a, block)) {
    first = a.offsets ? a.offsets[n] : 0;
    length = a.offsets ? a.offsets[n + 1] - first : a.T;
    int64_t earlier = a.first_block ? a.first_block[n] : n * (a.blocks / a.N);
    begin = (block - earlier) * a.block;
    end = length - begin < a.block ? length : begin + a.block;
    before = a.width - 1;
    from = index % strips(a) * STRIP;
    channels = a.D - from < STRIP ? a.D - from : STRIP;
    pitch = row_pitch(channels);
    taps = arena.take(a.width * pitch), bias = arena.take(pitch);
    x = rows(a.x, a.x_row, a.x_token), tail = tail_rows(a.tail);
    read_filter();
    inputs = window();
    for (int64_t r = 0; r < before; ++r) read(inputs + r * pitch, begin - before + r);
}

INLINE void transpose_taps(float* to, const float* from, int64_t width, int64_t pitch) {
    for (int64_t c = 0; c < pitch; ++c)
        for (int64_t j = 0; j < width; ++j) to[j * pitch + c] = from[c * width + j];
}

// In memory the taps of a channel are side by side; here the channels of a tap are.
void Strip::read_filter() {
    int64_t width = call.width;
    float* raw = arena.take(width * pitch);
    Rows all{const_cast<void*>(call.weight), 0, 0, 0, 1, call.weight_dtype};
    read_row(raw, Stream(all, 0, 0, 1, from * width, channels * width), 0, width * pitch);
    if (width == 4)
        transpose_taps(taps, raw, 4, pitch);  // in vectors, which matters to a step
    else
        transpose_taps(taps, raw, width, pitch);
    Rows shift{const_cast<void*>(call.bias), 0, 0, 0, 1, call.bias_dtype};
    if (call.bias)
        read_row(bias, Stream(shift, 0, 0, 1, from, channels), 0, pitch);
    else
        fill(bias, pitch, 0);
}

// The input of a token, of the tail where it is negative; zeros beyond either end.
void Strip::read(float* to, int64_t token) const {
    if (token >= 0 && token < length)
        read_row(to, x, token, pitch);
    else if (token < 0 && tail.base)
        read_row(to, tail, before + token, pitch);
    else
        fill(to, pitch, 0);
}

// The rows that the next tokens will read and write, prefetched while the current ones are computed: they are too far apart for
// the processor to predict.
struct NextRows {
    const Stream *reads[2], *write;
    int64_t token, rows;

    INLINE void prefetch(int64_t c) const {
        for (const Stream* x : reads)
            if (x && x->base)
                for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(x->at(token + r) + c * bytes(*x));
        for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(write->at(token + r) + c * bytes(*write), 1);
    }
    static int64_t bytes(const Stream& x) { return x.dtype == FLOAT32 ? 4 : 2; }
};

// to[r] = then(start + sum_j taps[j] rows[r + j]) for R rows; taps are `step` apart.
template <int R, class Then>
INLINE void convolve(const Strip& s, const float* rows, const float* taps, int64_t step, const float* start, float* to,
                     const NextRows& next = {}) {
    int64_t pitch = s.pitch, width = s.call.width;
    for (int64_t c = 0; c < pitch; c += W) {
        next.prefetch(c);
        vec z[R];
        for (int r = 0; r < R; ++r) z[r] = start ? load(start + c) : vec{};
        for (int64_t j = 0; j < width; ++j) {
            vec w = load(taps + j * step + c);
            for (int r = 0; r < R; ++r) z[r] += w * load(rows + (r + j) * pitch + c);
        }
        for (int r = 0; r < R; ++r) store(to + r * pitch + c, Then::of(z[r], to + r * pitch + c));
    }
}

// The last rows of a window become its first.
INLINE void shift(const Strip& s, float* window, int64_t rows) {
    for (int64_t r = 0; r < s.before; ++r) copy(window + r * s.pitch, window + (r + rows) * s.pitch, s.pitch);
}

template <int R>
INLINE void forward_rows(Strip& s, const Stream& y, float* out, int64_t t) {
    for (int r = 0; r < R; ++r) s.read(s.inputs + (s.before + r) * s.pitch, t + r);
    int64_t left = s.end - t - R;
    NextRows next{{&s.x, nullptr}, &y, t + R, left < R ? left : R};
    if (s.call.silu)
        convolve<R, Silu>(s, s.inputs, s.taps, s.pitch, s.bias, out, next);
    else
        convolve<R, Plain>(s, s.inputs, s.taps, s.pitch, s.bias, out, next);
    write_rows(y, t, R, out, s.pitch);
    shift(s, s.inputs, R);
}

void write_tail(const Strip& s) {
    Stream to = s.tail_rows(s.call.tail_out);
    for (int64_t r = 0; r < s.before; ++r) {
        int64_t token = s.length - s.before + r;
        if (token < 0 && !s.tail.base)
            std::memset(to.at(r), 0, to.bytes());
        else
            std::memcpy(to.at(r), token < 0 ? s.tail.at(s.before + token) : s.x.at(token), to.bytes());
    }
}

bool forward(const ConvolutionCall& a, int64_t index) {
    if (!arena.reserve(scratch(a))) return false;
    Strip s(a, index);
    Stream y = s.rows(a.y, a.T * a.D, a.D);
    float* out = arena.take(ROWS * s.pitch);
    int64_t t = s.begin;
    for (; t + ROWS <= s.end; t += ROWS) forward_rows<ROWS>(s, y, out, t);
    for (; t < s.end; ++t) forward_rows<1>(s, y, out, t);
    if (s.end == s.length) write_tail(s);
    return true;
}

// A strip in the backward pass: the rows of dz, the sums over its tokens, and the gradients' rows.
struct StripGradients {
    Strip s;
    float *dz, *sums, *out, *extra;  // [before + ROWS,pitch], [width + 1,pitch], [ROWS,pitch], [pitch]
    Stream dy, dx, dtail, dtail_out;

    StripGradients(const ConvolutionCall& a, int64_t index) : s(a, index) {
        dz = s.window(), sums = arena.take((a.width + 1) * s.pitch);
        out = arena.take(ROWS * s.pitch), extra = arena.take(s.pitch);
        fill(dz, s.before * s.pitch, 0), fill(sums, (a.width + 1) * s.pitch, 0);
        dy = s.rows(a.grad_y, a.grad_y_row, a.grad_y_token), dx = s.rows(a.grad_x, a.T * a.D, a.D);
        dtail = s.tail_rows(a.grad_tail), dtail_out = s.tail_rows(a.grad_tail_out);
    }
    float* current() const { return dz + s.before * s.pitch; }
    void write(int64_t token, float* de);
};

// The gradient of an input, if it is of this block, and what the gradient of the next tail adds to it.
void StripGradients::write(int64_t token, float* de) {
    if (token < s.begin && s.begin > 0) return;
    int64_t last = token - (s.length - s.before);
    if (last >= 0 && dtail_out.base) {
        read_row(extra, dtail_out, last, s.pitch);
        for (int64_t c = 0; c < s.pitch; c += W) store(de + c, load(de + c) + load(extra + c));
    }
    if (token >= 0)
        write_rows(dx, token, 1, de, 0);
    else if (dtail.base)
        write_rows(dtail, s.before + token, 1, de, 0);
}

template <int R>
INLINE void add_sums(StripGradients& g) {
    int64_t pitch = g.s.pitch, width = g.s.call.width;
    for (int64_t c = 0; c < pitch; c += W) {
        vec d[R], total = load(g.sums + width * pitch + c);
        for (int r = 0; r < R; ++r) d[r] = load(g.current() + r * pitch + c), total += d[r];
        store(g.sums + width * pitch + c, total);
        for (int64_t j = 0; j < width; ++j) {
            total = load(g.sums + j * pitch + c);
            for (int r = 0; r < R; ++r) total += d[r] * load(g.s.inputs + (r + j) * pitch + c);
            store(g.sums + j * pitch + c, total);
        }
    }
}

template <int R>
INLINE void backward_rows(StripGradients& g, int64_t t) {
    Strip& s = g.s;
    bool past = t >= s.length;  // then R is 1
    for (int r = 0; r < R; ++r) {
        s.read(s.inputs + (s.before + r) * s.pitch, t + r);
        if (g.dy.base && !past)
            read_row(g.current() + r * s.pitch, g.dy, t + r, s.pitch);
        else
            fill(g.current() + r * s.pitch, s.pitch, 0);
    }
    if (s.call.silu && !past) convolve<R, SiluSlope>(s, s.inputs, s.taps, s.pitch, s.bias, g.current());
    if (t < s.end) add_sums<R>(g);
    int64_t left = s.end - t - R;
    NextRows next{{&s.x, &g.dy}, &g.dx, t + R, left < R ? left : R};
    convolve<R, Plain>(s, g.dz, s.taps + s.before * s.pitch, -s.pitch, nullptr, g.out, next);
    for (int r = 0; r < R; ++r) g.write(t - s.before + r, g.out + r * s.pitch);
    shift(s, s.inputs, R), shift(s, g.dz, R);
}

bool backward(const ConvolutionCall& a, int64_t index) {
    if (!arena.reserve(scratch(a))) return false;
    StripGradients g(a, index);
    int64_t t = g.s.begin, past = g.s.end + g.s.before;
    for (; t + ROWS <= g.s.end; t += ROWS) backward_rows<ROWS>(g, t);
    for (; t < past; ++t) backward_rows<1>(g, t);
    float* to = a.sums + g.s.block * (a.width + 1) * a.D + g.s.from;
    for (int64_t j = 0; j <= a.width; ++j) copy(to + j * a.D, g.sums + j * g.s.pitch, g.s.channels);
    return true;
}

// The gradients of weight and bias: the sums of all blocks, in the order of time.
void sum_blocks(const ConvolutionCall& a, int64_t index) {
    int64_t from = index * COLUMNS, channels = a.D - from < COLUMNS ? a.D - from : COLUMNS, place = a.D * (a.width + 1);
    for (int64_t j = 0; j <= a.width; ++j) {
        double total[COLUMNS] = {};
        for (int64_t n = 0; n < a.blocks; ++n)
            for (int64_t c = 0; c < channels; ++c) total[c] += a.sums[n * place + j * a.D + from + c];
        for (int64_t c = 0; c < channels; ++c)
            (j < a.width ? a.grad_weight[(from + c) * a.width + j] : a.grad_bias[from + c]) = float(total[c]);
    }
}

// Runs `strip` over all blocks and strips. One may be a single token: a thread takes at least as many as fill 64 KiB.
const char* over_strips(const ConvolutionCall& a, Loop loop, bool (*strip)(const ConvolutionCall&, int64_t)) {
    int64_t floats = (a.T < a.block ? a.T : a.block) * (a.D < STRIP ? a.D : STRIP);
    return parallel(a.blocks * strips(a), 1 + (1 << 14) / (1 + floats), loop, [&](int64_t begin, int64_t end) {
        bool done = true;
        for (int64_t i = begin; i < end && done; ++i) done = strip(a, i);
        return done;
    });
}

}  // namespace

LAYOUT(ConvolutionCall, AT(T), AT(D), AT(N), AT(width), AT(block), AT(blocks), AT(silu), AT(dtype), AT(weight_dtype), AT(bias_dtype), AT(x),
       AT(x_row), AT(x_token), AT(y), AT(tail), AT(tail_out), AT(weight), AT(bias), AT(offsets), AT(first_block), AT(grad_y),
       AT(grad_y_row), AT(grad_y_token), AT(grad_tail_out), AT(grad_x), AT(grad_tail), AT(sums), AT(grad_weight), AT(grad_bias))

KERNEL(convolution_forward, ConvolutionCall) {
    CHECK(check_convolution_forward(call));
    return over_strips(call, loop, forward);
}

KERNEL(convolution_backward, ConvolutionCall) {
    CHECK(check_convolution_backward(call));
    CHECK(over_strips(call, loop, backward));
    return parallel((call.D + COLUMNS - 1) / COLUMNS, 1, loop, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sum_blocks(call, i);
        return true;
    });
}
