// Scores under one decay a token, or none: products of rows, weighted afterwards.
#pragma once
#include "unit.h"

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

INLINE vec keep(vec x, const int32_t* mask) {
    ivec bits, m;
    __builtin_memcpy(&bits, &x, sizeof x);
    __builtin_memcpy(&m, mask, sizeof m);
    bits &= m;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

// D under one decay a token: every weight is exp of the sum over exactly its own interval.
void weights_by_token(Unit& u) {
    vec sums[C / W] = {};
    float since = 0;
    for (int i = 0; i < C; ++i) {
        u.wrong |= !(u.log[i] <= 0);
        u.entry[i] = since += u.log[i];
        for (int n = 0; n < C / W; ++n) {
            sums[n] += keep(splat(u.log[i]), triangle.below[i] + n * W);
            store(u.weights + i * C + n * W, keep(exp_negative(sums[n]), triangle.upto[i] + n * W));
        }
    }
    for (int n = 0; n < C; n += W) store(u.entry + n, exp_negative(load(u.entry + n)));
    for (int n = 0; n < C; n += W) store(u.leave + n, load(u.weights + (C - 1) * C + n));
}

void weights_by_one(Unit& u) {
    for (int i = 0; i < C * C; i += W) store(u.weights + i, keep(splat(1), triangle.upto[0] + i));
    fill(u.entry, C, 1);
    fill(u.leave, C, 1);
}

// Scores times weights, outside the triangle exactly zero. With a bonus a read has seen the decays before its own token.
void weigh(Unit& u) {
    const bool bonus = u.call.bonus;
    const int32_t* mask = (bonus ? triangle.below : triangle.upto)[0];
    for (int i = 0; i < C * C; i += W) {
        float *l = u.scores + i, *a = u.q_scores + i;
        if (u.erasing) store(l, keep(load(l) * load(u.weights + i), triangle.below[0] + i));
        store(a, keep(load(a) * load(u.weights + (bonus && i >= C ? i - C : i)), mask + i));
    }
}

}  // namespace
