// Small matrix products on packed float rows: C[M x N] = start + A[M x depth] B[depth x N].
#pragma once
#include "vector.h"

namespace {

// A tile of R rows and N vectors: acc += A B over `depth`; A is read at a[r * row + d * step], B at b[d * ldb].
template <int R, int N>
INLINE void accumulate(vec (&acc)[R][N], const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, int depth) {
    for (int d = 0; d < depth; ++d) {
        vec bv[N];
        for (int n = 0; n < N; ++n) bv[n] = load(b + d * ldb + n * W);
        for (int r = 0; r < R; ++r) {
            vec x = splat(a[r * row + d * step]);
            for (int n = 0; n < N; ++n) acc[r][n] += x * bv[n];
        }
    }
}

template <int R, int N>
INLINE void store_tile(const vec (&acc)[R][N], float* c, int64_t ldc) {
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) store(c + r * ldc + n * W, acc[r][n]);
}

// What the registers hold: 16 sums of 32 registers, 12 of 16 where a multiply-add needs no other.
#if WIDTH == 16
constexpr int TILE_R = 8, TILE_N = 2;
#elif WIDTH == 8
constexpr int TILE_R = 4, TILE_N = 3;
#else
constexpr int TILE_R = 4, TILE_N = 2;
#endif

template <int N>
struct Vectors {};

// Calls panel(n, Vectors<count>) for all columns from n = 0 on; four vectors are better two pairs than three and one. `panel` has to be
// inlined always: where it is called twice, it would read its captures from memory between multiplications.
template <class Panel>
INLINE void in_panels(int64_t N, const Panel& panel) {
    int64_t n = 0;
    for (; n + TILE_N * W <= N && (TILE_N == 2 || N - n != 4 * W); n += TILE_N * W) panel(n, Vectors<TILE_N>());
    for (; TILE_N > 2 && n + 2 * W <= N; n += 2 * W) panel(n, Vectors<2>());
    for (; n < N; n += W) panel(n, Vectors<1>());
}

// TILE_R rows. START: 0 from zero, 1 from `from`, 2 from gain[r * gain_step] * from, whose rows are `ldc` apart too.
template <int START, int N>
INLINE void tile(Vectors<N>, const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, const float* from, float* c,
                 int64_t ldc, int depth, const float* gain, int gain_step) {
    vec acc[TILE_R][N];
    for (int r = 0; r < TILE_R; ++r)
        for (int n = 0; n < N; ++n) {
            acc[r][n] = START == 0 ? vec{} : load(from + r * ldc + n * W);
            if (START == 2) acc[r][n] *= gain[r * gain_step];
        }
    accumulate(acc, a, row, step, b, ldb, depth);
    store_tile(acc, c, ldc);
}

// The cache lines that the next chunk will read, prefetched a few at a time between tiles, more
// between larger ones: all at once they would stall. They go to
// the second level, since the first is full of this chunk.
struct Prefetch {
    static constexpr int STREAMS = 6, LINES = W == 16 ? 12 : 6;
    const char* row[STREAMS];
    int64_t step[STREAMS], bytes[STREAMS];
    int streams = 0, stream = 0, rows = 0, at = 0;
    int64_t line = 0;

    // Forgets what was wanted; `count` rows of each tensor that is added are.
    INLINE void start(int count) { streams = stream = at = 0, line = 0, rows = count; }
    // A tensor by its first row, the bytes from row to row, and the bytes of a row.
    INLINE void add(const char* first, int64_t to_next, int64_t size) {
        row[streams] = first, step[streams] = to_next, bytes[streams++] = size;
    }
    INLINE void issue() {
        for (int i = 0; i < LINES && stream < streams && rows; ++i) {
            __builtin_prefetch(row[stream] + at * step[stream] + line, 0, 2);
            if ((line += 64) < bytes[stream]) continue;
            line = 0;
            if (++at == rows) at = 0, ++stream;
        }
    }
};

