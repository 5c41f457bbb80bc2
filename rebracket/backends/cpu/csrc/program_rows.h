// Operations that need nothing but their own row: one call computes rows begin..end.
#pragma once
#include "program_products.h"

namespace {

INLINE float* row_of(const Span& x, int64_t row) { return x.data + row * x.stride; }

// out = table[token]: weight [vocab, width].
void embed(const ProgramCall& a, const Operation& op, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
        std::memcpy(row_of(op.out, m), static_cast<const float*>(op.weight) + a.tokens[m] * op.out.width, op.out.width * 4);
}

// The rows whose logits are wanted, one after another.
void gather(const ProgramCall& a, const Operation& op, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) std::memcpy(row_of(op.out, m), row_of(op.x, a.wanted[m]), op.out.width * 4);
}

// out_i = factor_i x_index_i: index [out], factor (weight) [out] or null.
void select(const Operation& op, int64_t begin, int64_t end) {
    const float* factor = static_cast<const float*>(op.weight);
    for (int64_t m = begin; m < end; ++m) {
        const float* x = row_of(op.x, m);
        float* out = row_of(op.out, m);
        for (int64_t i = 0; i < op.out.width; ++i) out[i] = factor ? factor[i] * x[op.index[i]] : x[op.index[i]];
    }
}

// x [groups, K] as bytes in `out`, with one factor a part in `k`: x = factor * byte.
void quantize(const Operation& op, int64_t begin, int64_t end) {
    const int64_t K = op.x.width / op.groups, room = (K + 3) / 4 * 4;
    for (int64_t m = begin; m < end; ++m)
        for (int64_t g = 0; g < op.groups; ++g) {
            const float* x = row_of(op.x, m) + g * K;
            uint8_t* to = reinterpret_cast<uint8_t*>(row_of(op.out, m)) + g * room;
            uint32_t most = 0;  // of |x|, by its bits, so that NaN is the largest
            for (int64_t i = 0; i < K; ++i) {
                uint32_t bits;
                std::memcpy(&bits, x + i, 4);
                bits &= 0x7fffffffu;
                most = bits > most ? bits : most;
            }
            float top;
            std::memcpy(&top, &most, 4);
            const bool sound = most < 0x7f800000u && top > 1e-36f;
            const float inverse = sound ? 127 / top : 0;
            op.k.data[m * op.k.stride + g] = most >= 0x7f800000u ? __builtin_nanf("") : sound ? top / 127 : 0;
            const uint8_t zero = moved_bytes() ? 128 : 0;
            for (int64_t i = 0; i < K; ++i) {
                float y = sound ? (x[i] * inverse + 12582912.0f) - 12582912.0f : 0;
                to[i] = uint8_t(int32_t(y) + zero);
            }
            for (int64_t i = K; i < room; ++i) to[i] = zero;
        }
}

INLINE Lanes evaluated(int32_t function, Lanes x) {
    switch (function) {
        case SILU: return x * logistic(x);
        case SIGMOID: return logistic(x);
        case SOFTPLUS: return softplus(x);
        case LOGSIGMOID: return -softplus(-x);
        case EXP: return exponential(x);
        case EXPM1: return exponential_less_1(x);
        case RELU: return choose(x < all(0), all(0), x);
        case ELU1: return choose(x > all(0), x + all(1), exponential(x));
        case SQUARE: return x * x;
        case NEGATIVE: return -x;
    }
    float each[16];
    store16(each, x);
    for (float& y : each) {
        double sine, cosine;
        sine_and_cosine(y, &sine, &cosine);
        y = float(function == SIN ? sine : cosine);
    }
    return load16(each);
}

// out = after f(before x).
void map(const Operation& op, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
        const float* x = row_of(op.x, m);
        float* out = row_of(op.out, m);
        for (int64_t i = 0; i < op.out.width; i += 16) {
            int64_t n = lanes(i, op.out.width);
            store16(out + i, all(op.after) * evaluated(op.function, all(op.before) * load16(x + i, n)), n);
        }
    }
}

INLINE Lanes paired(int32_t function, Lanes x, Lanes y) {
    switch (function) {
        case ADD: return x + y;
        case SUBTRACT: return x - y;
        case MULTIPLY: return x * y;
        case MAXIMUM: return choose(x == x, larger(x, y), x);
        case MINIMUM: return choose(x == x, smaller(x, y), x);
    }
    Lanes apart = choose(x == y, all(0), absolute(x - y));
    return larger(x, y) + logarithm_of_1_plus(exponential(-apart));
}

// The n entries of y from the i-th of x on, each of which serves `each` entries of x.
INLINE Lanes spread(const float* y, int64_t i, int64_t n, int64_t each) {
    if (each == 1) return load16(y + i, n);
    if (each % 16 == 0) return all(y[i / each]);
    float wide[16] = {};
    for (int64_t j = 0; j < n; ++j) wide[j] = y[(i + j) / each];
    return load16(wide);
}

// out = f(x, y), with y in k.
void pair(const Operation& op, int64_t begin, int64_t end) {
    const int64_t each = op.out.width / op.k.width;
    for (int64_t m = begin; m < end; ++m) {
        const float *x = row_of(op.x, m), *y = row_of(op.k, m);
        float* out = row_of(op.out, m);
        for (int64_t i = 0; i < op.out.width; i += 16) {
            int64_t n = lanes(i, op.out.width);
            store16(out + i, paired(op.function, load16(x + i, n), spread(y, i, n, each)), n);
        }
    }
}

