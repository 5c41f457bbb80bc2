// One token of every sequence and head, the state updated where it lies (or into another place).
//
//     S' = Diag(a) S + k u^T,  u = beta (v - (a * S)^T r),  o = scale ((a * S)^T q + (q . k) u)
//
// Both reads need only the old state, so it is read twice from memory near by and written once.
#include "chunk.h"

namespace {

#if WIDTH == 16
constexpr int WIDE = 8;  // a whole row of 128 columns, so that the state streams in order
#else
constexpr int WIDE = 4;
#endif

// One sequence and head.
struct Token {
    const Call& call;
    int64_t row, Kp, Vp;
    float *q, *k, *r, *a, *v, *u, *read, *recalled;
    float beta = 1;

    Token(const Call& call, int64_t index) : call(call), row(index), Kp(padded(call.K)), Vp(padded(call.V)) {
        arena.reserve(4 * Kp + 4 * Vp);
        q = arena.take(Kp), k = arena.take(Kp), r = arena.take(Kp), a = arena.take(Kp);
        v = arena.take(Vp), u = arena.take(Vp), read = arena.take(Vp), recalled = arena.take(Vp);
        load_terms(index / call.H, index % call.H);
    }
    void load_terms(int64_t b, int64_t h);
};

void Token::load_terms(int64_t b, int64_t h) {
    auto row_of = [&](const Rows& x, int64_t n) { return Stream(x, b, h, call.H, 0, n); };
    read_row(q, row_of(call.q, call.K), 0, Kp);
    read_row(k, row_of(call.k, call.K), 0, Kp);
    read_row(v, row_of(call.v, call.V), 0, Vp);
    if (call.r.data) read_row(r, row_of(call.r, call.K), 0, Kp);
    if (call.beta.data) read_row(&beta, row_of(call.beta, 1), 0, 1);
    fill(a, Kp, 0);
    if (call.decay == NONE) return fill(a, call.K, 1);
    bool channels = call.decay == PER_CHANNEL;
    read_row(a, row_of(call.log_decay, channels ? call.K : 1), 0, channels ? Kp : 1);
    if (!channels) fill(a, Kp, a[0]);
    for (int64_t d = 0; d < Kp; ++d)
        if (!(a[d] <= 0)) *call.wrong = 1;
    for (int64_t d = 0; d < Kp; d += W) store(a + d, exp_negative(load(a + d)));
}

// N vectors of value columns: what q and r see of the decayed state, what is written, the new state.
template <int N>
INLINE void columns(Token& t, const float* from, float* to, int64_t v, float own) {
    const int64_t K = t.call.K, V = t.call.V;
    const bool erasing = t.call.r.data, before = t.call.bonus;
    vec read[N] = {}, recalled[N] = {};
    for (int64_t d = 0; d < K; ++d)
        for (int n = 0; n < N; ++n) {
            vec s = load(from + d * V + v + n * W);
            read[n] += (before ? t.q[d] : t.a[d] * t.q[d]) * s;
            if (erasing) recalled[n] += t.a[d] * t.r[d] * s;
        }
    for (int n = 0; n < N; ++n) {
        vec u = t.beta * (load(t.v + v + n * W) - recalled[n]);
        store(t.u + v + n * W, u);
        store(t.read + v + n * W, read[n] + own * u);
    }
    for (int64_t d = 0; d < K; ++d)
        for (int n = 0; n < N; ++n)
            store(to + d * V + v + n * W, t.a[d] * load(from + d * V + v + n * W) + t.k[d] * load(t.u + v + n * W));
}

// The value columns that do not fill a vector.
void column(Token& t, const float* from, float* to, int64_t v, float own) {
    const int64_t K = t.call.K, V = t.call.V;
    float read = 0, recalled = 0;
    for (int64_t d = 0; d < K; ++d) {
        read += (t.call.bonus ? 1 : t.a[d]) * t.q[d] * from[d * V + v];
        if (t.call.r.data) recalled += t.a[d] * t.r[d] * from[d * V + v];
    }
    float u = t.beta * (t.v[v] - recalled);
    t.read[v] = read + own * u;
    for (int64_t d = 0; d < K; ++d) to[d * V + v] = t.a[d] * from[d * V + v] + t.k[d] * u;
}

// q . k, the weight of the token's own write in its read; with a bonus q . (bonus * k).
float own_weight(const Token& t) {
    const float* bonus = t.call.bonus ? t.call.bonus + t.row % t.call.H * t.call.K : nullptr;
    float own = 0;
    for (int64_t d = 0; d < t.call.K; ++d) own += t.q[d] * (bonus ? bonus[d] * t.k[d] : t.k[d]);
    return own;
}

// The sum of keys, and q . z.
float count(Token& t, float own) {
    const float* from = t.call.key_sum_in + t.row * t.call.K;
    float* to = t.call.key_sum_out + t.row * t.call.K;
    float total = own;
    for (int64_t d = 0; d < t.call.K; ++d) {
        total += (t.call.bonus ? 1 : t.a[d]) * t.q[d] * from[d];
        to[d] = t.a[d] * from[d] + t.k[d];
    }
    return total;
}

void run(const Call& call, int64_t index) {
    Token t(call, index);
    const float* from = call.memory_in + index * call.K * call.V;
    float* to = call.memory_out + index * call.K * call.V;
    float own = own_weight(t);
    int64_t v = 0;
    for (; v + WIDE * W <= call.V; v += WIDE * W) columns<WIDE>(t, from, to, v, own);
    for (; v + W <= call.V; v += W) columns<1>(t, from, to, v, own);
    for (; v < call.V; ++v) column(t, from, to, v, own);
    float total = call.normalize ? count(t, own) : 0;
    float scale = !call.normalize ? call.scale : total == 0 ? 0 : 1 / total;
    for (int64_t n = 0; n < t.Vp; n += W) store(t.read + n, scale * load(t.read + n));
    write_rows(Stream(call.out, index / call.H, index % call.H, call.H, 0, call.V), 0, 1, t.read, 0);
}

}  // namespace

#define NAME(isa) rebracket_step_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(*call, i);
}
