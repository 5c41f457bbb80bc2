// Scores under one decay a channel. A pair of a read i and an earlier key j needs the product of the factors between them,
// another for every channel. It splits at a border between the two into two factors <= 1: at the middle of the chunk if they lie
// on its two sides, else at the middle of their half. Pairs within a block of four are made one by one.
#pragma once
#include "head_slice.h"

namespace {

// A square of scores, entry (i, j) at [i * BLOCK + j], into rows C apart.
INLINE void put_block(const vec acc[BLOCK * BLOCK], float* to) {
    alignas(64) float block[BLOCK * BLOCK];
    reduce16(acc, block);
    for (int i = 0; i < BLOCK; ++i)
        for (int j = 0; j < BLOCK; ++j) to[i * C + j] = block[i * BLOCK + j];
}

// What a read meets on its way back to the beginning of its block: the keys, with the factors in between.
template <bool OWN>
INLINE vec walk_back(vec x, const vec* a, const vec* k, int i, vec* acc) {
#pragma GCC unroll 4
    for (int j = i; j >= 0; --j) {
        if (OWN || j < i) acc[i * BLOCK + j] += x * k[j];
        x *= a[j];
    }
    return x;
}

// Block b for itself: its factors, its scores, its rows scaled to its borders.
template <bool ERASING, bool BONUS>
void score_block(HeadSlice& s, int b) {
    const int64_t Kp = s.Kp, top = b * BLOCK * Kp, q0 = (s.stacked - C) * Kp + top;
    vec q_scores[BLOCK * BLOCK] = {}, r_scores[BLOCK * BLOCK] = {};
    ivec fine = splat(0) == splat(0);
    for (int64_t d = 0; d < Kp; d += W) {
        vec a[BLOCK], k[BLOCK], end = splat(1);
        for (int i = 0; i < BLOCK; ++i) {
            vec log = load(s.channel + top + i * Kp + d);
            fine &= log <= splat(0);
            a[i] = exp_negative(log), k[i] = load(s.k + top + i * Kp + d);
            store(s.channel + top + i * Kp + d, a[i]);
        }
        for (int j = BLOCK - 1; j >= 0; --j) {
            store(s.keys_within + top + j * Kp + d, end * k[j]);
            end *= a[j];
        }
        store(s.products + b * Kp + d, end);
#pragma GCC unroll 4
        for (int i = 0; i < BLOCK; ++i) {
            vec q = load(s.given + q0 + i * Kp + d);
            if (BONUS) {  // a read before the decay of its own token, which add_bonus lets it meet
                if (i) q = walk_back<true>(q, a, k, i - 1, q_scores + BLOCK);
            } else {
                q = walk_back<true>(q, a, k, i, q_scores);
            }
            store(s.within + q0 + i * Kp + d, q);
            if (ERASING) store(s.within + top + i * Kp + d, walk_back<false>(load(s.given + top + i * Kp + d), a, k, i, r_scores));
        }
    }
    for (int n = 0; n < W; ++n) s.wrong |= !fine[n];
    put_block(q_scores, s.q_scores + b * BLOCK * (C + 1));
    if (ERASING) put_block(r_scores, s.scores + b * BLOCK * (C + 1));
}

// Reads of block I and keys of block J, both scaled to the border between them.
void score_pair(const float* reads, const float* keys, int64_t Kp, float* to) {
    vec acc[BLOCK * BLOCK] = {};
    for (int64_t d = 0; d < Kp; d += W) {
        vec k[BLOCK];
        for (int j = 0; j < BLOCK; ++j) k[j] = load(keys + j * Kp + d);
        for (int i = 0; i < BLOCK; ++i) {
            vec x = load(reads + i * Kp + d);
            for (int j = 0; j < BLOCK; ++j) acc[i * BLOCK + j] += x * k[j];
        }
    }
    put_block(acc, to);
}

void score_pairs(const HeadSlice& s, const float* within, const float* half, float* scores) {
    const int64_t Kp = s.Kp, block = BLOCK * Kp;
    auto at = [&](int i, int j) { return scores + (i * C + j) * BLOCK; };
    score_pair(within + block, s.keys_within, Kp, at(1, 0));
    score_pair(within + 2 * block, s.keys_half, Kp, at(2, 0));
    score_pair(within + 2 * block, s.keys_within + block, Kp, at(2, 1));
    score_pair(half, s.keys_half, Kp, at(3, 0));
    score_pair(half, s.keys_within + block, Kp, at(3, 1));
    score_pair(within + 3 * block, s.keys_within + 2 * block, Kp, at(3, 2));
}

// Rows `from` of a block, times a vector of channels.
INLINE void scale_block(const float* from, vec by, int64_t Kp, float* to) {
    for (int i = 0; i < BLOCK; ++i) store(to + i * Kp, by * load(from + i * Kp));
}

// From rows scaled within their block to rows scaled within their half, and from the beginning or to the end of the chunk.
void scale_blocks(HeadSlice& s) {
    const int64_t Kp = s.Kp, block = BLOCK * Kp;
    for (int64_t d = 0; d < Kp; d += W) {
        const vec a = load(s.products + d), b = load(s.products + Kp + d), c = load(s.products + 2 * Kp + d),
                  e = load(s.products + 3 * Kp + d), one = splat(1);
        const vec since[] = {one, a, a * b, a * b * c}, until[] = {b * c * e, c * e, e, one};
        store(s.chunk_decay + d, a * b * c * e);
        scale_block(s.keys_within + d, b, Kp, s.keys_half + d);
        for (int i = 0; i < C / BLOCK; ++i) scale_block(s.keys_within + i * block + d, until[i], Kp, s.keys + i * block + d);
        for (int64_t rows = 0; rows < s.stacked / C; ++rows) {
            const float* within = s.within + rows * C * Kp + d;
            scale_block(within + 3 * block, c, Kp, s.half + rows * block + d);
            for (int i = 0; i < C / BLOCK; ++i) scale_block(within + i * block, since[i], Kp, s.rows + rows * C * Kp + i * block + d);
        }
    }
}

void score_by_channel(HeadSlice& s) {
    auto score = s.erasing ? score_block<true, false> : s.call.bonus ? score_block<false, true> : score_block<false, false>;
    fill(s.scores, s.stacked * C, 0);
    for (int b = 0; b < C / BLOCK; ++b) score(s, b);
    scale_blocks(s);
    const int64_t q = s.stacked / C - 1;
    score_pairs(s, s.within + q * C * s.Kp, s.half + q * BLOCK * s.Kp, s.q_scores);
    if (s.erasing) score_pairs(s, s.within, s.half, s.scores);
    fill(s.since_start, C, 1);
    fill(s.weights, C * C, 1);
}

}  // namespace
