// Products with packed weights: x W^T + b + plus for any number of rows.
//
// Weights lie in panels of 16 outputs, k outermost. Every output has one sum, over k in order, whatever the tile. Panels are
// taken by four that lie a quarter of all weights apart: four streams, which a core reads faster than one.
#pragma once
#include "lanes.h"
#include "program.h"

namespace {

constexpr int STREAMS = 4;
constexpr int64_t AHEAD = 512;       // bytes that a stream is fetched ahead
constexpr int64_t BLOCK_ROWS = 96;  // rows whose inputs stay in the second level of the cache

// Bytes of a panel of K inputs. That of int8 ends with the scale of each output and 128 times the sum of its weights, which so
// come with the stream and need not be waited for.
INLINE int64_t panel_bytes(int32_t format, int64_t K) {
    if (format == WHOLE) return K * 64;
    return format == HALF ? (K + 1) / 2 * 64 : (K + 3) / 4 * 64 + 128;
}
INLINE int64_t panels_of(int64_t N) { return (N + LANES - 1) / LANES; }

INLINE void fetch(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + AHEAD, 0, 3); }

// A tile: R rows by P panels. `take` adds all K to the sums.
template <int R, int P>
INLINE void take_whole(Lanes (&sum)[R][P], const float* const (&x)[R], const char* const (&panel)[P], int64_t K) {
    for (int64_t k = 0; k < K; ++k) {
        Lanes w[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const float* at = reinterpret_cast<const float*>(panel[p]) + k * LANES;
            fetch(at);
            w[p] = load16(at);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            Lanes factor = all(x[r][k]);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) sum[r][p] = fma(factor, w[p], sum[r][p]);
        }
    }
}

// Two bfloat16 of one output in 32 bits: the first k in the lower half.
INLINE Lanes lower(Lanes x) {
    EACH {
        uvec bits;
        __builtin_memcpy(&bits, &x.part[i], sizeof bits);
        bits = bits << 16;
        __builtin_memcpy(&x.part[i], &bits, sizeof bits);
    }
    return x;
}
INLINE Lanes upper(Lanes x) {
    EACH {
        uvec bits;
        __builtin_memcpy(&bits, &x.part[i], sizeof bits);
        bits = bits & 0xffff0000u;
        __builtin_memcpy(&x.part[i], &bits, sizeof bits);
    }
    return x;
}
template <int R, int P>
INLINE void take_half(Lanes (&sum)[R][P], const float* const (&x)[R], const char* const (&panel)[P], int64_t K) {
    int64_t k = 0;
    for (; k + 2 <= K; k += 2) {
        Lanes both[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const float* at = reinterpret_cast<const float*>(panel[p]) + k / 2 * LANES;
            fetch(at);
            both[p] = load16(at);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            Lanes first = all(x[r][k]), second = all(x[r][k + 1]);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) sum[r][p] = fma(second, upper(both[p]), fma(first, lower(both[p]), sum[r][p]));
        }
    }
    if (k == K) return;
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p)
            sum[r][p] = fma(all(x[r][k]), lower(load16(reinterpret_cast<const float*>(panel[p]) + k / 2 * LANES)), sum[r][p]);
}

// Writes a tile: sums, then the bias, then what is added.
INLINE void finish(float* out, Lanes sum, const float* bias, const float* plus, int64_t n) {
    if (bias) sum = sum + load16(bias, n);
    if (plus) sum = sum + load16(plus, n);
    store16(out, sum, n);
}

// Rows of a product: those of x, each in `groups` parts.
struct Side {
    float* data;
    int64_t stride, part, groups;
    INLINE float* row(int64_t m) const {
        if (groups == 1) return data + m * stride;
        return data + m / groups * stride + m % groups * part;
    }
};
struct Product {
    const Operation& op;
    Side x, out, plus;
    int64_t N, K, panels, quarter, bytes;
    Product(const Operation& op)
        : op(op), N(op.out.width / op.groups), K(op.x.width / op.groups), panels(panels_of(N)),
          quarter((panels + STREAMS - 1) / STREAMS), bytes(panel_bytes(op.format, K)) {
        x = {op.x.data, op.x.stride, op.format == BYTE ? (K + 3) / 4 : K, op.groups};
        out = {op.out.data, op.out.stride, N, op.groups};
        plus = {op.v.data, op.v.stride, N, op.groups};
    }
    INLINE const char* panel(int64_t p) const { return static_cast<const char*>(op.weight) + p * bytes; }
};

