// One chunk of C writes of one sequence and head: its terms, its scores, and what its writes really write.
//
//     A = tril(q D k^T),  L = stril(r D k^T),  U = beta (V - (G * R) S) - beta L U
//
// D[i,j] is the decay between write j and read i, G[i] since the chunk began. R and Q stand above each other in `rows`, L and
// A in `scores`, so that each product with the state or the keys is one.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <new>
#include "reduce.h"
#include "rows.h"

namespace {

constexpr int C = 16;       // writes a chunk
constexpr int LEVELS = 4;   // halvings of a chunk
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

// Bits of a lane mask: column j of row i is kept when j < i + 1 (upto) or j < i (below).
struct Triangle {
    alignas(64) int32_t upto[C][C], below[C][C];
    constexpr Triangle() : upto(), below() {
        for (int i = 0; i < C; ++i)
            for (int j = 0; j < C; ++j) upto[i][j] = j <= i ? -1 : 0, below[i][j] = j < i ? -1 : 0;
    }
};
constexpr Triangle triangle;

INLINE vec keep(vec x, const int32_t* mask) {
    ivec bits, m;
    __builtin_memcpy(&bits, &x, sizeof x);
    __builtin_memcpy(&m, mask, sizeof m);
    bits &= m;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

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
    float *channel, *left, *right;       // per-channel decays: logs [C,Kp], rows scaled for every level
    float *q_rows, *q_scores, *written;

    Buffers(const Call& a);
};

int64_t slice_width(const Call& a) { return padded((a.V + a.slices - 1) / a.slices); }

// Floats that a state, its sum of keys and the other buffers take from the arena.
int64_t state_size(const Call& a) { return padded(a.K) * slice_width(a); }
int64_t sum_size(const Call& a) { return padded(a.K); }
int64_t scratch(const Call& a) {
    int64_t Kp = padded(a.K), Vp = slice_width(a);
    return Kp + C * Kp * (2 + 3 + 1 + (a.decay == PER_CHANNEL ? 2 + 3 * LEVELS : 0)) + C * Vp * 4 + 3 * C * C + 8 * C;
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
    left = channels ? arena.take(LEVELS * C * Kp) : nullptr, right = channels ? arena.take(2 * LEVELS * C * Kp) : nullptr;
    q_rows = rows + (stacked - C) * Kp, q_scores = scores + (stacked - C) * C;
    written = erasing || a.beta.data ? u : v;
}

// One sequence, head and slice of value columns, with the buffers of its current chunk.
struct Unit : Buffers {
    const Call& call;
    int64_t n, h, batch, v0, V;  // value columns [v0, v0 + V)
    bool wrong = false;          // a log-decay was positive or NaN
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

// D under one decay a token: every weight is exp of the sum over exactly its own interval.
void weights_by_token(Unit& u) {
    vec sums[C / W] = {};
    float since = 0;
    for (int i = 0; i < C; ++i) {
        u.wrong |= !(u.log[i] <= 0);
        u.entry[i] = since += u.log[i];
        for (int n = 0; n < C / W; ++n) {
            sums[n] += keep(splat(u.log[i]), triangle.below[i] + n * W);
            store(u.weights + i * C + n * W, keep(exp_negative(sums[n]), triangle.upto[i] + n * W));
        }
    }
    for (int n = 0; n < C; n += W) store(u.entry + n, exp_negative(load(u.entry + n)));
    for (int n = 0; n < C; n += W) store(u.leave + n, load(u.weights + (C - 1) * C + n));
}

void weights_by_one(Unit& u) {
    for (int i = 0; i < C * C; i += W) store(u.weights + i, keep(splat(1), triangle.upto[0] + i));
    fill(u.entry, C, 1);
    fill(u.leave, C, 1);
}

// Scores times weights, outside the triangle exactly zero. With a bonus a read has seen the decays before its own token.
void weigh(Unit& u) {
    const bool bonus = u.call.bonus;
    const int32_t* mask = (bonus ? triangle.below : triangle.upto)[0];
    for (int i = 0; i < C * C; i += W) {
        float *l = u.scores + i, *a = u.q_scores + i;
        if (u.erasing) store(l, keep(load(l) * load(u.weights + i), triangle.below[0] + i));
        store(a, keep(load(a) * load(u.weights + (bonus && i >= C ? i - C : i)), mask + i));
    }
}

// One decay a channel: between the halves of every halving the decay splits at their border into two factors <= 1. `left` and
// `right` hold keys and reads scaled to the border of each level.
void scale_to_borders(Unit& u, int64_t d) {
    vec a[C], product = splat(1), log = {};
    int64_t Kp = u.Kp;
    const float* q = u.plain + (u.stacked - C) * Kp;
    for (int i = 0; i < C; ++i) {
        vec x = load(u.channel + i * Kp + d);
        log += x > splat(0) ? splat(0) / splat(0) : x;  // a positive one must show in the sum
        a[i] = exp_negative(x);
    }
    store(u.gain + d, exp_negative(log));
    for (int n = 0; n < W; ++n) u.wrong |= !(log[n] <= 0);
    for (int level = 0, h = 1; level < LEVELS; ++level, h *= 2)
        for (int mid = h; mid < C; mid += 2 * h) {
            vec e = splat(1), p = splat(1);
            for (int j = mid - 1; j >= mid - h; --j) {
                store(u.left + (level * C + j) * Kp + d, e * load(u.k + j * Kp + d));
                e *= a[j];
            }
            for (int i = mid; i < mid + h; ++i) {
                vec read = u.call.bonus ? p : p * a[i];
                p *= a[i];
                store(u.right + ((LEVELS + level) * C + i) * Kp + d, read * load(q + i * Kp + d));
                if (u.erasing) store(u.right + (level * C + i) * Kp + d, p * load(u.plain + i * Kp + d));
            }
        }
    for (int i = C - 1; i >= 0; --i) {
        store(u.keys + i * Kp + d, product * load(u.k + i * Kp + d));
        product *= a[i];
    }
    product = splat(1);
    for (int i = 0; i < C; ++i) {
        vec read = u.call.bonus ? product : product * a[i];
        product *= a[i];
        if (u.erasing) store(u.rows + i * Kp + d, product * load(u.plain + i * Kp + d));
        store(u.q_rows + i * Kp + d, read * load(q + i * Kp + d));
    }
}

// Row i of the scores: its dot products with every earlier row, each pair at the level whose border lies between them.
void score_row(const Unit& u, int i, const float* right, const float* own, float* to) {
    vec acc[C] = {};
    int64_t Kp = u.Kp;
    for (int64_t d = 0; d < Kp; d += W) {
        for (int level = 0, h = 1; level < LEVELS; ++level, h *= 2) {
            if (!(i & h)) continue;
            int mid = i & ~(h - 1);
            vec x = load(right + (level * C + i) * Kp + d);
            for (int j = mid - h; j < mid; ++j) acc[j] += x * load(u.left + (level * C + j) * Kp + d);
        }
        if (own) acc[i] += load(own + d) * load(u.k + i * Kp + d);
    }
    reduce16(acc, to);
}

void score_by_channel(Unit& u) {
    const float* q = u.plain + (u.stacked - C) * u.Kp;
    for (int64_t d = 0; d < u.Kp; d += W) scale_to_borders(u, d);
    for (int i = 0; i < C; ++i) {
        if (u.erasing) score_row(u, i, u.right, nullptr, u.scores + i * C);
        score_row(u, i, u.right + LEVELS * C * u.Kp, u.call.bonus ? nullptr : q + i * u.Kp, u.q_scores + i * C);
    }
    fill(u.entry, C, 1);
    fill(u.weights, C * C, 1);
}

// With a bonus a read meets its own token with weight u instead of 1, before any decay.
void add_bonus(Unit& u) {
    const float* q = u.plain + (u.stacked - C) * u.Kp;
    const float* bonus = u.call.bonus + u.h * u.call.K;
    for (int i = 0; i < C; ++i) {
        float own = 0;
        for (int64_t d = 0; d < u.call.K; ++d) own += q[i * u.Kp + d] * bonus[d] * u.k[i * u.Kp + d];
        u.q_scores[i * C + i] = own;
    }
}

void score(Unit& u) {
    if (u.call.decay == PER_CHANNEL) {
        score_by_channel(u);
        if (u.call.bonus) add_bonus(u);
        return;
    }
    if (u.call.decay == NONE)
        weights_by_one(u);
    else
        weights_by_token(u);
    transpose(u.k, u.Kp, C, u.Kp, u.turned, C);
    product<0>(u.rows, u.Kp, 1, u.turned, C, u.scores, C, u.stacked, C, u.Kp, u.ahead);
    weigh(u);
    if (u.call.bonus) add_bonus(u);
    for (int c = 0; c < C; ++c)
        for (int64_t d = 0; d < u.Kp; d += W) store(u.keys + c * u.Kp + d, u.leave[c] * load(u.k + c * u.Kp + d));
    u.gain[0] = u.entry[C - 1];
    if (u.call.bonus) {  // the read of row i has seen the decays before it
        for (int i = C - 1; i > 0; --i) u.entry[i] = u.entry[i - 1];
        u.entry[0] = 1;
    }
}

// u_i = beta_i (v_i - G_i R_i S - sum over j < i of L_ij u_j), or beta v when nothing is read back; every row that is known is
// taken from all rows after it at once.
void solve(Unit& u) {
    if (u.written == u.v) return;
    for (int64_t n = 0; n < u.Vp; n += W) {
        vec x[C];
        for (int i = 0; i < C; ++i) {
            x[i] = load(u.v + i * u.Vp + n);
            if (u.erasing) x[i] -= u.entry[i] * load(u.read + i * u.Vp + n);
        }
#pragma GCC unroll 16
        for (int j = 0; j < C; ++j) {
            if (u.before) store(u.before + j * u.Vp + n, x[j]);
            vec known = u.beta[j] * x[j];
            store(u.u + j * u.Vp + n, known);
            if (!u.erasing) continue;
#pragma GCC unroll 16
            for (int i = j + 1; i < C; ++i) x[i] -= u.scores[i * C + j] * known;
        }
    }
}

// total_i = G_i q_i . z + sum over j of A_ij.
void add_up(Unit& u) {
    vec acc[C] = {};
    int64_t Kp = u.Kp;
    for (int64_t d = 0; d < Kp; d += W)
        for (int i = 0; i < C; ++i) acc[i] += load(u.q_rows + i * Kp + d) * load(u.z + d);
    reduce16(acc, u.total);
    for (int i = 0; i < C; ++i) {
        u.total[i] *= u.entry[i];
        for (int j = 0; j <= i; ++j) u.total[i] += u.q_scores[i * C + j];
    }
}

// What multiplies the read of row i.
INLINE float factor(const Unit& u, int i) { return !u.call.normalize ? u.call.scale : u.total[i] == 0 ? 0 : 1 / u.total[i]; }

// Diag(G[C]) for one vector of channels at d.
INLINE vec gain_at(const Unit& u, int64_t d) { return u.call.decay == PER_CHANNEL ? load(u.gain + d) : splat(u.gain[0]); }

// to = Diag(G[C]) z + the keys as they reach the end.
void advance_sum(const Unit& u, float* to) {
    for (int64_t d = 0; d < u.Kp; d += W) {
        vec x = gain_at(u, d) * load(u.z + d);
        for (int c = 0; c < C; ++c) x += load(u.keys + c * u.Kp + d);
        store(to + d, x);
    }
}

// Scores, what is read back of the state on entry, and from both what is really written.
void resolve(Unit& u) {
    score(u);
    if (u.erasing) product<0>(u.rows, u.Kp, 1, u.S, u.Vp, u.read, u.Vp, C, u.Vp, u.Kp, u.ahead);
    solve(u);
}

// to = Diag(G[C]) S + (D[C,.] * K)^T U.
void advance(Unit& u, float* to) {
    product<2>(u.keys, 1, u.Kp, u.written, u.Vp, u.S, to, u.Vp, u.Kp, u.Vp, C, u.ahead, u.gain, u.call.decay == PER_CHANNEL);
}

// Writes of unit u: [begin, end).
int64_t begin(const Unit& u) { return (u.call.offsets ? u.call.offsets[u.n] : 0) * u.call.per_token; }
int64_t end(const Unit& u) { return (u.call.offsets ? u.call.offsets[u.n + 1] : u.call.T) * u.call.per_token; }

// Lets rows [row, row + C), up to `end`, of some tensors be asked for while the next products run; none from before the first.
INLINE void ask(Ahead& ahead, std::initializer_list<const Stream*> wanted, int64_t row, int64_t end) {
    ahead.streams = 0;
    for (const Stream* x : wanted) {
        if (!x->base || x->bytes() < 64) continue;
        int i = ahead.streams++;
        ahead.row[i] = x->at(row), ahead.step[i] = x->step, ahead.bytes[i] = x->bytes();
    }
    ahead.begin(row < 0 || end < row ? 0 : end < row + C ? int(end - row) : C);
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
