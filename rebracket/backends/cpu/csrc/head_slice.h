// One sequence, head and slice of value columns, which is what a thread works on: its rows, its state, its buffers.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <new>
#include "reduce.h"
#include "streams.h"

namespace {

constexpr int C = CHUNK_WRITES;
constexpr int BLOCK = 4;  // writes a block of a chunk, for per-channel decays
constexpr int SEGMENT_CHUNKS = SEGMENT_WRITES / CHUNK_WRITES;

constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Scratch of one thread: it grows, is reused, and is aligned to a cache line.
struct Arena {
    float* data = nullptr;
    int64_t size = 0, used = 0;
    // Room for n floats, of which none is taken yet; false if there is no memory for them.
    bool reserve(int64_t n) {
        used = 0;
        if (n <= size) return true;
        std::free(data);
        data = static_cast<float*>(std::aligned_alloc(64, n * sizeof(float)));
        size = data ? n : 0;
        return data;
    }
    float* take(int64_t n) {
        float* p = data + used;
        used += padded(n);
        return p;
    }
    ~Arena() { std::free(data); }
};
thread_local Arena arena;

// The tokens whose write number `write` is among writes [w, w + writes): the first of them is row `row` of the chunk,
// the others follow `per_token` rows apart. A token's decay comes before its first write, its read after its last.
struct Tokens {
    int64_t row, first, count;
};
INLINE Tokens tokens(int64_t w, int64_t writes, int64_t per_token, int64_t write) {
    if (per_token == 1) return {0, w, writes};
    int64_t row = (per_token + write - w % per_token) % per_token;
    return {row, (w + row) / per_token, row < writes ? (writes - row - 1) / per_token + 1 : 0};
}

// The buffers of one chunk.
struct ChunkBuffers {
    int64_t Kp, Vp;  // K and the value columns of a slice, padded to 16
    bool erasing;
    int stacked;                       // rows of `rows` and `scores`: 2 C when erasing, else C
    float *S = nullptr, *z = nullptr;  // state [Kp,Vp] and sum of keys [Kp] before the chunk; their memory is set by the caller
    float *given, *rows;               // [R; Q] as the caller gave them, and scaled by per-channel decays since the chunk began
    float *k, *keys, *keys_t, *v, *u, *read, *scores, *out;
    float *log, *beta, *since_start, *until_end, *chunk_decay, *total;
    float* weights;                    // D [C,C]
    float* unscaled = nullptr;         // u before its product with beta, kept where it has memory
    // Per-channel decays [C,Kp], as logs and then as factors, and their products over a block [C/BLOCK,Kp]; the rows of
    // `given` and `k` scaled by those within their block, up to its end for keys [C,Kp]; and of the first block's keys and the
    // last block's reads, by those within their half of the chunk [BLOCK,Kp].
    float *channel, *products, *within, *keys_within, *half, *keys_half;
    float *q_rows, *q_scores, *written;

