// One chunk of C writes of one sequence and head: its scores, and what its writes add to the state.
//
//     A = tril(q D k^T),  L = stril(r D k^T),  U = beta (V - (G * R) S) - beta L U
//
// D[i,j] is the decay between write j and read i, G[i] since the chunk began. R is stacked on Q in `rows` and L on A
// in `scores`, so that each product with the state or the keys is one.
#pragma once
#include "per_channel.h"
#include "per_token.h"

namespace {

// With a bonus a read meets its own token with weight u instead of 1, before any decay.
void add_bonus(HeadSlice& s) {
    const float* q = s.given + (s.stacked - C) * s.Kp;
    alignas(64) float own[C];
    vec acc[C] = {};
    for (int64_t d = 0; d < s.Kp; d += W)
        for (int i = 0; i < C; ++i) acc[i] += load(s.bonus + d) * load(q + i * s.Kp + d) * load(s.k + i * s.Kp + d);
    reduce16(acc, own);
    for (int i = 0; i < C; ++i) s.q_scores[i * C + i] = own[i];
}

void compute_scores(HeadSlice& s) {
    if (s.call.decay == PER_CHANNEL) {
        score_by_channel(s);
        if (s.call.bonus) add_bonus(s);
        return;
    }
    if (s.call.decay == NONE)
        weights_by_one(s);
    else
        weights_by_token(s);
    transpose(s.k, s.Kp, C, s.Kp, s.keys_t, C);
    product<0>(s.rows, s.Kp, 1, s.keys_t, C, s.scores, C, s.stacked, C, s.Kp, s.prefetch);
    apply_weights(s);
    if (s.call.bonus) add_bonus(s);
    for (int c = 0; c < C; ++c)
        for (int64_t d = 0; d < s.Kp; d += W) store(s.keys + c * s.Kp + d, s.until_end[c] * load(s.k + c * s.Kp + d));
    s.chunk_decay[0] = s.since_start[C - 1];
    if (s.call.bonus) {  // the read of row i has seen the decays before it
        for (int i = C - 1; i > 0; --i) s.since_start[i] = s.since_start[i - 1];
        s.since_start[0] = 1;
    }
}

// u_i = beta_i (v_i - G_i R_i S - sum over j < i of L_ij u_j), or beta v when nothing is read back; every row that is known is
// taken from all rows after it at once.
void solve_writes(HeadSlice& s) {
    if (s.written == s.v) return;
    for (int64_t n = 0; n < s.Vp; n += W) {
        vec x[C];
        for (int i = 0; i < C; ++i) {
            x[i] = load(s.v + i * s.Vp + n);
            if (s.erasing) x[i] -= s.since_start[i] * load(s.read + i * s.Vp + n);
        }
#pragma GCC unroll 16
        for (int j = 0; j < C; ++j) {
            if (s.unscaled) store(s.unscaled + j * s.Vp + n, x[j]);
            vec known = s.beta[j] * x[j];
            store(s.u + j * s.Vp + n, known);
            if (!s.erasing) continue;
#pragma GCC unroll 16
            for (int i = j + 1; i < C; ++i) x[i] -= s.scores[i * C + j] * known;
        }
    }
}

// total_i = G_i q_i . z + sum over j of A_ij.
void compute_normalizers(HeadSlice& s) {
    vec acc[C] = {};
    int64_t Kp = s.Kp;
    for (int64_t d = 0; d < Kp; d += W)
        for (int i = 0; i < C; ++i) acc[i] += load(s.q_rows + i * Kp + d) * load(s.z + d);
    reduce16(acc, s.total);
    for (int i = 0; i < C; ++i) {
        s.total[i] *= s.since_start[i];
        for (int j = 0; j <= i; ++j) s.total[i] += s.q_scores[i * C + j];
    }
}

// The factor of the read of row i.
INLINE float read_scale(const HeadSlice& s, int i) { return s.call.normalize ? reciprocal(s.total[i]) : s.call.scale; }

// Diag(G[C]) for one vector of channels at d.
INLINE vec chunk_decay_at(const HeadSlice& s, int64_t d) {
    return s.call.decay == PER_CHANNEL ? load(s.chunk_decay + d) : splat(s.chunk_decay[0]);
}

// to = Diag(G[C]) z + the keys as they reach the end.
void advance_key_sum(const HeadSlice& s, float* to) {
    for (int64_t d = 0; d < s.Kp; d += W) {
        vec x = chunk_decay_at(s, d) * load(s.z + d);
        for (int c = 0; c < C; ++c) x += load(s.keys + c * s.Kp + d);
        store(to + d, x);
    }
}

// The scores, what is read back of the state before the chunk, and from both what is written.
void compute_writes(HeadSlice& s) {
    compute_scores(s);
    if (s.erasing) product<0>(s.rows, s.Kp, 1, s.S, s.Vp, s.read, s.Vp, C, s.Vp, s.Kp, s.prefetch);
    solve_writes(s);
}

// to = Diag(G[C]) S + (D[C,.] * K)^T U.
void advance_state(HeadSlice& s, float* to) {
    product<2>(s.keys, 1, s.Kp, s.written, s.Vp, s.S, to, s.Vp, s.Kp, s.Vp, C, s.prefetch, s.chunk_decay,
               s.call.decay == PER_CHANNEL);
}

}  // namespace
