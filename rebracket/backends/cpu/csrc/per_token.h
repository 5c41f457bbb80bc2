// Scores under one decay a token, or none: products of rows, weighted afterwards.
#pragma once
#include "head_slice.h"

namespace {

// Bits of a lane mask: column j of row i is kept when j < i + 1 (upto) or j < i (below).
struct Triangle {
    alignas(64) int32_t upto[C][C], below[C][C];
    constexpr Triangle() : upto(), below() {
        for (int i = 0; i < C; ++i)
            for (int j = 0; j < C; ++j) upto[i][j] = j <= i ? -1 : 0, below[i][j] = j < i ? -1 : 0;
    }
};
constexpr Triangle triangle;

INLINE vec masked(vec x, const int32_t* mask) {
    ivec bits, m;
    __builtin_memcpy(&bits, &x, sizeof x);
    __builtin_memcpy(&m, mask, sizeof m);
    bits &= m;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

// D under one decay a token: every weight is exp of the sum over exactly its own interval.
void weights_by_token(HeadSlice& s) {
    vec sums[C / W] = {};
    float since = 0;
    for (int i = 0; i < C; ++i) {
        s.wrong |= !(s.log[i] <= 0);
        s.since_start[i] = since += s.log[i];
        for (int n = 0; n < C / W; ++n) {
            sums[n] += masked(splat(s.log[i]), triangle.below[i] + n * W);
            store(s.weights + i * C + n * W, masked(exp_negative(sums[n]), triangle.upto[i] + n * W));
        }
    }
    for (int n = 0; n < C; n += W) store(s.since_start + n, exp_negative(load(s.since_start + n)));
    for (int n = 0; n < C; n += W) store(s.until_end + n, load(s.weights + (C - 1) * C + n));
}

void weights_by_one(HeadSlice& s) {
    for (int i = 0; i < C * C; i += W) store(s.weights + i, masked(splat(1), triangle.upto[0] + i));
    fill(s.since_start, C, 1);
    fill(s.until_end, C, 1);
}

// Scores times weights, outside the triangle exactly zero. With a bonus a read has seen the decays before its own token.
void apply_weights(HeadSlice& s) {
    const bool bonus = s.call.bonus;
    const int32_t* mask = (bonus ? triangle.below : triangle.upto)[0];
    for (int i = 0; i < C * C; i += W) {
        float *l = s.scores + i, *a = s.q_scores + i;
        if (s.erasing) store(l, masked(load(l) * load(s.weights + i), triangle.below[0] + i));
        store(a, masked(load(a) * load(s.weights + (bonus && i >= C ? i - C : i)), mask + i));
    }
}

}  // namespace
