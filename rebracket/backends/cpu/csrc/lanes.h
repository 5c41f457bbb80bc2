// Sixteen numbers at once on every instruction set, with the same bits where it has fused multiply-add, and functions of them.
#pragma once
#include "vector.h"

#if WIDTH > 4
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

constexpr int PARTS = 16 / W;  // vectors of this instruction set in sixteen lanes
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; ++i)

struct Lanes {
    vec part[PARTS];
};
struct Masks {
    ivec part[PARTS];
};

INLINE vec fused(vec x, vec y, vec z) {
#if WIDTH == 16
    return _mm512_fmadd_ps(x, y, z);
#elif WIDTH == 8
    return _mm256_fmadd_ps(x, y, z);
#elif defined(__ARM_NEON)
    return vfmaq_f32(z, x, y);
#else
    return x * y + z;
#endif
}
INLINE double fused(double x, double y, double z) {
#if WIDTH > 4 || defined(__ARM_NEON)
    return __builtin_fma(x, y, z);
#else
    return x * y + z;
#endif
}

#define OF_TWO(name, expression)              \
    INLINE Lanes name(Lanes x, Lanes y) {     \
        Lanes z;                              \
        EACH z.part[i] = expression;          \
        return z;                             \
    }
OF_TWO(operator+, x.part[i] + y.part[i])
OF_TWO(operator-, x.part[i] - y.part[i])
OF_TWO(operator*, x.part[i] * y.part[i])
OF_TWO(operator/, x.part[i] / y.part[i])
OF_TWO(larger, x.part[i] > y.part[i] ? x.part[i] : y.part[i])  // y where either is NaN
OF_TWO(smaller, x.part[i] < y.part[i] ? x.part[i] : y.part[i])

#define COMPARES(name, operation)                                  \
    INLINE Masks name(Lanes x, Lanes y) {                          \
        Masks m;                                                   \
        EACH m.part[i] = x.part[i] operation y.part[i];            \
        return m;                                                  \
    }
COMPARES(operator<, <)
COMPARES(operator>, >)
COMPARES(operator==, ==)

INLINE Lanes choose(Masks m, Lanes x, Lanes y) {
    Lanes z;
    EACH z.part[i] = m.part[i] ? x.part[i] : y.part[i];
    return z;
}
INLINE Lanes all(float x) {
    Lanes z;
    EACH z.part[i] = splat(x);
    return z;
}
INLINE Lanes fma(Lanes x, Lanes y, Lanes z) {
    EACH z.part[i] = fused(x.part[i], y.part[i], z.part[i]);
    return z;
}
INLINE Lanes operator-(Lanes x) {
    EACH x.part[i] = -x.part[i];
    return x;
}
INLINE Lanes absolute(Lanes x) { return choose(x < all(0), -x, x); }
INLINE Lanes root(Lanes x) {
#if WIDTH == 16
    x.part[0] = _mm512_sqrt_ps(x.part[0]);
#elif WIDTH == 8
    EACH x.part[i] = _mm256_sqrt_ps(x.part[i]);
#else
    EACH for (int j = 0; j < W; ++j) x.part[i][j] = __builtin_sqrtf(x.part[i][j]);
#endif
    return x;
}

INLINE Lanes load16(const float* p) {
    Lanes x;
    EACH x.part[i] = load(p + i * W);
    return x;
}
INLINE void store16(float* p, Lanes x) { EACH store(p + i * W, x.part[i]); }

// The first n of sixteen lanes, n from 1 to 16; the others read as 0 and are not written.
INLINE Lanes load16(const float* p, int64_t n) {
    if (n == 16) return load16(p);
    Lanes x;
#if WIDTH == 16
    x.part[0] = _mm512_maskz_loadu_ps(__mmask16((1 << n) - 1), p);
#else
    float all[16] = {};
    for (int64_t i = 0; i < n; ++i) all[i] = p[i];
    x = load16(all);
#endif
    return x;
}
INLINE void store16(float* p, Lanes x, int64_t n) {
    if (n == 16) return store16(p, x);
#if WIDTH == 16
    _mm512_mask_storeu_ps(p, __mmask16((1 << n) - 1), x.part[0]);
#else
    float all[16];
    store16(all, x);
    for (int64_t i = 0; i < n; ++i) p[i] = all[i];
#endif
}

// Lanes of a block that ends at `end`: sixteen, or what is left.
INLINE int64_t lanes(int64_t i, int64_t end) { return end - i < 16 ? end - i : 16; }

// The sum of the lanes by halves: always the same tree.
INLINE float total(Lanes x) {
    float y[16];
    store16(y, x);
#pragma GCC unroll 4
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) y[i] = y[i] + y[i + half];
    return y[0];
}
INLINE float largest(Lanes x) {  // NaN lanes are passed over
    float y[16];
    store16(y, x);
    float most = -__builtin_inff();
    for (int i = 0; i < 16; ++i) most = y[i] > most ? y[i] : most;
    return most;
}

