// Sixteen dot products finished at once.
#pragma once
#include "products.h"

namespace {

// A vector whose lane i is the sum of the lanes of acc[i].
INLINE vec lane_sums(const vec acc[W]) {
    vec a[W / 2], b[W / 4];
    for (int i = 0; i < W / 2; ++i) a[i] = low(acc[2 * i], acc[2 * i + 1]) + high(acc[2 * i], acc[2 * i + 1]);
    for (int i = 0; i < W / 4; ++i) b[i] = low2(a[2 * i], a[2 * i + 1]) + high2(a[2 * i], a[2 * i + 1]);
#if WIDTH == 16
    vec left = even4(b[0], b[1]) + odd4(b[0], b[1]), right = even4(b[2], b[3]) + odd4(b[2], b[3]);
    return even4(left, right) + odd4(left, right);
#elif WIDTH == 8
    return even4(b[0], b[1]) + odd4(b[0], b[1]);
#else
    return b[0];
#endif
}

// to[i] = sum of the lanes of acc[i].
INLINE void reduce16(const vec acc[16], float* to) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += W) store(to + i, lane_sums(acc + i));
}

// to[i] = x_i . y_i for 16 rows of each, n entries, a multiple of W; as many at a time as there are registers for.
INLINE void dots16(const float* x, int64_t ldx, const float* y, int64_t ldy, int64_t n, float* to) {
    constexpr int ROWS = W == 16 ? 16 : 8;
    for (int top = 0; top < 16; top += ROWS, x += ROWS * ldx, y += ROWS * ldy) {
        vec acc[ROWS] = {};
        for (int64_t d = 0; d < n; d += W)
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; ++i) acc[i] += load(x + i * ldx + d) * load(y + i * ldy + d);
        for (int i = 0; i < ROWS; i += W) store(to + top + i, lane_sums(acc + i));
    }
}

}  // namespace
