// Sixteen dot products finished at once.
#pragma once
#include "products.h"

namespace {

// to[i] = sum of the lanes of acc[i].
INLINE void reduce16(const vec acc[16], float* to) {
#if WIDTH == 16
    vec a[8], b[4];
    for (int i = 0; i < 8; ++i) a[i] = low(acc[2 * i], acc[2 * i + 1]) + high(acc[2 * i], acc[2 * i + 1]);
    for (int i = 0; i < 4; ++i) b[i] = low2(a[2 * i], a[2 * i + 1]) + high2(a[2 * i], a[2 * i + 1]);
    vec left = even4(b[0], b[1]) + odd4(b[0], b[1]), right = even4(b[2], b[3]) + odd4(b[2], b[3]);
    store(to, even4(left, right) + odd4(left, right));
#else
    for (int i = 0; i < 16; ++i) {
        float total = 0;
        for (int j = 0; j < W; ++j) total += acc[i][j];
        to[i] = total;
    }
#endif
}

// to[i] = x_i . y_i for 16 rows of each, n entries, a multiple of W.
INLINE void dots16(const float* x, int64_t ldx, const float* y, int64_t ldy, int64_t n, float* to) {
    vec acc[16] = {};
    for (int64_t d = 0; d < n; d += W)
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) acc[i] += load(x + i * ldx + d) * load(y + i * ldy + d);
    reduce16(acc, to);
}

}  // namespace
