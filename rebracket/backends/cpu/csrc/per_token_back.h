// Gradients of a chunk's rows and decays under one decay a token, or none.
#pragma once
#include "flow.h"

namespace {

INLINE float dot(const float* x, const float* y, int64_t n) {
    vec acc = {};
    for (int64_t i = 0; i < n; i += W) acc += load(x + i) * load(y + i);
    return sum(acc);
}

// d log a_m, what passes through the decay of write m: from earlier writes to this and later reads, from the state on entry to
// this and later reads, from earlier writes to the state on exit, and from state to state. Every term is a product that holds
// the decay itself; nothing is subtracted. A read that comes before its own token's decay (bonus) counts one token later.
//
//     sum over i >= m, j < m of dA_ij A_ij + dL_ij L_ij  +  sum over i >= m of entry_i  +  sum over j < m of exit_j  +  carried
void decay_gradient(Unit& u, Flow& f, const float* entry, const float* exit, float carried) {
    vec later[C / W] = {}, sums[C];
    float read = carried, written[C + 1] = {}, passed[C];
    for (int j = 0; j < C; ++j) written[j + 1] = written[j] + exit[j];
    for (int m = C - 1; m >= 0; --m) {
        int i = u.call.bonus ? m + 1 : m;
        sums[m] = vec{};
        for (int n = 0; n < C / W; ++n) {
            if (i < C) later[n] += load(f.passed + i * C + n * W);
            sums[m] += keep(later[n], triangle.below[m] + n * W);
        }
        if (i < C) read += entry[i];
        f.dlog[m] = read + written[m];
    }
    reduce16(sums, passed);
    for (int m = 0; m < C; ++m) f.dlog[m] = u.log[m] < LEAST_LOG ? 0 : f.dlog[m] + passed[m];
}

// Gradients of the rows under one decay a token, from what came through the state and the weighted scores.
void row_gradient(Unit& u, Flow& f, const float* sign_entry) {
    int64_t Kp = u.Kp;
    if (u.call.decay != NONE) {
        alignas(64) float read[C], recalled[C] = {}, entry[C], exit[C];
        const int64_t q = (u.stacked - C) * Kp;
        dots16(u.rows + q, Kp, f.drows + q, Kp, Kp, read);
        if (u.erasing) dots16(u.rows, Kp, f.drows, Kp, Kp, recalled);
        dots16(u.k, Kp, f.dk, Kp, Kp, exit);
        for (int i = 0; i < C; ++i) {
            entry[i] = sign_entry[u.stacked - C + i] * read[i] - (u.erasing ? u.entry[i] * recalled[i] : 0);
            exit[i] *= u.leave[i];
        }
        vec carried = {};
        for (int64_t d = 0; d < Kp; d += W) carried += load(f.overlap + d);
        decay_gradient(u, f, entry, exit, u.gain[0] * (sum(carried) + (u.call.normalize ? dot(u.z, f.dz, Kp) : 0)));
    }
    product<2>(f.dscores, C, 1, u.k, Kp, f.drows, Kp, u.stacked, Kp, C, u.ahead, sign_entry, 1);
    product<2>(f.dscores, 1, C, u.rows, Kp, f.dk, Kp, C, Kp, u.stacked, u.ahead, u.leave, 1);
}

}  // namespace
