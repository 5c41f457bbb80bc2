// One chunk of C writes of one sequence and head: its terms, its scores, and what its writes really write.
//
//     A = tril(q D k^T),  L = stril(r D k^T),  U = beta (V - (G * R) S) - beta L U
//
// D[i,j] is the decay between write j and read i, G[i] since the chunk began. R and Q stand above each other in `rows`, L and
// A in `scores`, so that each product with the state or the keys is one.
#pragma once
#include "per_channel.h"
#include "per_token.h"

namespace {

// With a bonus a read meets its own token with weight u instead of 1, before any decay.
void add_bonus(Unit& u) {
    const float* q = u.plain + (u.stacked - C) * u.Kp;
    alignas(64) float own[C];
    vec acc[C] = {};
    for (int64_t d = 0; d < u.Kp; d += W)
        for (int i = 0; i < C; ++i) acc[i] += load(u.bonus + d) * load(q + i * u.Kp + d) * load(u.k + i * u.Kp + d);
    reduce16(acc, own);
    for (int i = 0; i < C; ++i) u.q_scores[i * C + i] = own[i];
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
INLINE float factor(const Unit& u, int i) { return u.call.normalize ? over(u.total[i]) : u.call.scale; }

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

}  // namespace