template <int R, int P>
INLINE void write_tile(const Product& a, const Lanes (&sum)[R][P], int64_t m, const int64_t* which) {
    for (int r = 0; r < R; ++r) {
        float *out = a.out.row(m + r), *plus = a.plus.data ? a.plus.row(m + r) : nullptr;
        for (int p = 0; p < P; ++p) {
            int64_t n = which[p] * LANES;
            finish(out + n, sum[r][p], a.op.bias ? a.op.bias + n : nullptr, plus ? plus + n : nullptr, lanes(n, a.N));
        }
    }
}

template <int R, int P>
void float_tile(const Product& a, int64_t m, const int64_t* which) {
    Lanes sum[R][P];
    const float* x[R];
    const char* panel[P];
    for (int p = 0; p < P; ++p) panel[p] = a.panel(which[p]);
    for (int r = 0; r < R; ++r) {
        x[r] = a.x.row(m + r);
        for (int p = 0; p < P; ++p) sum[r][p] = all(0);
    }
    if (a.op.format == WHOLE)
        take_whole<R, P>(sum, x, panel, a.K);
    else
        take_half<R, P>(sum, x, panel, a.K);
    write_tile<R, P>(a, sum, m, which);
}

// x of int8 weights: bytes in the order of k, four to an entry, made by QUANTIZE with one factor a row. Sums of whole numbers
// are exact in any order. With the instruction for dot products of bytes x is moved by 128 to be without sign.
#if WIDTH >= 8
typedef int32_t whole8 __attribute__((vector_size(32)));
typedef int32_t whole16 __attribute__((vector_size(64)));