// The first n lanes, 0 in the others.
INLINE Lanes only(Lanes x, int64_t n) {
    if (n == 16) return x;
    float each[16];
    store16(each, x);
    for (int64_t i = n; i < 16; ++i) each[i] = 0;
    return load16(each);
}

INLINE void normalize_part(const Operation& op, const float* x, float* out, int64_t D, const float* weight, const float* bias) {
    float mean = 0;
    if (op.function == CENTERED)
        mean = summed(D, [&](int64_t i, int64_t n, Lanes sum) { return sum + load16(x + i, n); }) / float(D);
    float squares = summed(D, [&](int64_t i, int64_t n, Lanes sum) {
        Lanes apart = load16(x + i, n);
        if (op.function == CENTERED) apart = only(apart - all(mean), n);
        return fma(apart, apart, sum);
    });
    if (op.function != UNIT) squares = squares / float(D);
    const float factor = 1 / __builtin_sqrtf(squares + op.eps);
    for (int64_t i = 0; i < D; i += 16) {
        int64_t n = lanes(i, D);
        Lanes y = (load16(x + i, n) - all(mean)) * all(factor);
        if (weight) y = y * load16(weight + i, n);
        if (bias) y = y + load16(bias + i, n);
        store16(out + i, y, n);
    }
}

// Each of `groups` parts normed; the weights of the next part are `weight_step` on.
void normalize(const Operation& op, int64_t begin, int64_t end) {
    const int64_t D = op.x.width / op.groups;
    const float* weight = static_cast<const float*>(op.weight);
    for (int64_t m = begin; m < end; ++m)
        for (int64_t g = 0; g < op.groups; ++g)
            normalize_part(op, row_of(op.x, m) + g * D, row_of(op.out, m) + g * D, D, weight ? weight + g * op.weight_step : nullptr,
                           op.bias ? op.bias + g * op.weight_step : nullptr);
}

// out_g = the sum of the g-th of out.width equal parts of x.
void sum(const Operation& op, int64_t begin, int64_t end) {
    const int64_t D = op.x.width / op.out.width;
    for (int64_t m = begin; m < end; ++m)
        for (int64_t g = 0; g < op.out.width; ++g) {
            const float* x = row_of(op.x, m) + g * D;
            row_of(op.out, m)[g] = summed(D, [&](int64_t i, int64_t n, Lanes sum) { return sum + load16(x + i, n); });
        }
}

// The largest of D numbers; NaN where there is one.
INLINE float largest_of(const float* x, int64_t D) {
    float most = x[0];
    for (int64_t i = 1; i < D; ++i) most = most != most || most > x[i] ? most : x[i];
    return most;
}

// exp(x - max x) in each of `groups` parts; divided by their sum where `flag`.
void exponentials(const Operation& op, int64_t begin, int64_t end) {
    const int64_t D = op.x.width / op.groups;
    for (int64_t m = begin; m < end; ++m)
        for (int64_t g = 0; g < op.groups; ++g) {
            const float* x = row_of(op.x, m) + g * D;
            float* out = row_of(op.out, m) + g * D;
            const Lanes most = all(largest_of(x, D));
            for (int64_t i = 0; i < D; i += 16) {
                int64_t n = lanes(i, D);
                store16(out + i, exponential(load16(x + i, n) - most), n);
            }
            if (!op.flag) continue;
            const float sum = summed(D, [&](int64_t i, int64_t n, Lanes sum) { return sum + load16(out + i, n); });
            for (int64_t i = 0; i < D; i += 16) store16(out + i, load16(out + i, lanes(i, D)) / all(sum), lanes(i, D));
        }
}

// Each of `heads` parts turned by the angles of the position; weight: [K/2] frequencies in float64.
void rotate(const ProgramCall& a, const Operation& op, int64_t begin, int64_t end, float* scratch) {
    const int64_t half = op.x.width / op.heads / 2;
    const double* frequency = static_cast<const double*>(op.weight);
    float *sine = scratch, *cosine = scratch + half;
    for (int64_t m = begin; m < end; ++m) {
        for (int64_t i = 0; i < half; ++i) {
            double s, c;
            sine_and_cosine(double(a.positions[m]) * frequency[i], &s, &c);
            sine[i] = float(s), cosine[i] = float(c);
        }
        for (int64_t h = 0; h < op.heads; ++h) {
            const float* x = row_of(op.x, m) + h * 2 * half;
            float* out = row_of(op.out, m) + h * 2 * half;
            for (int64_t i = 0; i < half; i += 16) {
                int64_t n = lanes(i, half);
                Lanes c = load16(cosine + i, n), s = load16(sine + i, n), first = load16(x + i, n), second = load16(x + half + i, n);
                store16(out + i, first * c - second * s, n);
                store16(out + half + i, second * c + first * s, n);
            }
        }
    }
}

// Each of `heads` parts times the sine, then the cosine of its position's angle; `width` is the horizon.
void cosine(const ProgramCall& a, const Operation& op, int64_t begin, int64_t end) {
    const int64_t D = op.x.width / op.heads;
    for (int64_t m = begin; m < end; ++m) {
        double s, c;
        const int64_t position = a.positions[m] < op.width ? a.positions[m] : op.width;
        sine_and_cosine(double(position) * (1.57079632679489661923 / double(op.width)), &s, &c);
        for (int64_t h = 0; h < op.heads; ++h)
            for (int64_t i = 0; i < D; i += 16) {
                int64_t n = lanes(i, D);
                Lanes x = load16(row_of(op.x, m) + h * D + i, n);
                float* out = row_of(op.out, m) + 2 * h * D + i;
                store16(out, x * all(float(s)), n);
                store16(out + D, x * all(float(c)), n);
            }
    }
}

}  // namespace