    explicit ChunkBuffers(const Call& a);
};

int64_t slice_width(const Call& a) { return padded((a.V + a.slices - 1) / a.slices); }

// Floats that a state, its sum of keys, a HeadSlice and the buffers of a chunk take from the arena.
int64_t state_size(const Call& a) { return padded(a.K) * slice_width(a); }
int64_t sum_size(const Call& a) { return padded(a.K); }
int64_t slice_size(const Call& a) { return padded(a.K); }
int64_t chunk_size(const Call& a) {
    int64_t Kp = padded(a.K), Vp = slice_width(a);
    return Kp + C * Kp * (2 + 3 + 1 + (a.decay == PER_CHANNEL ? 7 : 0)) + C * Vp * 4 + 3 * C * C + 8 * C;
}

INLINE bool same(const Rows& x, const Rows& y) {
    return x.data == y.data && x.batch == y.batch && x.time == y.time && x.head == y.head && x.heads == y.heads;
}

ChunkBuffers::ChunkBuffers(const Call& a) : Kp(padded(a.K)), Vp(slice_width(a)), erasing(a.r.data), stacked(a.r.data ? 2 * C : C) {
    bool channels = a.decay == PER_CHANNEL;
    given = arena.take(2 * C * Kp), rows = channels ? arena.take(2 * C * Kp) : given;
    k = erasing && same(a.r, a.k) ? given : arena.take(C * Kp), keys = arena.take(C * Kp), keys_t = arena.take(C * Kp);
    v = arena.take(C * Vp), u = arena.take(C * Vp), read = arena.take(C * Vp), scores = arena.take(2 * C * C);
    log = arena.take(C), beta = arena.take(C), since_start = arena.take(C), until_end = arena.take(C), total = arena.take(C);
    chunk_decay = arena.take(Kp), channel = arena.take(C * Kp), weights = arena.take(C * C), out = arena.take(C * Vp);
    if (channels) {
        products = arena.take(C / BLOCK * Kp), within = arena.take(2 * C * Kp), keys_within = arena.take(C * Kp);
        half = arena.take(2 * BLOCK * Kp), keys_half = arena.take(BLOCK * Kp);
    }
    q_rows = rows + (stacked - C) * Kp, q_scores = scores + (stacked - C) * C;
    written = erasing || a.beta.data ? u : v;
}

// One sequence, head and slice of value columns, with the buffers of its current chunk.
struct HeadSlice : ChunkBuffers {
    const Call& call;
    int64_t n, h, batch, v0, V;  // value columns [v0, v0 + V)
    bool wrong = false;          // a log-decay was positive or NaN, or a beta not in [0, 2]
    float* bonus;                // [Kp], zeros where there is none
    Stream q, keys_in, values, r, strength, decay, outputs;
    Prefetch prefetch;

