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

}  // namespace
