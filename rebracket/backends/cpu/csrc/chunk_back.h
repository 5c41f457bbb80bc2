// One chunk backward: from the gradients of its outputs and of the state behind it, those of its rows and of the state before.
//
//     dU = A^T dO + (D[C,.] * K) dS',  W = (I + beta L)^-T dU,  dV = beta W
//     dA = tril(dO U^T),  dL = -stril(beta W U^T)
//     dQ = (dA D) K + G * (dO S^T),  dR = (dL D) K - G * (beta W S^T),  dK = (dA D)^T Q + (dL D)^T R + D[C,.] * (U dS'^T)
//     dS = Diag(G[C]) dS' + (G * Q)^T dO - (G * R)^T beta W
#pragma once
#include "per_channel_back.h"
#include "per_token_back.h"

namespace {

// W from dU, in place from the last write to the first, and beta W; every row that is known is taken from all rows before it.
void solve_writes_back(HeadSlice& s, HeadGradients& g, float* beta_w) {
    vec dbeta[C] = {};
    for (int64_t n = 0; n < s.Vp; n += W) {
        vec x[C];
        for (int i = 0; i < C; ++i) x[i] = load(g.dU + i * s.Vp + n);
#pragma GCC unroll 16
        for (int i = C - 1; i >= 0; --i) {
            vec known = s.beta[i] * x[i];
            store(beta_w + i * s.Vp + n, known);
            dbeta[i] += x[i] * load(s.unscaled + i * s.Vp + n);
            if (!s.erasing) continue;
#pragma GCC unroll 16
            for (int j = 0; j < i; ++j) x[j] -= s.scores[i * C + j] * known;
        }
    }
    reduce16(dbeta, g.dbeta);
}

// The pair of a token with itself under a bonus: A_ii = sum of q_i bonus k_i.
void bonus_gradient(HeadSlice& s, HeadGradients& g, const float* own) {
    for (int64_t d = 0; d < s.Kp; d += W) {
        vec bonus = load(s.bonus + d), dbonus = load(g.dbonus + d);
        for (int64_t i = d; i < C * s.Kp; i += s.Kp) {
            int64_t row = i / s.Kp;
            vec q = load(s.given + i), k = load(s.k + i);
            store(g.drows + i, load(g.drows + i) + own[row] * bonus * k);
            store(g.dk + i, load(g.dk + i) + own[row] * bonus * q);
            dbonus += own[row] * q * k;
        }
        store(g.dbonus + d, dbonus);
    }
}

// What gradients_of back through total_i = G_i q_i . z + sum over j of A_ij, given the unweighted gradients of A and what came to q
// and k through the state. The output is a sum over total, so the total's gradient is minus the sum times its own, over total.
void normalizers_back(HeadSlice& s, HeadGradients& g) {
    alignas(64) float entered[C], scored[C];
    dots16(s.q_rows, s.Kp, g.drows, s.Kp, s.Kp, entered);
    dots16(s.q_scores, C, g.dscores, C, C, scored);
    for (int i = 0; i < C; ++i) {
        g.dtotal[i] = -(s.since_start[i] * entered[i] + scored[i]) * reciprocal(s.total[i]);
        for (int n = i * C; n < i * C + C; n += W) store(g.dscores + n, load(g.dscores + n) + g.dtotal[i]);
        for (int64_t d = 0; d < s.Kp; d += W) {
            store(g.drows + i * s.Kp + d, load(g.drows + i * s.Kp + d) + g.dtotal[i] * load(s.z + d));
            store(g.dk + i * s.Kp + d, load(g.dk + i * s.Kp + d) + load(g.dz + d));
        }
    }
}

// dz = Diag(G[C]) dz' + (G * Q)^T dtotal.
void key_sum_back(HeadSlice& s, HeadGradients& g) {
    for (int64_t d = 0; d < s.Kp; d += W) {
        vec x = chunk_decay_at(s, d) * load(g.dz + d);
        for (int i = 0; i < C; ++i) x += g.dtotal[i] * load(g.scaled + i * s.Kp + d);
        store(g.dz + d, x);
    }
}

// What passes from write j to read i, gradient times score, and the gradients of the scores times their weights; both of the
// triangle only.
void apply_weights_back(HeadSlice& s, HeadGradients& g) {
    const bool bonus = s.call.bonus;
    float* da = g.dscores + (s.stacked - C) * C;
    const int32_t* mask = (bonus ? triangle.below : triangle.upto)[0];
    for (int i = 0; i < C * C; i += W) {
        vec a = load(da + i), passed = a * load(s.q_scores + i);
        store(da + i, masked(a * load(s.weights + (bonus && i >= C ? i - C : i)), mask + i));
        if (s.erasing) {
            vec l = load(g.dscores + i);
            passed -= l * load(s.scores + i);
            store(g.dscores + i, masked(-l * load(s.weights + i), triangle.below[0] + i));
        }
        store(g.flows + i, passed);
    }
}

// dU, and from it W and beta W, which is dV; returns dV.
float* writes_back(HeadSlice& s, HeadGradients& g) {
    int64_t Kp = s.Kp, Vp = s.Vp;
    float* dO = g.sources + (s.stacked - C) * Vp;
    product<0>(s.keys, Kp, 1, g.dS, Vp, g.dU, Vp, C, Vp, Kp, s.prefetch);
    for (int m = 0; m < C; m += TILE_R)  // write j is read by no row before it
        product<1>(s.q_scores + m + m * C, 1, C, dO + m * Vp, Vp, g.dU + m * Vp, Vp, TILE_R, Vp, C - m, s.prefetch);
    if (s.written == s.v) return g.dU;
    float* beta_w = s.erasing ? g.sources : g.sources + C * Vp;
    solve_writes_back(s, g, beta_w);
    return beta_w;
}

// What a row of [R; Q] has seen of the state on entry, with the sign of what it does with it.
void entry_signs(const HeadSlice& s, float* to) {
    for (int i = 0; i < s.stacked; ++i) to[i] = s.erasing && i < C ? -s.since_start[i] : s.since_start[i % C];
}

// dS = Diag(G[C]) dS' + [-G R; G Q]^T [beta W; dO].
void state_back(HeadSlice& s, HeadGradients& g, const float* sign_entry) {
    int64_t Kp = s.Kp, Vp = s.Vp;
    for (int i = 0; i < s.stacked; ++i)
        for (int64_t d = 0; d < Kp; d += W) store(g.scaled + i * Kp + d, sign_entry[i] * load(s.rows + i * Kp + d));
    product<2>(g.scaled, 1, Kp, g.sources, Vp, g.dS, Vp, Kp, Vp, s.stacked, s.prefetch, s.chunk_decay, s.call.decay == PER_CHANNEL);
}

// All gradients of a chunk; returns that of V.
float* chunk_back(HeadSlice& s, HeadGradients& g) {
    int64_t Kp = s.Kp, Vp = s.Vp;
    int stacked = s.stacked;
    float* dv = writes_back(s, g);
    transpose(g.sources, Vp, stacked, Vp, g.sources_t, stacked);
    transpose(s.written, Vp, C, Vp, g.u_t, C);
    // Scores: dL above dA, weighted by the decays.
    product<0>(g.sources, Vp, 1, g.u_t, C, g.dscores, C, stacked, C, Vp, s.prefetch);
    // Rows: what came through the state.
    product<0>(s.S, Vp, 1, g.sources_t, stacked, g.rows_t, stacked, Kp, stacked, Vp, s.prefetch);
    transpose(g.rows_t, stacked, Kp, stacked, g.drows, Kp);
    product<0>(g.dS, Vp, 1, g.u_t, C, g.rows_t, C, Kp, C, Vp, s.prefetch);
    transpose(g.rows_t, C, Kp, C, g.dk, Kp);
    if (s.call.normalize) normalizers_back(s, g);
    alignas(64) float own[C];
    for (int i = 0; i < C; ++i) own[i] = g.dscores[(stacked - C + i) * C + i];
    apply_weights_back(s, g);
    // Rows: and what came through the scores.
    float sign_entry[2 * C];
    entry_signs(s, sign_entry);
    for (int64_t d = 0; d < Kp && s.call.decay != NONE; d += 16) dots16(s.S + d * Vp, Vp, g.dS + d * Vp, Vp, Vp, g.overlap + d);
    if (s.call.decay == PER_CHANNEL)
        channel_gradients(s, g);
    else
        row_gradient(s, g, sign_entry);
    if (s.call.bonus) bonus_gradient(s, g, own);
    state_back(s, g, sign_entry);
    if (s.call.normalize) key_sum_back(s, g);
    return dv;
}

}  // namespace