// C = gain * from + A B; M a multiple of TILE_R, N a multiple of W.
template <int START>
__attribute__((noinline)) void product(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, const float* from,
                                       float* c, int64_t ldc, int M, int N, int depth, Prefetch& prefetch, const float* gain = nullptr,
                                       int gain_step = 0) {
    in_panels(N, [&](int64_t n, auto vectors) __attribute__((always_inline)) {
        for (int m = 0; m < M; m += TILE_R) {
            prefetch.issue();
            tile<START>(vectors, a + m * row, row, step, b + n, ldb, from + m * ldc + n, c + m * ldc + n, ldc, depth, gain + m * gain_step,
                        gain_step);
        }
    });
}

// The same in place.
template <int START>
INLINE void product(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, float* c, int64_t ldc, int M, int N,
                    int depth, Prefetch& prefetch, const float* gain = nullptr, int gain_step = 0) {
    product<START>(a, row, step, b, ldb, c, c, ldc, M, N, depth, prefetch, gain, gain_step);
}

// Of every group of four lanes of a and b: the lower or upper halves in turns, and the lower or upper pairs.
#if WIDTH == 16
INLINE vec low(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29); }
INLINE vec high(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31); }
INLINE vec low2(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29); }
INLINE vec high2(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31); }
INLINE vec even4(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27); }
INLINE vec odd4(vec a, vec b) { return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31); }
#elif WIDTH == 8
INLINE vec low(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
INLINE vec high(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15); }
INLINE vec low2(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13); }
INLINE vec high2(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15); }
INLINE vec even4(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11); }
INLINE vec odd4(vec a, vec b) { return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15); }
#else
INLINE vec low(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE vec high(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
INLINE vec low2(vec a, vec b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
INLINE vec high2(vec a, vec b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
#endif

// A square of W x W, rows `ld` and `to_ld` apart.
INLINE void transpose_block(const float* x, int64_t ld, float* to, int64_t to_ld) {
    vec a[W], b[W];
    for (int i = 0; i < W; ++i) a[i] = load(x + i * ld);
    for (int i = 0; i < W; i += 2) b[i] = low(a[i], a[i + 1]), b[i + 1] = high(a[i], a[i + 1]);
    for (int i = 0; i < W; i += 4) {  // a[i + n]: column n of every group of four, rows i .. i + 3
        a[i] = low2(b[i], b[i + 2]), a[i + 1] = high2(b[i], b[i + 2]);
        a[i + 2] = low2(b[i + 1], b[i + 3]), a[i + 3] = high2(b[i + 1], b[i + 3]);
    }
#if WIDTH == 16
    for (int n = 0; n < 4; ++n) {
        vec e = even4(a[n], a[4 + n]), f = odd4(a[n], a[4 + n]), g = even4(a[8 + n], a[12 + n]), h = odd4(a[8 + n], a[12 + n]);
        b[n] = even4(e, g), b[8 + n] = odd4(e, g), b[4 + n] = even4(f, h), b[12 + n] = odd4(f, h);
    }
#elif WIDTH == 8
    for (int n = 0; n < 4; ++n) b[n] = even4(a[n], a[4 + n]), b[4 + n] = odd4(a[n], a[4 + n]);
#else
    for (int n = 0; n < 4; ++n) b[n] = a[n];
#endif
    for (int i = 0; i < W; ++i) store(to + i * to_ld, b[i]);
}

// to[d][c] = x[c][d] for `rows` rows of x and `columns` columns, both multiples of 16.
__attribute__((noinline)) void transpose(const float* x, int64_t ld, int64_t rows, int64_t columns, float* to, int64_t to_ld) {
    for (int64_t c = 0; c < rows; c += W)
        for (int64_t d = 0; d < columns; d += W) transpose_block(x + c * ld + d, ld, to + d * to_ld + c, to_ld);
}

}  // namespace