// The sum of term(i, n) over blocks of n lanes, four sums in turn.
template <class Term>
INLINE float summed(int64_t width, const Term& term) {
    Lanes sum[4] = {all(0), all(0), all(0), all(0)};
    int64_t i = 0;
    for (; i + 64 <= width; i += 64)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sum[j] = term(i + 16 * j, 16, sum[j]);
    for (int j = 0; i < width; i += 16, ++j) sum[j] = term(i, lanes(i, width), sum[j]);
    return total((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// To the nearest whole number, for |x| below 2^22.
INLINE Lanes rounded(Lanes x) { return (x + all(12582912.0f)) - all(12582912.0f); }

// p 2^n for whole n from -126 to 128, where the result is a normal number.
INLINE Lanes times_power(Lanes p, Lanes n) {
    Lanes shifted = n + all(12582912.0f);
    EACH {
        uvec bits, power;
        __builtin_memcpy(&bits, &p.part[i], sizeof bits);
        __builtin_memcpy(&power, &shifted.part[i], sizeof power);
        bits += power << 23;
        __builtin_memcpy(&p.part[i], &bits, sizeof bits);
    }
    return p;
}

// x - n log 2 for the whole n nearest to x / log 2, |x| below 100.
INLINE Lanes reduced(Lanes x, Lanes n) { return fma(n, all(2.12194440e-4f), fma(n, all(-0.693359375f), x)); }
// exp(f) - 1 for |f| <= log(2) / 2, by the sum of f^n / n! with the last terms adapted.
INLINE Lanes small_expm1(Lanes f) {
    Lanes p = all(1.9875691500e-4f);
    p = fma(p, f, all(1.3981999507e-3f));
    p = fma(p, f, all(8.3334519073e-3f));
    p = fma(p, f, all(4.1665795894e-2f));
    p = fma(p, f, all(1.6666665459e-1f));
    p = fma(p, f, all(5.0000001201e-1f));
    return fma(p * f, f, f);
}
constexpr float MOST_LOG = 88.72283f;  // of what has a finite exponential

// 0 below -87.3, infinity where a float is too small for it, NaN for NaN.
INLINE Lanes exponential(Lanes x) {
    Lanes y = smaller(larger(x, all(LEAST_LOG)), all(MOST_LOG));
    Lanes n = rounded(y * all(1.44269504f));
    Lanes e = times_power(small_expm1(reduced(y, n)) + all(1), n);
    e = choose(x < all(LEAST_LOG), all(0), choose(x > all(MOST_LOG), all(__builtin_inff()), e));
    return choose(x == x, e, x);
}
INLINE Lanes exponential_less_1(Lanes x) {
    Lanes y = smaller(larger(x, all(-40)), all(60));
    Lanes n = rounded(y * all(1.44269504f)), power = times_power(all(1), n);
    Lanes e = fma(power, small_expm1(reduced(y, n)), power - all(1));
    e = choose(x > all(60), exponential(x), e);
    return choose(x == x, e, x);
}
// Of normal positive numbers.
INLINE Lanes logarithm(Lanes x) {
    Lanes n, m;
    EACH {
        ivec bits, exponent;
        __builtin_memcpy(&bits, &x.part[i], sizeof bits);
        exponent = (bits - 0x3f3504f3) >> 23;  // so that the rest lies about 1, between the roots of 1/2 and 2
        bits -= exponent << 23;
        __builtin_memcpy(&m.part[i], &bits, sizeof bits);
        n.part[i] = __builtin_convertvector(exponent, vec);
    }
    Lanes f = m - all(1), z = f * f;
    Lanes p = all(7.0376836292e-2f);
    p = fma(p, f, all(-1.1514610310e-1f));
    p = fma(p, f, all(1.1676998740e-1f));
    p = fma(p, f, all(-1.2420140846e-1f));
    p = fma(p, f, all(1.4249322787e-1f));
    p = fma(p, f, all(-1.6668057665e-1f));
    p = fma(p, f, all(2.0000714765e-1f));
    p = fma(p, f, all(-2.4999993993e-1f));
    p = fma(p, f, all(3.3333331174e-1f));
    Lanes low = fma(n, all(-2.12194440e-4f), fma(p * f, z, z * all(-0.5f)));
    return fma(n, all(0.693359375f), f + low);
}
INLINE Lanes logarithm_of_1_plus(Lanes e) {  // e from 0 to 1
    Lanes u = all(1) + e;
    return logarithm(u) + (e - (u - all(1))) / u;
}
INLINE Lanes logistic(Lanes x) {
    Lanes e = exponential(-absolute(x));
    return choose(x < all(0), e, all(1)) / (all(1) + e);
}
INLINE Lanes softplus(Lanes x) {
    Lanes positive = choose(x < all(0), all(0), x);
    return positive + logarithm_of_1_plus(exponential(-absolute(x)));
}

// Sine and cosine of x in float64, |x| below 10^6.
INLINE void sine_and_cosine(double x, double* sine, double* cosine) {
    const double shifter = 6755399441055744.0;  // 1.5 * 2^52
    double n = (x * 0.63661977236758134308 + shifter) - shifter;
    double r = fused(-n, 2.02226624879595063154e-21, fused(-n, 6.07710050630396597660e-11, fused(-n, 1.57079632673412561417, x)));
    double z = r * r, s = 1, c = 1;
    for (int i = 14; i >= 2; i -= 2) s = fused(s, -z * (1.0 / (i * (i + 1))), 1);
    for (int i = 15; i >= 1; i -= 2) c = fused(c, -z * (1.0 / (i * (i + 1))), 1);
    s = r * s;
    int64_t quarter = int64_t(n) & 3;
    double first = quarter & 1 ? c : s, second = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -first : first;
    *cosine = (quarter + 1) & 2 ? -second : second;
}

// exp in float64 for x <= 0; 0 below -700.
INLINE double exponential(double x) {
    if (x < -700) return 0;
    const double shifter = 6755399441055744.0;
    double n = (x * 1.44269504088896340736 + shifter) - shifter;
    double r = fused(-n, 1.90821492927058770002e-10, fused(-n, 6.93147180369123816490e-01, x));
    double p = 1;
    for (int i = 13; i >= 1; --i) p = fused(p, r * (1.0 / i), 1);
    int64_t bits = (int64_t(n) + 1023) << 52;
    double power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return p * power;
}

}  // namespace
