// Gradients of a chunk's rows and decays under one decay a token, or none.
#pragma once
#include "head_gradients.h"

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
void decay_gradient(HeadSlice& s, HeadGradients& g, const float* entry, const float* exit, float carried) {
    vec later[C / W] = {}, sums[C];
    float read = carried, written[C + 1] = {}, passed[C];
    for (int j = 0; j < C; ++j) written[j + 1] = written[j] + exit[j];
    for (int m = C - 1; m >= 0; --m) {
        int i = s.call.bonus ? m + 1 : m;
        sums[m] = vec{};
        for (int n = 0; n < C / W; ++n) {
            if (i < C) later[n] += load(g.flows + i * C + n * W);
            sums[m] += masked(later[n], triangle.below[m] + n * W);
        }
        if (i < C) read += entry[i];
        g.dlog[m] = read + written[m];
    }
    reduce16(sums, passed);
    for (int m = 0; m < C; ++m) g.dlog[m] = s.log[m] < LEAST_LOG ? 0 : g.dlog[m] + passed[m];
}

// Gradients of the rows under one decay a token, from what came through the state and the weighted scores.
void row_gradient(HeadSlice& s, HeadGradients& g, const float* sign_entry) {
    int64_t Kp = s.Kp;
    if (s.call.decay != NONE) {
        alignas(64) float read[C], recalled[C] = {}, entry[C], exit[C];
        const int64_t q = (s.stacked - C) * Kp;
        dots16(s.rows + q, Kp, g.drows + q, Kp, Kp, read);
        if (s.erasing) dots16(s.rows, Kp, g.drows, Kp, Kp, recalled);
        dots16(s.k, Kp, g.dk, Kp, Kp, exit);
        for (int i = 0; i < C; ++i) {
            entry[i] = sign_entry[s.stacked - C + i] * read[i] - (s.erasing ? s.since_start[i] * recalled[i] : 0);
            exit[i] *= s.until_end[i];
        }
        vec carried = {};
        for (int64_t d = 0; d < Kp; d += W) carried += load(g.overlap + d);
        decay_gradient(s, g, entry, exit, s.chunk_decay[0] * (sum(carried) + (s.call.normalize ? dot(s.z, g.dz, Kp) : 0)));
    }
    product<2>(g.dscores, C, 1, s.k, Kp, g.drows, Kp, s.stacked, Kp, C, s.prefetch, sign_entry, 1);
    product<2>(g.dscores, 1, C, s.rows, Kp, g.dk, Kp, C, Kp, s.stacked, s.prefetch, s.until_end, 1);
}

}  // namespace
