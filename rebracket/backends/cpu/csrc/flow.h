// One sequence and head backward: what flows back through it, and the buffers of its current chunk.
#pragma once
#include "chunk.h"

namespace {

// What flows back through one chunk. R and Q, and beta W and dO, stand above each other.
struct FlowBuffers {
    float *ends, *dU;               // [beta W; dO] [2C,Vp]; dU, then W [C,Vp]
    float *ends_turned, *u_turned;  // the same transposed, [Vp,2C] and [Vp,C]
    float *dscores, *passed;        // [dL; dA] weighted by D, [2C,C]; dA A + dL L, [C,C]
    float *turned, *drows, *dk;     // gradients of [R; Q] and K, transposed [Kp,2C], [2C,Kp], [C,Kp]
    float *scaled;                  // [-G R; G Q]
    float *dlog, *dbeta, *dtotal;   // [C,1 or Kp], [C], [C]
    float* overlap;                 // rows of S times rows of dS [Kp]: what a decay's gradient has from state to state

    FlowBuffers(const Buffers& u) {
        ends = arena.take(2 * C * u.Vp), dU = arena.take(C * u.Vp);
        ends_turned = arena.take(2 * C * u.Vp), u_turned = arena.take(C * u.Vp);
        dscores = arena.take(2 * C * C), passed = arena.take(C * C);
        turned = arena.take(2 * C * u.Kp), drows = arena.take(2 * C * u.Kp), dk = arena.take(C * u.Kp);
        scaled = arena.take(2 * C * u.Kp), dlog = arena.take(C * u.Kp), dbeta = arena.take(C), dtotal = arena.take(C), overlap = arena.take(u.Kp);
    }
};

// One sequence and head backward, with the buffers of its current chunk.
struct Flow : FlowBuffers {
    float *dS, *dz;  // gradients of the state [Kp,Vp] and of the sum of keys [Kp] after the chunk, then before it
    float* dbonus;   // [Kp], so far
    Stream out, q, k, v, r, beta, log_decay;

    Flow(const Gradients& g, const Unit& u, const FlowBuffers& buffers) : FlowBuffers(buffers) {
        const Call& a = u.call;
        dS = arena.take(state_size(a)), dz = arena.take(u.Kp), dbonus = arena.take(u.Kp);
        auto stream = [&](const Rows& x, int64_t n) { return Stream(x, u.batch, u.h, a.H, 0, n); };
        auto columns = [&](const Rows& x) { return Stream(x, u.batch, u.h, a.H, u.v0, u.V); };
        out = columns(g.out), q = stream(g.q, a.K), k = stream(g.k, a.K), v = columns(g.v);
        r = stream(g.r, a.K), beta = stream(g.beta, 1), log_decay = stream(g.log_decay, a.decay == PER_CHANNEL ? a.K : 1);
    }
    // Lets the gradients of writes [w, w + C) be asked for.
    void ask(Ahead& ahead, int64_t w, int64_t end) const { ::ask(ahead, {&out, &q, &k, &v, &r, &log_decay}, w, end); }
};

// Floats that these take from the arena: for a chunk of any head, and for a head.
int64_t flow_size(const Call& a) { return C * padded(a.V) * 6 + 3 * C * C + (C * 8 + 1) * padded(a.K) + 2 * C; }
int64_t head_size(const Call& a) { return state_size(a) + 2 * padded(a.K); }

}  // namespace
