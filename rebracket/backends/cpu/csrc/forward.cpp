// The recurrence forward; the state of one sequence and head stays in cache throughout.
//
//     O = scale ((G * Q) S + A U),  S' = Diag(G[C]) S + (D[C,.] * K)^T U
#include "chunk.h"

namespace {

void chunk(Unit& u) {
    resolve(u);
    if (u.call.normalize) count(u);
    for (int m = 0; m < C; m += TILE_R)  // rows m, m + 1, ... read nothing written after them
        product<2>(u.q_scores + m * C, C, 1, u.written, u.Vp, u.out + m * u.Vp, u.Vp, TILE_R, u.Vp, m + TILE_R, u.ahead,
                   u.entry + m, 1);
    advance(u, u.S);
}

void emit(Unit& u, int writes, Place& at) {
    const Call& a = u.call;
    for (int c = 0; c < writes; ++c) {
        float scale = !a.normalize ? a.scale : u.total[c] == 0 ? 0 : 1 / u.total[c];
        if (at.write == a.per_token - 1) write_row(u.outputs, at.token, u.out + c * u.Vp, scale);
        at.advance(a.per_token);
    }
}

void keep_state(Unit& u, int64_t chunk) {
    if (!u.call.entries || chunk % SEGMENT) return;
    float* to = saved(u, chunk / SEGMENT);
    for (int64_t d = 0; d < u.call.K; ++d) copy(to + d * u.call.V + u.v0, u.S + d * u.Vp, u.V);
}

void run(const Call& a, int64_t index) {
    arena.reserve(scratch(a));
    Unit u(a, index);
    if (u.V <= 0) return;
    enter(u);
    Place in{begin(u) / a.per_token}, out = in;
    for (int64_t w = begin(u), n = 0; w < end(u); w += C, ++n) {
        keep_state(u, n);
        int writes = pack(u, w, end(u), in);
        ask_inputs(u, w + C, end(u), &u.outputs);
        chunk(u);
        emit(u, writes, out);
    }
    leave(u);
    if (u.wrong) *a.wrong = 1;
}

}  // namespace

#define NAME(isa) rebracket_forward_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(*call, i);
}
