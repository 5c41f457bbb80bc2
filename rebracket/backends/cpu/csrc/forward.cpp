// The recurrence forward; the state of one sequence and head stays in cache throughout.
//
//     O = scale ((G * Q) S + A U),  S' = Diag(G[C]) S + (D[C,.] * K)^T U
#include "chunk.h"

namespace {

// What multiplies the read of row i, put where the read is made from: on its decay since entry and its row of scores.
void scale_reads(Unit& u) {
    for (int i = 0; i < C; ++i) {
        float by = factor(u, i);
        u.entry[i] *= by;
        for (int n = i * C; n < i * C + C; n += W) store(u.q_scores + n, by * load(u.q_scores + n));
    }
}

// N vectors of columns of O from `n` on, into `to`; a few rows, which read nothing written after them, at a time.
template <int N>
INLINE void read_columns(Unit& u, float* to, int64_t ld, int64_t n) {
    for (int m = 0; m < C; m += TILE_R) {
        vec acc[TILE_R][N] = {};
        u.ahead.some();
        accumulate(acc, u.q_rows + m * u.Kp, u.Kp, 1, u.S + n, u.Vp, u.Kp);
        for (int r = 0; r < TILE_R; ++r)
            for (int i = 0; i < N; ++i) acc[r][i] *= u.entry[m + r];
        accumulate(acc, u.q_scores + m * C, C, 1, u.written + n, u.Vp, m + TILE_R);
        put(acc, to + m * ld + n, ld);
    }
}

void read_out(Unit& u, float* to, int64_t ld) {
    int64_t n = 0;
    for (; n + TILE_N * W <= u.Vp; n += TILE_N * W) read_columns<TILE_N>(u, to, ld, n);
    for (; n < u.Vp; n += W) read_columns<1>(u, to, ld, n);
}

// The outputs of the chunk's tokens, straight to where the caller wants them if whole rows of floats fit there.
void emit(Unit& u, const Tokens& at) {
    scale_reads(u);
    if (at.count == C && u.V == u.Vp && u.outputs.dtype == FLOAT32)
        return read_out(u, reinterpret_cast<float*>(u.outputs.at(at.first)), u.outputs.step / sizeof(float));
    read_out(u, u.out, u.Vp);
    write_rows(u.outputs, at.first, at.count, u.out + at.row * u.Vp, u.call.per_token * u.Vp);
}

void keep_state(Unit& u, int64_t segment) {
    if (!u.call.entries) return;
    float* to = saved(u, segment);
    for (int64_t d = 0; d < u.call.K; ++d) copy(to + d * u.call.V + u.v0, u.S + d * u.Vp, u.V);
    if (u.call.normalize && u.v0 == 0) copy(to + u.call.K * u.call.V, u.z, u.call.K);
}

// Writes [w, last) of a unit, at most a segment; `next` is the unit whose rows, from `next_w` on, will be read after them.
void segment(Unit& u, int64_t w, int64_t last, Unit& next, int64_t next_w) {
    const int64_t per_token = u.call.per_token;
    for (; w < last; w += C) {
        int writes = pack(u, w, last);
        const Unit& then = w + C < last ? u : next;
        ask_inputs(u.ahead, then, w + C < last ? w + C : next_w, then.outputs);
        resolve(u);
        if (u.call.normalize) add_up(u);
        emit(u, tokens(w, writes, per_token, per_token - 1));
        advance(u, u.S);
        if (u.call.normalize) advance_sum(u, u.z);
    }
}

void run(const Call& a, int64_t index, int64_t count) {
    arena.reserve(scratch(a) + count * (state_size(a) + sum_size(a)));
    Buffers buffers(a);
    Room<Unit, GROUP> units;
    for (int64_t i = 0; i < count; ++i) {
        buffers.S = arena.take(state_size(a)), buffers.z = arena.take(sum_size(a));
        enter(*new (&units[i]) Unit(a, index + i, buffers));
    }
    int64_t last = end(units[0]);
    for (int64_t w = begin(units[0]), s = 0; w < last; w += SEGMENT * C, ++s)
        for (int64_t i = 0; i < count; ++i) {
            keep_state(units[i], s);
            int64_t stop = w + SEGMENT * C < last ? w + SEGMENT * C : last;
            bool around = i + 1 == count;
            segment(units[i], w, stop, units[around ? 0 : i + 1], around ? stop : w);
        }
    for (int64_t i = 0; i < count; ++i) {
        leave(units[i]);
        if (units[i].wrong) *a.wrong = 1;
    }
}

}  // namespace

#define NAME(isa) rebracket_forward_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, int64_t begin, int64_t end) {
    for (int64_t i = begin, count; i < end; i += count) run(*call, i, count = together(*call, i, end));
}
