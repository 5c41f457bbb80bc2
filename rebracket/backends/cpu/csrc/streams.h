// Rows of the caller's tensors, whatever their dtype, as packed floats and back.
#pragma once
#include "recurrence.h"
#include "products.h"

namespace {

INLINE float from_bfloat16(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float y;
    __builtin_memcpy(&y, &bits, 4);
    return y;
}

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return nan ? uint16_t(bits >> 16 | 64) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Halves: shift the exponent by a multiplication, which also makes subnormals right.
INLINE float from_float16(uint16_t x) {
    uint32_t sign = uint32_t(x & 0x8000) << 16, body = uint32_t(x & 0x7fff) << 13;
    float y;
    __builtin_memcpy(&y, &body, 4);
    y *= 5.192296858534828e33f;  // 2^112
    uint32_t bits;
    __builtin_memcpy(&bits, &y, 4);
    if ((x & 0x7c00) == 0x7c00) bits = body | 0x7f800000;
    bits |= sign;
    __builtin_memcpy(&y, &bits, 4);
    return y;
}

INLINE uint16_t to_float16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, body = bits & 0x7fffffff;
    if (body > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (body >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (body < 0x38800000) {  // subnormal: let an addition round it
        float y;
        __builtin_memcpy(&y, &body, 4);
        y += 0.5f;
        uint32_t rounded;
        __builtin_memcpy(&rounded, &y, 4);
        return uint16_t(sign | (rounded - 0x3f000000));
    }
    return uint16_t(sign | (body - 0x38000000 + 0xfff + (body >> 13 & 1)) >> 13);
}

// The rows of one sequence and head in one of the caller's tensors.
struct Stream {
    char* base = nullptr;
    int64_t step = 0, n = 0;  // bytes from row to row, entries of a row
    int32_t dtype = FLOAT32;

    Stream() = default;
    Stream(const Rows& x, int64_t b, int64_t head, int64_t heads, int64_t from, int64_t n) : n(n), dtype(x.dtype) {
        if (!x.data) return;
        int64_t size = dtype == FLOAT32 ? 4 : 2;
        int64_t own = x.heads == heads ? head : head / (heads / x.heads);  // a step feels every division
        base = static_cast<char*>(x.data) + (b * x.batch + own * x.head + from) * size;
        step = x.time * size;
    }
    char* at(int64_t t) const { return base + t * step; }
    int64_t bytes() const { return n * (dtype == FLOAT32 ? 4 : 2); }
};

INLINE void copy(float* to, const float* from, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; ++i) to[i] = from[i];
}

INLINE void fill(float* to, int64_t n, float x) {
    for (int64_t i = 0; i < n; ++i) to[i] = x;
}

// Rows t, t + 1, ... as floats, `ld` apart, each with zeros up to `pad`.
void read_rows(float* to, int64_t ld, const Stream& x, int64_t t, int64_t count, int64_t pad) {
    for (int64_t c = 0; c < count; ++c, to += ld) {
        const void* row = x.at(t + c);
        const uint16_t* half = static_cast<const uint16_t*>(row);
        if (x.dtype == FLOAT32)
            copy(to, static_cast<const float*>(row), x.n);
        else if (x.dtype == BFLOAT16)
            for (int64_t i = 0; i < x.n; ++i) to[i] = from_bfloat16(half[i]);
        else
            for (int64_t i = 0; i < x.n; ++i) to[i] = from_float16(half[i]);
        fill(to + x.n, pad - x.n, 0);
    }
}

INLINE void read_row(float* to, const Stream& x, int64_t t, int64_t pad) { read_rows(to, 0, x, t, 1, pad); }

// Packed rows `ld` apart as rows t, t + 1, ...
void write_rows(const Stream& x, int64_t t, int64_t count, const float* from, int64_t ld) {
    for (int64_t c = 0; c < count; ++c, from += ld) {
        float* to = reinterpret_cast<float*>(x.at(t + c));
        uint16_t* half = reinterpret_cast<uint16_t*>(to);
        if (x.dtype == FLOAT32)
            copy(to, from, x.n);
        else if (x.dtype == BFLOAT16)
            for (int64_t i = 0; i < x.n; ++i) half[i] = to_bfloat16(from[i]);
        else
            for (int64_t i = 0; i < x.n; ++i) half[i] = to_float16(from[i]);
    }
}

}  // namespace
