// One sequence, head and slice of value columns on its way through the chunks: its rows, its state, its buffers.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <new>
#include "reduce.h"
#include "rows.h"

namespace {

constexpr int C = 16;       // writes a chunk
constexpr int BLOCK = 4;    // writes a block of a chunk, for per-channel decays
constexpr int SEGMENT = 8;  // chunks between two states kept for the backward pass

constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Scratch of one thread: it grows, is reused, and is aligned to a cache line.
struct Arena {
    float* data = nullptr;
    int64_t size = 0, used = 0;
    void reserve(int64_t n) {
        used = 0;
        if (n <= size) return;
        std::free(data);
        data = static_cast<float*>(std::aligned_alloc(64, n * sizeof(float)));
        size = n;
    }
    float* take(int64_t n) {
        float* p = data + used;
        used += padded(n);
        return p;
    }
    ~Arena() { std::free(data); }
};
thread_local Arena arena;

// The tokens whose write number `write` is among writes [w, w + writes): the first of them stands in row `row` of the chunk,
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
struct Buffers {
    int64_t Kp, Vp;  // K and the value columns of a slice, padded to 16
    bool erasing;
    int stacked;                         // rows of `rows` and `scores`: 2 C when erasing, else C
    float *S = nullptr, *z = nullptr;    // state [Kp,Vp] on entry, sum of keys [Kp]; whoever uses them makes room
    float *plain, *rows;                 // [R; Q] as the caller gave them, and scaled by per-channel decays since the chunk began
    float *k, *keys, *turned, *v, *u, *read, *scores, *out;
    float *log, *beta, *entry, *leave, *gain, *total;
    float* weights;                      // D [C,C]
    float* before = nullptr;             // what u was before beta, kept where there is room for it
    // Per-channel decays [C,Kp], as logs and then as factors, and their products over a block [C/BLOCK,Kp]; the rows of
    // `plain` and `k` scaled by those within their block, up to its end for keys [C,Kp]; and of the first block's keys and the
    // last block's reads, by those within their half of the chunk [BLOCK,Kp].
    float *channel, *products, *within, *keys_within, *half, *keys_half;
    float *q_rows, *q_scores, *written;

    Buffers(const Call& a);
};

int64_t slice_width(const Call& a) { return padded((a.V + a.slices - 1) / a.slices); }

// Floats that a state, its sum of keys, a unit and the other buffers take from the arena.
int64_t state_size(const Call& a) { return padded(a.K) * slice_width(a); }
int64_t sum_size(const Call& a) { return padded(a.K); }
int64_t unit_size(const Call& a) { return padded(a.K); }
int64_t scratch(const Call& a) {
    int64_t Kp = padded(a.K), Vp = slice_width(a);
    return Kp + C * Kp * (2 + 3 + 1 + (a.decay == PER_CHANNEL ? 7 : 0)) + C * Vp * 4 + 3 * C * C + 8 * C;
}

INLINE bool same(const Rows& x, const Rows& y) {
    return x.data == y.data && x.batch == y.batch && x.time == y.time && x.head == y.head && x.heads == y.heads;
}

Buffers::Buffers(const Call& a) : Kp(padded(a.K)), Vp(slice_width(a)), erasing(a.r.data), stacked(a.r.data ? 2 * C : C) {
    bool channels = a.decay == PER_CHANNEL;
    plain = arena.take(2 * C * Kp), rows = channels ? arena.take(2 * C * Kp) : plain;
    k = erasing && same(a.r, a.k) ? plain : arena.take(C * Kp), keys = arena.take(C * Kp), turned = arena.take(C * Kp);
    v = arena.take(C * Vp), u = arena.take(C * Vp), read = arena.take(C * Vp), scores = arena.take(2 * C * C);
    log = arena.take(C), beta = arena.take(C), entry = arena.take(C), leave = arena.take(C), total = arena.take(C);
    gain = arena.take(Kp), channel = arena.take(C * Kp), weights = arena.take(C * C), out = arena.take(C * Vp);
    if (channels) {
        products = arena.take(C / BLOCK * Kp), within = arena.take(2 * C * Kp), keys_within = arena.take(C * Kp);
        half = arena.take(2 * BLOCK * Kp), keys_half = arena.take(BLOCK * Kp);
    }
    q_rows = rows + (stacked - C) * Kp, q_scores = scores + (stacked - C) * C;
    written = erasing || a.beta.data ? u : v;
}

// One sequence, head and slice of value columns, with the buffers of its current chunk.
struct Unit : Buffers {
    const Call& call;
    int64_t n, h, batch, v0, V;  // value columns [v0, v0 + V)
    bool wrong = false;          // a log-decay was positive or NaN
    float* bonus;                // [Kp], zeros where there is none
    Stream q, keys_in, values, r, strength, decay, outputs;
    Ahead ahead;