#if WIDTH == 16
INLINE whole16 dot4(whole16 sum, int32_t x, whole16 w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x - whole16{}), "v"(w));
    return sum;
}
#endif
INLINE whole8 dot4(whole8 sum, int32_t x, whole8 w) {
    __m256i weights = __m256i(w), factor = _mm256_sign_epi8(_mm256_set1_epi32(x), weights);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), factor);
    return sum + whole8(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
template <class Whole>
INLINE Whole load_whole(const char* p) {
    Whole x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
#endif

// Whether bytes of x are moved by 128 to be without sign, for the instruction that then computes four products at once.
INLINE bool moved_bytes() {
#if WIDTH == 16
    return __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

// What is QUANTIZEd: bytes [row, K] and the factor of each row behind them.
INLINE const int32_t* bytes_of(const Product& a, int64_t m) { return reinterpret_cast<const int32_t*>(a.x.row(m)); }
INLINE float factor_of(const Product& a, int64_t m) {
    return a.op.k.data[a.op.groups == 1 ? m * a.op.k.stride : m / a.op.groups * a.op.k.stride + m % a.op.groups];
}

INLINE Lanes as_float(const void* sum) {
    Lanes x;
    EACH {
        ivec whole;
        __builtin_memcpy(&whole, static_cast<const char*>(sum) + i * sizeof whole, sizeof whole);
        x.part[i] = __builtin_convertvector(whole, vec);
    }
    return x;
}

template <class Whole, int R, int P>
void byte_tile(const Product& a, int64_t m, const int64_t* which) {
    constexpr int SPLIT = 64 / sizeof(Whole);
    Whole sum[R][P][SPLIT] = {};
    const int32_t* x[R];
    for (int r = 0; r < R; ++r) x[r] = bytes_of(a, m + r);
    const char* panel[P];
    for (int p = 0; p < P; ++p) panel[p] = a.panel(which[p]);
    const int64_t fours = (a.K + 3) / 4;
    for (int64_t k = 0; k < fours; ++k) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const char* at = panel[p] + k * 64;
            fetch(at);
#pragma GCC unroll 2
            for (int s = 0; s < SPLIT; ++s) {
                Whole w;
                __builtin_memcpy(&w, at + s * sizeof w, sizeof w);
#pragma GCC unroll 6
                for (int r = 0; r < R; ++r) sum[r][p][s] = dot4(sum[r][p][s], x[r][k], w);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        float *out = a.out.row(m + r), *plus = a.plus.data ? a.plus.row(m + r) : nullptr, factor = factor_of(a, m + r);
        for (int p = 0; p < P; ++p) {
            int64_t n = which[p] * LANES, left = lanes(n, a.N);
            const char* behind = panel[p] + fours * 64;
            Whole less[SPLIT];
            __builtin_memcpy(less, behind + 64, 64);
            for (int s = 0; s < SPLIT; ++s) less[s] = sum[r][p][s] - (SPLIT == 1 ? less[s] : Whole{});
            Lanes y = as_float(less) * load16(reinterpret_cast<const float*>(behind)) * all(factor);
            finish(out + n, y, a.op.bias ? a.op.bias + n : nullptr, plus ? plus + n : nullptr, left);
        }
    }
}

// Rows begin..end of P panels.
template <template <int, int> class Tile, int P>
void rows_of_panels(const Product& a, int64_t begin, int64_t end, const int64_t* which) {
    int64_t m = begin;
    for (; m + 6 <= end; m += 6) Tile<6, P>::run(a, m, which);
    switch (end - m) {
        case 5: return Tile<5, P>::run(a, m, which);
        case 4: return Tile<4, P>::run(a, m, which);
        case 3: return Tile<3, P>::run(a, m, which);
        case 2: return Tile<2, P>::run(a, m, which);
        case 1: return Tile<1, P>::run(a, m, which);
    }
}
template <int R, int P>
struct FloatTile {
    static void run(const Product& a, int64_t m, const int64_t* which) { float_tile<R, P>(a, m, which); }
};
#if WIDTH == 16
template <int R, int P>
struct ByteTile {  // with the instruction for dot products of bytes
    static void run(const Product& a, int64_t m, const int64_t* which) { byte_tile<whole16, R, P>(a, m, which); }
};
#endif
#if WIDTH >= 8
template <int R, int P>
struct SignedTile {
    static void run(const Product& a, int64_t m, const int64_t* which) { byte_tile<whole8, R, P>(a, m, which); }
};
#endif

// Rows begin..end of up to four panels. Where registers are few, one row takes all of them, two take pairs, more take one.
template <template <int, int> class Tile>
void rows_of_streams(const Product& a, int64_t begin, int64_t end, const int64_t* which, int count) {
#if WIDTH == 16
    if (count == 4) return rows_of_panels<Tile, 4>(a, begin, end, which);
    if (count == 3) return rows_of_panels<Tile, 3>(a, begin, end, which);
#else
    if (count == 4 && end - begin == 1) return Tile<1, 4>::run(a, begin, which);
    if (count == 4 && end - begin == 2) return Tile<2, 2>::run(a, begin, which), Tile<2, 2>::run(a, begin, which + 2);
#endif
    for (int p = 0; p < count; ++p) rows_of_panels<Tile, 1>(a, begin, end, which + p);
}

// The part of a product that is one thread's: its share of the panels, for all rows.
template <template <int, int> class Tile>
void product(const Operation& op, int64_t rows, int64_t part, int64_t parts) {
    const Product a(op);
    const int64_t first = a.quarter * part / parts, last = a.quarter * (part + 1) / parts, all_rows = rows * op.groups;
    for (int64_t begin = 0; begin < all_rows; begin += BLOCK_ROWS) {
        const int64_t end = begin + BLOCK_ROWS < all_rows ? begin + BLOCK_ROWS : all_rows;
        for (int64_t g = first; g < last; ++g) {
            int64_t which[STREAMS];
            int count = 0;
            for (int s = 0; s < STREAMS; ++s)
                if (g + s * a.quarter < a.panels) which[count++] = g + s * a.quarter;
            rows_of_streams<Tile>(a, begin, end, which, count);
        }
    }
}

}  // namespace
