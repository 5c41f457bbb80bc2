// One token of every sequence and head; the new state may be written over the old one.
//
//     S' = Diag(a) S + k u^T,  u = beta (v - (a * S)^T r),  o = scale ((a * S)^T q + (q . k) u)
//
// Both reads need only the old state, so it is read twice, the second time from cache, and written once.
#include "check.h"
#include "chunk.h"

namespace {

#if WIDTH == 16
constexpr int UNROLLED = 8;  // a whole row of 128 columns, so that the state streams in order
#else
constexpr int UNROLLED = 4;
#endif

// One sequence and head. The old state is read with q and r after these have taken the decay (q not, where a bonus comes
// in its place), so that the rows of the state need one factor a read.
struct Token {
    const Call& call;
    int64_t row, Kp, Vp;
    float *q, *k, *r, *a, *v, *read;
    float beta = 1, own;  // own: weight of the token's own write in its read

    Token(const Call& call, int64_t index) : call(call), row(index), Kp(padded(call.K)), Vp(padded(call.V)) {
        q = arena.take(Kp), k = arena.take(Kp), r = arena.take(Kp), a = arena.take(Kp);
        v = arena.take(Vp), read = arena.take(Vp);
        int64_t b = index / call.H, h = index % call.H;
        load_terms(b, h);
        own = own_weight(h);
        decay(b, h);
    }
    static bool reserve(const Call& call) { return arena.reserve(4 * padded(call.K) + 2 * padded(call.V)); }
    void load_terms(int64_t b, int64_t h);
    float own_weight(int64_t h) const;
    void decay(int64_t b, int64_t h);
    Stream row_of(const Rows& x, int64_t b, int64_t h, int64_t n) const { return Stream(x, b, h, call.H, 0, n); }
};

void Token::load_terms(int64_t b, int64_t h) {
    read_row(q, row_of(call.q, b, h, call.K), 0, Kp);
    read_row(k, row_of(call.k, b, h, call.K), 0, Kp);
    read_row(v, row_of(call.v, b, h, call.V), 0, Vp);
    if (call.r.data) read_row(r, row_of(call.r, b, h, call.K), 0, Kp);
    if (call.beta.data) read_row(&beta, row_of(call.beta, b, h, 1), 0, 1);
    if (!(beta >= 0 && beta <= 2)) *call.wrong = 1;
}

// q . k; with a bonus q . (bonus * k).
float Token::own_weight(int64_t h) const {
    const float* bonus = call.bonus ? call.bonus + h * call.K : nullptr;
    vec total = {};
    int64_t d = 0;
    for (; d + W <= call.K; d += W) total += load(q + d) * load(k + d) * (bonus ? load(bonus + d) : splat(1));
    float rest = 0;
    for (; d < call.K; ++d) rest += q[d] * k[d] * (bonus ? bonus[d] : 1);
    return sum(total) + rest;
}

// The decay of every channel, and its part in what q and r read.
void Token::decay(int64_t b, int64_t h) {
    const bool channels = call.decay == PER_CHANNEL;
    float one = 0;
    if (channels)
        read_row(a, row_of(call.log_decay, b, h, call.K), 0, Kp);
    else if (call.decay != NONE)
        read_row(&one, row_of(call.log_decay, b, h, 1), 0, 1);
    ivec wrong = {};
    vec factor = exp_negative(splat(one));
    for (int64_t d = 0; d < Kp; d += W) {
        vec log = channels ? load(a + d) : splat(one);
        wrong |= ~(log <= 0);
        if (channels) factor = exp_negative(log);
        store(a + d, factor);
        if (!call.bonus) store(q + d, factor * load(q + d));
        if (call.r.data) store(r + d, factor * load(r + d));
    }
    for (int i = 0; i < W; ++i)
        if (wrong[i]) *call.wrong = 1;
}

// Prefetches columns of a row of the next head into the second level, line by line; each way through a state takes one half of the
// next, since memory brings no more meanwhile.
template <int COLUMNS>
INLINE void prefetch(const float* from) {
    for (int n = 0; n < COLUMNS; n += 16) __builtin_prefetch(from + n, 0, 2);
}

// N vectors of value columns: what q and r see of the decayed state, what is written, the new state.
template <int N>
INLINE void step_columns(Token& t, const float* from, float* to, int64_t v) {
    const int64_t K = t.call.K, V = t.call.V;
    const bool erasing = t.call.r.data;
    vec read[N] = {}, recalled[N] = {}, u[N];
    for (int64_t d = 0; d < K; ++d) {
        prefetch<N * W / 2>(from + (K + d) * V + v);
        for (int n = 0; n < N; ++n) {
            vec s = load(from + d * V + v + n * W);
            read[n] += t.q[d] * s;
            if (erasing) recalled[n] += t.r[d] * s;
        }
    }
    for (int n = 0; n < N; ++n) {
        u[n] = t.beta * (load(t.v + v + n * W) - recalled[n]);
        store(t.read + v + n * W, read[n] + t.own * u[n]);
    }
    // From the last row to the first: the last ones are still in the first level of the cache.
    for (int64_t d = K - 1; d >= 0; --d) {
        prefetch<N * W / 2>(from + (K + d) * V + v + N * W / 2);
        for (int n = 0; n < N; ++n) store(to + d * V + v + n * W, t.a[d] * load(from + d * V + v + n * W) + t.k[d] * u[n]);
    }
}

// The value columns that do not fill a vector.
void step_column(Token& t, const float* from, float* to, int64_t v) {
    const int64_t K = t.call.K, V = t.call.V;
    float read = 0, recalled = 0;
    for (int64_t d = 0; d < K; ++d) {
        read += t.q[d] * from[d * V + v];
        if (t.call.r.data) recalled += t.r[d] * from[d * V + v];
    }
    float u = t.beta * (t.v[v] - recalled);
    t.read[v] = read + t.own * u;
    for (int64_t d = 0; d < K; ++d) to[d * V + v] = t.a[d] * from[d * V + v] + t.k[d] * u;
}

// The new sum of keys, and q . z.
float advance_key_sum(Token& t) {
    const float* from = t.call.key_sum_in + t.row * t.call.K;
    float* to = t.call.key_sum_out + t.row * t.call.K;
    float total = t.own;
    for (int64_t d = 0; d < t.call.K; ++d) {
        total += t.q[d] * from[d];
        to[d] = t.a[d] * from[d] + t.k[d];
    }
    return total;
}

bool step(const Call& call, int64_t index) {
    if (!Token::reserve(call)) return false;
    Token t(call, index);
    const float* from = call.memory_in + index * call.K * call.V;
    float* to = call.memory_out + index * call.K * call.V;
    int64_t v = 0;
    for (; v + UNROLLED * W <= call.V; v += UNROLLED * W) step_columns<UNROLLED>(t, from, to, v);
    for (; v + W <= call.V; v += W) step_columns<1>(t, from, to, v);
    for (; v < call.V; ++v) step_column(t, from, to, v);
    float scale = call.normalize ? reciprocal(advance_key_sum(t)) : call.scale;
    for (int64_t n = 0; n < t.Vp; n += W) store(t.read + n, scale * load(t.read + n));
    write_rows(Stream(call.out, index / call.H, index % call.H, call.H, 0, call.V), 0, 1, t.read, 0);
    return true;
}

}  // namespace

// A step is short: a thread takes at least as many heads as fill 64 KiB.
KERNEL(step, Call) {
    CHECK(check_step(call));
    const int64_t grain = 1 + (1 << 16) / (4 * call.K * call.V);
    return parallel(call.N * call.H, grain, loop, [&](int64_t begin, int64_t end) {
        bool done = true;
        for (int64_t i = begin; i < end && done; ++i) done = step(call, i);
        return done;
    });
}
