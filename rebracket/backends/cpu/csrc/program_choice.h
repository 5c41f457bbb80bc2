// The choice of the next token: what lm/sampling.py describes, with random numbers of base/random.py.
#pragma once
#include <algorithm>
#include "lanes.h"
#include "program.h"

namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

INLINE uint64_t splitmix(uint64_t word) {
    word += GOLDEN;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}
// The `place`-th number of the stream of a seed, in [0, 1).
INLINE double uniform(uint64_t seed, uint64_t place) { return double(splitmix(splitmix(seed) + place * GOLDEN) >> 12) * 0x1p-52; }

// The first place at which the running sum of n weights passes that part of their total; -1 where the total is not a number.
int64_t pick(double* weight, int64_t n, double part) {
    for (int64_t i = 1; i < n; ++i) weight[i] += weight[i - 1];
    const double sum = weight[n - 1] * part;
    if (!(sum < __builtin_inf())) return -1;
    return std::upper_bound(weight, weight + n, sum) - weight;
}

// The likeliest of n tokens, the first of equals; -1 where a logit is NaN or the largest is not finite.
int64_t likeliest(const float* logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (logits[i] != logits[i]) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return logits[best] - logits[best] == 0 ? best : -1;
}

// A token among the `count` likeliest, and the fewest of these that hold top_p together.
int64_t pick_among(const float* logits, const Segment& s, int64_t count, double most, double part, double* weight, int32_t* order) {
    const int64_t n = s.limit;
    auto before = [&](int32_t i, int32_t j) { return logits[i] > logits[j] || (logits[i] == logits[j] && i < j); };
    auto share = [&](int32_t i) { return exponential((logits[i] - most) / s.temperature); };
    for (int64_t i = 0; i < n; ++i) order[i] = int32_t(i);
    if (count < n) std::nth_element(order, order + count, order + n, before);
    double all = 0, held = 0;
    for (int64_t i = 0; i < count; ++i) all += share(order[i]);
    int64_t sorted = 0, kept = 0;
    for (; kept < count && held < s.top_p * all; ++kept) {
        if (kept == sorted) {  // sorts as many again, for most often few are needed
            const int64_t next = std::min(count, std::max<int64_t>(64, 4 * sorted));
            std::nth_element(order + sorted, order + next, order + count, before);
            std::sort(order + sorted, order + next, before);
            sorted = next;
        }
        held += weight[kept] = share(order[kept]);
    }
    const int64_t place = pick(weight, kept, part);
    return place < 0 ? -1 : order[place];
}

// The next token; `drawn` random numbers were used before. scratch: limit numbers in float64, then as many in int32.
int64_t chosen_token(const float* logits, const Segment& s, uint64_t drawn, float* scratch) {
    const int64_t n = s.limit, best = likeliest(logits, n);
    if (best < 0 || s.temperature == 0) return best;
    double* weight = reinterpret_cast<double*>(scratch);
    const double most = logits[best], part = uniform(s.seed, drawn);
    if (s.top_k || s.top_p < 1)
        return pick_among(logits, s, s.top_k ? std::min(s.top_k, n) : n, most, part, weight, reinterpret_cast<int32_t*>(weight + n));
    for (int64_t i = 0; i < n; ++i) weight[i] = exponential((logits[i] - most) / s.temperature);
    return pick(weight, n, part);
}

}  // namespace
