// One sequence, head and slice of value columns in the backward pass: its gradients, and those of its current chunk.
#pragma once
#include "chunk.h"

namespace {

// Gradients of one chunk. As R is stacked on Q, beta W is stacked on dO.
struct ChunkGradients {
    float *sources, *dU;           // [beta W; dO] [2C,Vp]; dU, then W [C,Vp]
    float *sources_t, *u_t;        // sources and U transposed, [Vp,2C] and [Vp,C]
    float *dscores, *flows;        // [dL; dA] weighted by D, [2C,C]; dA A + dL L, [C,C]
    float *rows_t, *drows, *dk;    // gradients of [R; Q] and K, transposed [Kp,2C], [2C,Kp], [C,Kp]
    float *scaled;                 // [-G R; G Q]
    float *dlog, *dbeta, *dtotal;  // [C,1 or Kp], [C], [C]
    float* overlap;                // rows of S times rows of dS [Kp]: what a decay's gradient has from state to state

    explicit ChunkGradients(const ChunkBuffers& chunk) {
        const int64_t Kp = chunk.Kp, Vp = chunk.Vp;
        sources = arena.take(2 * C * Vp), dU = arena.take(C * Vp);
        sources_t = arena.take(2 * C * Vp), u_t = arena.take(C * Vp);
        dscores = arena.take(2 * C * C), flows = arena.take(C * C);
        rows_t = arena.take(2 * C * Kp), drows = arena.take(2 * C * Kp), dk = arena.take(C * Kp);
        scaled = arena.take(2 * C * Kp), dlog = arena.take(C * Kp), dbeta = arena.take(C), dtotal = arena.take(C);
        overlap = arena.take(Kp);
    }
};

// The gradients of a HeadSlice, with those of its current chunk.
struct HeadGradients : ChunkGradients {
    float *dS, *dz;  // gradients of the state [Kp,Vp] and of the sum of keys [Kp] after the chunk, then before it
    float* dbonus;   // [Kp], so far
    Stream out, q, k, v, r, beta, log_decay;

    HeadGradients(const Gradients& all, const HeadSlice& s, const ChunkGradients& chunk) : ChunkGradients(chunk) {
        const Call& a = s.call;
        dS = arena.take(state_size(a)), dz = arena.take(s.Kp), dbonus = arena.take(s.Kp);
        auto stream = [&](const Rows& x, int64_t n) { return Stream(x, s.batch, s.h, a.H, 0, n); };
        auto columns = [&](const Rows& x) { return Stream(x, s.batch, s.h, a.H, s.v0, s.V); };
        out = columns(all.out), q = stream(all.q, a.K), k = stream(all.k, a.K), v = columns(all.v);
        r = stream(all.r, a.K), beta = stream(all.beta, 1), log_decay = stream(all.log_decay, a.decay == PER_CHANNEL ? a.K : 1);
    }
    // Notes the rows of writes [w, w + C) as wanted by the next chunk backward.
    void want(Prefetch& prefetch, int64_t w, int64_t end) const { ::want(prefetch, {&out, &q, &k, &v, &r, &log_decay}, w, end); }
};

// Floats that they take from the arena: the gradients of a chunk, and those of a head.
int64_t chunk_gradients_size(const Call& a) { return C * padded(a.V) * 6 + 3 * C * C + (C * 8 + 1) * padded(a.K) + 2 * C; }
int64_t head_gradients_size(const Call& a) { return state_size(a) + 2 * padded(a.K); }

}  // namespace