    Unit(const Call& a, int64_t index, const Buffers& buffers);
    INLINE void use(const Buffers& buffers) { static_cast<Buffers&>(*this) = buffers; }
};

Unit::Unit(const Call& a, int64_t index, const Buffers& buffers) : Buffers(buffers), call(a) {
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

// Units that take turns, a segment each: their rows lie side by side in the same pages of memory.
constexpr int GROUP = 8;

// How many units from `index` on, before `end`, belong to the same sequence, as many as take turns.
int64_t together(const Call& a, int64_t index, int64_t end) {
    int64_t each = a.H * a.slices, last = (index / each + 1) * each;
    if (last > end) last = end;
    return last - index < GROUP ? last - index : GROUP;
}

// Room for `count` objects whose constructors take arguments.
template <class T, int count>
struct Room {
    alignas(T) char bytes[count * sizeof(T)];
    T& operator[](int64_t i) { return reinterpret_cast<T*>(bytes)[i]; }
};

void enter(Unit& u) {
    const Call& a = u.call;
    fill(u.S, u.Kp * u.Vp, 0);
    fill(u.z, u.Kp, 0);
    int64_t row = u.n * a.H + u.h;
    if (a.memory_in)
        for (int64_t d = 0; d < a.K; ++d) copy(u.S + d * u.Vp, a.memory_in + (row * a.K + d) * a.V + u.v0, u.V);
    if (a.normalize && a.key_sum_in) copy(u.z, a.key_sum_in + row * a.K, a.K);
}

void leave(Unit& u) {
    const Call& a = u.call;
    int64_t row = u.n * a.H + u.h;
    for (int64_t d = 0; d < a.K; ++d) copy(a.memory_out + (row * a.K + d) * a.V + u.v0, u.S + d * u.Vp, u.V);
    if (a.normalize && u.v0 == 0) copy(a.key_sum_out + row * a.K, u.z, a.K);
}

// Rows of reads, one a token; rows of the chunk that read nothing are zero.
void pack_tokens(float* to, const Stream& x, const Tokens& at, int64_t per_token, int64_t pad) {
    if (at.count < C) fill(to, C * pad, 0);
    read_rows(to + at.row * pad, per_token * pad, x, at.first, at.count, pad);
}

// Rows of what is written; those after the last write of the sequence are zero.
void pack_writes(float* to, const Stream& x, int64_t w, int64_t writes, int64_t pad) {
    read_rows(to, pad, x, w, writes, pad);
    fill(to + writes * pad, (C - writes) * pad, 0);
}

// Reads writes [w, w + C), up to `end`; returns how many there were. A write of nothing fills the last chunk up.
int pack(Unit& u, int64_t w, int64_t end) {
    const Call& a = u.call;
    int writes = end - w < C ? int(end - w) : C;
    pack_tokens(u.plain + (u.stacked - C) * u.Kp, u.q, tokens(w, writes, a.per_token, a.per_token - 1), a.per_token, u.Kp);
    pack_writes(u.k, u.keys_in, w, writes, u.Kp);
    if (u.erasing && u.k != u.plain) pack_writes(u.plain, u.r, w, writes, u.Kp);
    pack_writes(u.v, u.values, w, writes, u.Vp);
    if (u.strength.base)
        pack_writes(u.beta, u.strength, w, writes, 1);
    else
        fill(u.beta, C, 1);
    Tokens decays = tokens(w, writes, a.per_token, 0);
    if (a.decay == PER_CHANNEL)
        pack_tokens(u.channel, u.decay, decays, a.per_token, u.Kp);
    else if (a.decay != NONE)
        pack_tokens(u.log, u.decay, decays, a.per_token, 1);
    return writes;
}

// Writes of unit u: [begin, end).
int64_t begin(const Unit& u) { return (u.call.offsets ? u.call.offsets[u.n] : 0) * u.call.per_token; }
int64_t end(const Unit& u) { return (u.call.offsets ? u.call.offsets[u.n + 1] : u.call.T) * u.call.per_token; }

// Lets rows [row, row + C), up to `end`, of some tensors be asked for while the next products run; none from before the first.
INLINE void ask(Ahead& ahead, std::initializer_list<const Stream*> wanted, int64_t row, int64_t end) {
    ahead.begin(row < 0 || end < row ? 0 : end < row + C ? int(end - row) : C);
    for (const Stream* x : wanted)
        if (x->base && x->bytes() >= 64) ahead.add(x->at(row), x->step, x->bytes());
}

// What the chunk of unit u at write w will read, and the rows of another tensor beside it.
INLINE void ask_inputs(Ahead& ahead, const Unit& u, int64_t w, const Stream& beside) {
    const Stream none, &r = u.k == u.plain ? none : u.r;
    ask(ahead, {&u.q, &u.keys_in, &u.values, &r, &u.decay, &beside}, w, end(u));
}

// The state at the first chunk of segment `segment` of SEGMENT chunks, for the backward pass.
float* saved(const Unit& u, int64_t segment) {
    const Call& a = u.call;
    return a.entries + ((a.first_segment[u.n] + segment) * a.H + u.h) * a.K * (a.V + a.normalize);
}

}  // namespace
