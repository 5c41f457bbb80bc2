// The recurrence backward, one segment of chunks after the other from the end: the states inside a segment are computed again
// from the one kept at its beginning, then the gradients flow back through its chunks.
//
//     dU = A^T dO + (D[C,.] * K) dS',  W = (I + beta L)^-T dU,  dV = beta W
//     dA = tril(dO U^T),  dL = -stril(beta W U^T)
//     dQ = (dA D) K + G * (dO S^T),  dR = (dL D) K - G * (beta W S^T),  dK = (dA D)^T Q + (dL D)^T R + D[C,.] * (U dS'^T)
//     dS = Diag(G[C]) dS' + (G * Q)^T dO - (G * R)^T beta W
#include "per_channel_back.h"
#include "per_token_back.h"

namespace {

// W from dU, in place from the last write to the first, and beta W; every row that is known is taken from all rows before it.
void solve_back(Unit& u, Flow& f, float* strong) {
    vec along[C] = {};
    for (int64_t n = 0; n < u.Vp; n += W) {
        vec x[C];
        for (int i = 0; i < C; ++i) x[i] = load(f.dU + i * u.Vp + n);
#pragma GCC unroll 16
        for (int i = C - 1; i >= 0; --i) {
            vec known = u.beta[i] * x[i];
            store(strong + i * u.Vp + n, known);
            along[i] += x[i] * load(u.before + i * u.Vp + n);
            if (!u.erasing) continue;
#pragma GCC unroll 16
            for (int j = 0; j < i; ++j) x[j] -= u.scores[i * C + j] * known;
        }
    }
    reduce16(along, f.dbeta);
}

// The pair of a token with itself under a bonus: A_ii = sum of q_i bonus k_i.
void bonus_gradient(Unit& u, Flow& f, const float* own) {
    for (int64_t d = 0; d < u.Kp; d += W) {
        vec bonus = load(u.bonus + d), dbonus = load(f.dbonus + d);
        for (int64_t i = d; i < C * u.Kp; i += u.Kp) {
            int64_t row = i / u.Kp;
            vec q = load(u.plain + i), k = load(u.k + i);
            store(f.drows + i, load(f.drows + i) + own[row] * bonus * k);
            store(f.dk + i, load(f.dk + i) + own[row] * bonus * q);
            dbonus += own[row] * q * k;
        }
        store(f.dbonus + d, dbonus);
    }
}

// What flows back through total_i = G_i q_i . z + sum over j of A_ij, given the unweighted gradients of A and what came to q
// and k through the state. The output is a sum over total, so the total's gradient is minus the sum times its own, over total.
void add_up_back(Unit& u, Flow& f) {
    alignas(64) float entered[C], scored[C];
    dots16(u.q_rows, u.Kp, f.drows, u.Kp, u.Kp, entered);
    dots16(u.q_scores, C, f.dscores, C, C, scored);
    for (int i = 0; i < C; ++i) {
        f.dtotal[i] = -(u.entry[i] * entered[i] + scored[i]) * over(u.total[i]);
        for (int n = i * C; n < i * C + C; n += W) store(f.dscores + n, load(f.dscores + n) + f.dtotal[i]);
        for (int64_t d = 0; d < u.Kp; d += W) {
            store(f.drows + i * u.Kp + d, load(f.drows + i * u.Kp + d) + f.dtotal[i] * load(u.z + d));
            store(f.dk + i * u.Kp + d, load(f.dk + i * u.Kp + d) + load(f.dz + d));
        }
    }
}

// dz = Diag(G[C]) dz' + (G * Q)^T dtotal.
void sum_back(Unit& u, Flow& f) {
    for (int64_t d = 0; d < u.Kp; d += W) {
        vec x = gain_at(u, d) * load(f.dz + d);
        for (int i = 0; i < C; ++i) x += f.dtotal[i] * load(f.scaled + i * u.Kp + d);
        store(f.dz + d, x);
    }
}

// What passes from write j to read i, gradient times score, and the gradients of the scores times their weights; both of the
// triangle only.
void weigh_back(Unit& u, Flow& f) {
    const bool bonus = u.call.bonus;
    float* da = f.dscores + (u.stacked - C) * C;
    const int32_t* mask = (bonus ? triangle.below : triangle.upto)[0];
    for (int i = 0; i < C * C; i += W) {
        vec a = load(da + i), passed = a * load(u.q_scores + i);
        store(da + i, keep(a * load(u.weights + (bonus && i >= C ? i - C : i)), mask + i));
        if (u.erasing) {
            vec l = load(f.dscores + i);
            passed -= l * load(u.scores + i);
            store(f.dscores + i, keep(-l * load(u.weights + i), triangle.below[0] + i));
        }
        store(f.passed + i, passed);
    }
}

// dU, and from it W and beta W, which is dV; returns where dV stands.
float* writes_back(Unit& u, Flow& f) {
    int64_t Kp = u.Kp, Vp = u.Vp;
    float* dO = f.ends + (u.stacked - C) * Vp;
    product<0>(u.keys, Kp, 1, f.dS, Vp, f.dU, Vp, C, Vp, Kp, u.ahead);
    for (int m = 0; m < C; m += TILE_R)  // write j is read by no row before it
        product<1>(u.q_scores + m + m * C, 1, C, dO + m * Vp, Vp, f.dU + m * Vp, Vp, TILE_R, Vp, C - m, u.ahead);
    if (u.written == u.v) return f.dU;
    float* strong = u.erasing ? f.ends : f.ends + C * Vp;
    solve_back(u, f, strong);
    return strong;
}

// What a row of [R; Q] has seen of the state on entry, with the sign of what it does with it.
void signs(const Unit& u, float* to) {
    for (int i = 0; i < u.stacked; ++i) to[i] = u.erasing && i < C ? -u.entry[i] : u.entry[i % C];
}

// dS = Diag(G[C]) dS' + [-G R; G Q]^T [beta W; dO].
void state_back(Unit& u, Flow& f, const float* sign_entry) {
    int64_t Kp = u.Kp, Vp = u.Vp;
    for (int i = 0; i < u.stacked; ++i)
        for (int64_t d = 0; d < Kp; d += W) store(f.scaled + i * Kp + d, sign_entry[i] * load(u.rows + i * Kp + d));
    product<2>(f.scaled, 1, Kp, f.ends, Vp, f.dS, Vp, Kp, Vp, u.stacked, u.ahead, u.gain, u.call.decay == PER_CHANNEL);
}

// All gradients of a chunk; returns where dV stands.
float* chunk_back(Unit& u, Flow& f) {
    int64_t Kp = u.Kp, Vp = u.Vp;
    int stacked = u.stacked;
    float* dv = writes_back(u, f);
    transpose(f.ends, Vp, stacked, Vp, f.ends_turned, stacked);
    transpose(u.written, Vp, C, Vp, f.u_turned, C);
    // Scores: dL above dA, weighted by the decays.
    product<0>(f.ends, Vp, 1, f.u_turned, C, f.dscores, C, stacked, C, Vp, u.ahead);
    // Rows: what came through the state.
    product<0>(u.S, Vp, 1, f.ends_turned, stacked, f.turned, stacked, Kp, stacked, Vp, u.ahead);
    transpose(f.turned, stacked, Kp, stacked, f.drows, Kp);
    product<0>(f.dS, Vp, 1, f.u_turned, C, f.turned, C, Kp, C, Vp, u.ahead);
    transpose(f.turned, C, Kp, C, f.dk, Kp);
    if (u.call.normalize) add_up_back(u, f);
    alignas(64) float own[C];
    for (int i = 0; i < C; ++i) own[i] = f.dscores[(stacked - C + i) * C + i];
    weigh_back(u, f);
    // Rows: and what came through the scores.
    float sign_entry[2 * C];
    signs(u, sign_entry);
    for (int64_t d = 0; d < Kp && u.call.decay != NONE; d += 16) dots16(u.S + d * Vp, Vp, f.dS + d * Vp, Vp, Vp, f.overlap + d);
    if (u.call.decay == PER_CHANNEL)
        channel_gradients(u, f);
    else
        row_gradient(u, f, sign_entry);
    if (u.call.bonus) bonus_gradient(u, f, own);
    state_back(u, f, sign_entry);
    if (u.call.normalize) sum_back(u, f);
    return dv;
}

void pack_gradient(Unit& u, Flow& f, const Tokens& at) {
    float* dO = f.ends + (u.stacked - C) * u.Vp;
    pack_tokens(dO, f.out, at, u.call.per_token, u.Vp);
    for (int i = 0; i < C; ++i)
        for (int64_t n = i * u.Vp; n < (i + 1) * u.Vp; n += W) store(dO + n, factor(u, i) * load(dO + n));
}

void emit_gradient(Unit& u, Flow& f, int64_t w, int64_t writes, const float* dv) {
    const int64_t per_token = u.call.per_token, n = u.call.decay == PER_CHANNEL ? u.Kp : 1;
    Tokens reads = tokens(w, writes, per_token, per_token - 1), decays = tokens(w, writes, per_token, 0);
    write_rows(f.q, reads.first, reads.count, f.drows + (u.stacked - C + reads.row) * u.Kp, per_token * u.Kp);
    if (f.log_decay.base) write_rows(f.log_decay, decays.first, decays.count, f.dlog + decays.row * n, per_token * n);
    if (f.r.base)
        write_rows(f.r, w, writes, f.drows, u.Kp);
    else if (u.erasing)  // r is k
        for (int64_t i = 0; i < C * u.Kp; i += W) store(f.dk + i, load(f.dk + i) + load(f.drows + i));
    write_rows(f.k, w, writes, f.dk, u.Kp);
    write_rows(f.v, w, writes, dv, u.Vp);
    if (f.beta.base) write_rows(f.beta, w, writes, f.dbeta, 1);
}

// What a segment begins with: its first chunk and the state kept before it.
void ask_segment(Ahead& ahead, const Unit& u, int64_t w) {
    ask_inputs(ahead, u, w, Stream());
    if (w < begin(u)) return;
    int64_t part = u.call.K * u.call.V / C * sizeof(float);
    ahead.add(reinterpret_cast<char*>(saved(u, (w - begin(u)) / (SEGMENT * C))), part, part);
}

// Writes [w0, last) of a unit, whose chunks have buffers of their own; the state before them is in those of the first.
void segment_back(Unit& u, Flow& f, const Buffers* chunks, int64_t w0, int64_t last, const Unit& next, int64_t next_w) {
    const int64_t per_token = u.call.per_token;
    int64_t writes[SEGMENT], count = 0;
    for (int64_t w = w0; w < last; w += C, ++count) {
        u.use(chunks[count]);
        writes[count] = pack(u, w, last);
        if (w + C < last)
            ask_inputs(u.ahead, u, w + C, Stream());
        else
            f.ask(u.ahead, w, last);
        resolve(u);
        if (u.call.normalize) add_up(u);
        if (w + C >= last) continue;
        advance(u, chunks[count + 1].S);
        if (u.call.normalize) advance_sum(u, chunks[count + 1].z);
    }
    for (int64_t c = count - 1; c >= 0; --c) {
        int64_t w = w0 + c * C;
        u.use(chunks[c]);
        pack_gradient(u, f, tokens(w, writes[c], per_token, per_token - 1));
        if (c)
            f.ask(u.ahead, w - C, w);
        else
            ask_segment(u.ahead, next, next_w);
        emit_gradient(u, f, w, writes[c], chunk_back(u, f));
    }
}

void enter_back(const Unit& u, const Gradients& g, const Flow& f) {
    const Call& a = u.call;
    const int64_t row = u.n * a.H + u.h;
    fill(f.dS, state_size(a), 0);
    fill(f.dz, u.Kp, 0);
    fill(f.dbonus, u.Kp, 0);
    if (g.key_sum_out) copy(f.dz, g.key_sum_out + row * a.K, a.K);
    if (g.memory_out)
        for (int64_t d = 0; d < a.K; ++d) copy(f.dS + d * u.Vp, g.memory_out + (row * a.K + d) * a.V + u.v0, u.V);
}

void leave_back(const Unit& u, const Gradients& g, const Flow& f) {
    const Call& a = u.call;
    const int64_t row = u.n * a.H + u.h;
    if (g.key_sum_in) copy(g.key_sum_in + row * a.K, f.dz, a.K);
    if (g.bonus) copy(g.bonus + row * a.K, f.dbonus, a.K);
    for (int64_t d = 0; d < a.K; ++d) copy(g.memory_in + (row * a.K + d) * a.V, f.dS + d * u.Vp, a.V);
}

// The state kept at the beginning of a segment: where it lies if it needs no padding, else in `room`; and its sum of keys.
void restore(Buffers& first, const Unit& u, int64_t segment, float* room) {
    const Call& a = u.call;
    float* kept = saved(u, segment);
    first.S = a.K == u.Kp && a.V == u.Vp ? kept : room;
    if (a.normalize) fill(first.z, u.Kp, 0), copy(first.z, kept + a.K * a.V, a.K);
    if (first.S == kept) return;
    fill(room, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(room + d * u.Vp, kept + d * a.V, a.V);
}

// Buffers for the chunks of a segment, and for what flows back through one of them.
struct Segment {
    Room<Buffers, SEGMENT> chunks;
    float* room;  // for a state that has to be padded

    explicit Segment(const Call& a) {
        for (int i = 0; i < SEGMENT; ++i) {
            Buffers& chunk = *new (&chunks[i]) Buffers(a);
            chunk.S = arena.take(state_size(a)), chunk.z = arena.take(sum_size(a)), chunk.before = arena.take(C * chunk.Vp);
        }
        room = chunks[0].S;
    }
    static int64_t size(const Call& a) {
        return SEGMENT * (scratch(a) + C * slice_width(a) + state_size(a) + sum_size(a)) + flow_size(a);
    }
};

// Heads that take turns, from their last segment to the first.
void run(const Call& a, const Gradients& g, int64_t index, int64_t count) {
    arena.reserve(Segment::size(a) + count * (unit_size(a) + head_size(a)));
    Segment segment(a);
    FlowBuffers buffers(segment.chunks[0]);
    Room<Unit, GROUP> units;
    Room<Flow, GROUP> flows;
    for (int64_t i = 0; i < count; ++i) {
        new (&units[i]) Unit(a, index + i, segment.chunks[0]);
        enter_back(units[i], g, *new (&flows[i]) Flow(g, units[i], buffers));
    }
    const int64_t step = SEGMENT * C, first = begin(units[0]), last = end(units[0]);
    for (int64_t s = (last - first + step - 1) / step - 1; s >= 0; --s)
        for (int64_t i = 0; i < count; ++i) {
            int64_t w = first + s * step;
            bool around = i + 1 == count;
            restore(segment.chunks[0], units[i], s, segment.room);
            segment_back(units[i], flows[i], &segment.chunks[0], w, w + step < last ? w + step : last,
                         units[around ? 0 : i + 1], around ? w - step : w);
        }
    for (int64_t i = 0; i < count; ++i) leave_back(units[i], g, flows[i]);
}

// Where there are more threads than heads, what flows back into every segment is found first, for slices of columns apart;
// then all segments can go at once. Both take the same steps as `run`, so the gradients are the same to the last bit.

// The gradient that enters segment `segment` from behind.
float* carried(const Unit& u, int64_t segment) {
    const Call& a = u.call;
    return a.carries + ((a.first_segment[u.n] + segment) * a.H + u.h) * a.K * a.V + u.v0;
}

// Through a chunk on the way to the one before: of the gradients only that of the state.
void pass(Unit& u, Flow& f, int64_t w, int64_t last) {
    int64_t writes = pack(u, w, last);
    ask_inputs(u.ahead, u, w - C, f.out);
    score(u);
    pack_gradient(u, f, tokens(w, writes, u.call.per_token, u.call.per_token - 1));
    if (u.erasing) writes_back(u, f);  // beta W, which what is read back needs
    float sign_entry[2 * C];
    signs(u, sign_entry);
    state_back(u, f, sign_entry);
}

void carry(const Call& a, const Gradients& g, int64_t index) {
    arena.reserve(Segment::size(a) + unit_size(a) + head_size(a));
    Segment segment(a);
    fill(segment.chunks[0].before, C * segment.chunks[0].Vp, 0);  // only the gradient of beta asks for it
    FlowBuffers buffers(segment.chunks[0]);
    Unit u(a, index, segment.chunks[0]);
    Flow f(g, u, buffers);
    enter_back(u, g, f);
    const int64_t step = SEGMENT * C, first = begin(u), last = end(u);
    for (int64_t s = (last - first + step - 1) / step - 1; s >= 0; --s) {
        for (int64_t d = 0; d < a.K; ++d) copy(carried(u, s) + d * a.V, f.dS + d * u.Vp, u.V);
        const int64_t from = first + s * step, to = from + step < last ? from + step : last;
        for (int64_t w = from + (to - from - 1) / C * C; s && w >= from; w -= C) pass(u, f, w, to);
    }
}

// One segment of one head.
void piece(const Call& a, const Gradients& g, int64_t n, int64_t h, int64_t s) {
    arena.reserve(Segment::size(a) + unit_size(a) + head_size(a));
    Segment segment(a);
    FlowBuffers buffers(segment.chunks[0]);
    Unit u(a, n * a.H + h, segment.chunks[0]);
    Flow f(g, u, buffers);
    fill(f.dS, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(f.dS + d * u.Vp, carried(u, s) + d * a.V, a.V);
    const int64_t step = SEGMENT * C, w = begin(u) + s * step, last = end(u);
    restore(segment.chunks[0], u, s, segment.room);
    segment_back(u, f, &segment.chunks[0], w, w + step < last ? w + step : last, u, -1);
    if (s == 0) leave_back(u, g, f);
}

// The sequence to which kept segment `segment` of all belongs.
int64_t sequence_of(const Call& a, int64_t segment) {
    int64_t n = 0;
    while (a.first_segment[n + 1] <= segment) ++n;
    return n;
}

}  // namespace

#define NAME(isa) rebracket_backward_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin, count; i < end; i += count) run(*call, *gradients, i, count = together(*call, i, end));
}

#define CARRY(isa) rebracket_carry_##isa
#define EXPORT_CARRY(isa) CARRY(isa)
extern "C" void EXPORT_CARRY(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) carry(*call, *gradients, i);
}

#define PIECES(isa) rebracket_pieces_##isa
#define EXPORT_PIECES(isa) PIECES(isa)
extern "C" void EXPORT_PIECES(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        int64_t segment = i / call->H, n = sequence_of(*call, segment);
        piece(*call, *gradients, n, i % call->H, segment - call->first_segment[n]);
    }
}
