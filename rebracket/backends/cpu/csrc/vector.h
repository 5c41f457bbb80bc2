// A vector of floats as wide as the instruction set of this translation unit, and the few things done with it.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

namespace {

constexpr int W = WIDTH;
typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef uint32_t uvec __attribute__((vector_size(W * 4)));  // its sums and shifts may lose bits at the top

#define INLINE inline __attribute__((always_inline))

INLINE vec load(const float* p) {
    vec x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store(float* p, vec x) { __builtin_memcpy(p, &x, sizeof x); }
INLINE vec splat(float x) { return x - vec{}; }

constexpr float LEAST_LOG = -87.3f;  // the exponential of anything less is taken for 0

// 1 / total, and 0 for a sum of weights so small that gradients of a division by it would overflow.
INLINE float reciprocal(float total) { return total < 0x1p-100f && total > -0x1p-100f ? 0 : 1 / total; }

INLINE float sum(vec x) {
    float total = 0;
    for (int i = 0; i < W; ++i) total += x[i];
    return total;
}

// exp for x <= 0: relative error below 1e-7, exactly 0 below -87.3 and at -inf, exactly 1 at 0; NaN passes.
INLINE vec exp_negative(vec x) {
    const vec low = splat(LEAST_LOG);
    ivec tiny = x < low;
    vec y = tiny ? low : x;
    const vec shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vec n = y * 1.44269504f + shifter;
    uvec bits;
    __builtin_memcpy(&bits, &n, sizeof n);
    n = n - shifter;
    vec f = y - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    uvec power = bits << 23;
    uvec result;
    __builtin_memcpy(&result, &p, sizeof p);
    result = result + power;
    __builtin_memcpy(&p, &result, sizeof p);
    return tiny ? vec{} : p;
}

}  // namespace