    HeadSlice(const Call& a, int64_t index, const ChunkBuffers& buffers);
    INLINE void use(const ChunkBuffers& buffers) { static_cast<ChunkBuffers&>(*this) = buffers; }
};

HeadSlice::HeadSlice(const Call& a, int64_t index, const ChunkBuffers& buffers) : ChunkBuffers(buffers), call(a) {
    int64_t slice = index % a.slices;
    n = index / a.slices / a.H, h = index / a.slices % a.H;
    batch = a.offsets ? 0 : n;
    v0 = slice * Vp, V = a.V - v0 < Vp ? a.V - v0 : Vp;
    bonus = arena.take(Kp);
    fill(bonus, Kp, 0);
    if (a.bonus) copy(bonus, a.bonus + h * a.K, a.K);
    q = Stream(a.q, batch, h, a.H, 0, a.K), keys_in = Stream(a.k, batch, h, a.H, 0, a.K);
    r = Stream(a.r, batch, h, a.H, 0, a.K), values = Stream(a.v, batch, h, a.H, v0, V);
    strength = Stream(a.beta, batch, h, a.H, 0, 1), outputs = Stream(a.out, batch, h, a.H, v0, V);
    decay = Stream(a.log_decay, batch, h, a.H, 0, a.decay == PER_CHANNEL ? a.K : 1);
}

// Slices that one thread advances in turn, a segment each: their rows are side by side in the same pages of memory.
constexpr int GROUP = 8;

// How many slices from `index` on, before `end`, are of the same sequence and fit in a group.
int64_t group_size(const Call& a, int64_t index, int64_t end) {
    int64_t each = a.H * a.slices, last = (index / each + 1) * each;
    if (last > end) last = end;
    return last - index < GROUP ? last - index : GROUP;
}

// Memory for `count` objects whose constructors take arguments.
template <class T, int count>
struct Storage {
    alignas(T) char bytes[count * sizeof(T)];
    T& operator[](int64_t i) { return reinterpret_cast<T*>(bytes)[i]; }
};

void load_state(HeadSlice& s) {
    const Call& a = s.call;
    fill(s.S, s.Kp * s.Vp, 0);
    fill(s.z, s.Kp, 0);
    int64_t row = s.n * a.H + s.h;
    if (a.memory_in)
        for (int64_t d = 0; d < a.K; ++d) copy(s.S + d * s.Vp, a.memory_in + (row * a.K + d) * a.V + s.v0, s.V);
    if (a.normalize && a.key_sum_in) copy(s.z, a.key_sum_in + row * a.K, a.K);
}

void store_state(HeadSlice& s) {
    const Call& a = s.call;
    int64_t row = s.n * a.H + s.h;
    for (int64_t d = 0; d < a.K; ++d) copy(a.memory_out + (row * a.K + d) * a.V + s.v0, s.S + d * s.Vp, s.V);
    if (a.normalize && s.v0 == 0) copy(a.key_sum_out + row * a.K, s.z, a.K);
}

// Rows of reads, one a token; rows of the chunk that read nothing are zero.
void read_tokens(float* to, const Stream& x, const Tokens& at, int64_t per_token, int64_t pad) {
    if (at.count < C) fill(to, C * pad, 0);
    read_rows(to + at.row * pad, per_token * pad, x, at.first, at.count, pad);
}

// Rows of what is written; those after the last write of the sequence are zero, which writes nothing.
void read_writes(float* to, const Stream& x, int64_t w, int64_t writes, int64_t pad) {
    read_rows(to, pad, x, w, writes, pad);
    fill(to + writes * pad, (C - writes) * pad, 0);
}

// Reads writes [w, w + C), up to `end`; returns how many there are. The rest of the chunk writes nothing.
int read_chunk(HeadSlice& s, int64_t w, int64_t end) {
    const Call& a = s.call;
    int writes = end - w < C ? int(end - w) : C;
    read_tokens(s.given + (s.stacked - C) * s.Kp, s.q, tokens(w, writes, a.per_token, a.per_token - 1), a.per_token, s.Kp);
    read_writes(s.k, s.keys_in, w, writes, s.Kp);
    if (s.erasing && s.k != s.given) read_writes(s.given, s.r, w, writes, s.Kp);
    read_writes(s.v, s.values, w, writes, s.Vp);
    if (s.strength.base) {
        read_writes(s.beta, s.strength, w, writes, 1);
        for (int i = 0; i < C; ++i) s.wrong |= !(s.beta[i] >= 0 && s.beta[i] <= 2);
    } else {
        fill(s.beta, C, 1);
    }
    Tokens decays = tokens(w, writes, a.per_token, 0);
    if (a.decay == PER_CHANNEL)
        read_tokens(s.channel, s.decay, decays, a.per_token, s.Kp);
    else if (a.decay != NONE)
        read_tokens(s.log, s.decay, decays, a.per_token, 1);
    return writes;
}

// Writes of the sequence: [begin, end).
int64_t begin(const HeadSlice& s) { return (s.call.offsets ? s.call.offsets[s.n] : 0) * s.call.per_token; }
int64_t end(const HeadSlice& s) { return (s.call.offsets ? s.call.offsets[s.n + 1] : s.call.T) * s.call.per_token; }

// Notes rows [row, row + C), up to `end`, of some tensors as wanted, for prefetching while the next products run; none before row 0.
INLINE void want(Prefetch& prefetch, std::initializer_list<const Stream*> wanted, int64_t row, int64_t end) {
    prefetch.start(row < 0 || end < row ? 0 : end < row + C ? int(end - row) : C);
    for (const Stream* x : wanted)
        if (x->base && x->bytes() >= 64) prefetch.add(x->at(row), x->step, x->bytes());
}

// What the chunk at write w will read, and the rows of another tensor beside it.
INLINE void want_inputs(Prefetch& prefetch, const HeadSlice& s, int64_t w, const Stream& beside) {
    const Stream none, &r = s.k == s.given ? none : s.r;
    want(prefetch, {&s.q, &s.keys_in, &s.values, &r, &s.decay, &beside}, w, end(s));
}

// The state before segment `segment`, kept for the backward pass.
float* saved_state(const HeadSlice& s, int64_t segment) {
    const Call& a = s.call;
    return a.entries + ((a.first_segment[s.n] + segment) * a.H + s.h) * a.K * (a.V + a.normalize);
}

}  // namespace
