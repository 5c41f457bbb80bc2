// The checks of a call, which a kernel makes before it reads or writes anything else. They read the structures and the offsets,
// and cost a few nanoseconds a tensor. The sizes of what has a bare pointer are the caller's word.
#pragma once
#include <cstdio>
#include <initializer_list>
#include "kernels.h"
#include "recurrence.h"
#include "vector.h"

namespace {

inline const char* printable(const char* x) { return x; }
inline long long printable(int64_t x) { return x; }

// A message for the caller, valid until the thread's next one.
template <class... Values>
__attribute__((noinline, cold)) const char* refuse(const char* format, Values... values) {
    static thread_local char text[256];
    std::snprintf(text, sizeof text, format, printable(values)...);
    return text;
}

#define REQUIRE(condition, ...) \
    if (!(condition)) return refuse(__VA_ARGS__)
#define CHECK(check) \
    if (const char* refusal = check) return refusal

constexpr int64_t LARGEST = int64_t(1) << 30;  // of the sizes that kernels hold in an int

// Whether the bytes of a float tensor of these sizes can be counted.
bool countable(std::initializer_list<int64_t> sizes) {
    int64_t bytes = sizeof(float);
    for (int64_t n : sizes)
        if (n > 1 && __builtin_mul_overflow(bytes, n, &bytes)) return false;
    return true;
}

// Whether no stride is negative and the last place of a tensor can be counted in bytes.
INLINE bool reachable(const Rows& x) {
    const int64_t sizes[] = {x.B, x.T, x.heads}, strides[] = {x.batch, x.time, x.head};
    int64_t reach = x.D, further;
    for (int i = 0; i < 3; ++i)
        if (sizes[i] > 1 && (strides[i] < 0 || __builtin_mul_overflow(sizes[i] - 1, strides[i], &further) ||
                             __builtin_add_overflow(reach, further, &reach)))
            return false;
    return reach <= INT64_MAX / int64_t(sizeof(float));
}

// Whether no place of a tensor is reached twice: from the smallest stride to the largest, each passes over all before it.
INLINE bool apart(const Rows& x) {
    int64_t sizes[] = {x.B, x.T, x.heads}, reach = x.D;
    const int64_t strides[] = {x.batch, x.time, x.head};
    for (int done = 0; done < 3; ++done) {
        int next = 0;
        for (int i = 1; i < 3; ++i)
            if (sizes[next] <= 1 || (sizes[i] > 1 && strides[i] < strides[next])) next = i;
        if (sizes[next] <= 1) return true;
        if (strides[next] < reach) return false;
        reach += (sizes[next] - 1) * strides[next], sizes[next] = 0;
    }
    return true;
}

enum class Use { READ, WRITTEN };

// A tensor [B,T,heads,D]: heads divide H, and are H where they are written.
const char* check_rows(const char* name, const Rows& x, Use use, int64_t B, int64_t T, int64_t H, int64_t D) {
    const bool written = use == Use::WRITTEN;
    if (B == 0 || T == 0) return nullptr;
    REQUIRE(x.data, "%s is missing", name);
    REQUIRE(x.B == B && x.T == T && x.D == D, "%s must be [B,T,heads,D] = [%lld,%lld,heads,%lld], got [%lld,%lld,%lld,%lld]", name,
            B, T, D, x.B, x.T, x.heads, x.D);
    REQUIRE(x.heads == H || (!written && x.heads > 0 && H % x.heads == 0), "%s must have %s H = %lld heads, got %lld", name,
            written ? "the" : "a divisor of the", H, x.heads);
    REQUIRE(x.dtype >= FLOAT32 && x.dtype <= FLOAT16, "%s has the unknown dtype %lld", name, int64_t(x.dtype));
    REQUIRE(reachable(x), "%s must have strides >= 0 whose reach can be counted, got %lld, %lld and %lld", name, x.batch, x.time,
            x.head);
    REQUIRE(!written || apart(x), "%s must have strides that reach no place twice, got %lld, %lld and %lld", name, x.batch, x.time,
            x.head);
    return nullptr;
}

const char* check_offsets(const int64_t* offsets, int64_t N, int64_t T) {
    REQUIRE(offsets[0] == 0, "cu_seqlens must start at 0, got %lld", offsets[0]);
    for (int64_t n = 0; n < N; ++n)
        REQUIRE(offsets[n] <= offsets[n + 1], "cu_seqlens must not decrease, got %lld before %lld", offsets[n], offsets[n + 1]);
    REQUIRE(offsets[N] <= T, "cu_seqlens must not pass T = %lld, got %lld", T, offsets[N]);
    return nullptr;
}

// Where the parts of every sequence begin, each of `size` entries, of which a token has `per_token`; at least `least` parts.
const char* check_parts(const char* name, const int64_t* first, const int64_t* offsets, int64_t N, int64_t T, int64_t per_token,
                        int64_t size, int64_t least) {
    REQUIRE(first, "%s is missing", name);
    for (int64_t n = 0, expected = 0; n <= N; ++n) {
        REQUIRE(first[n] == expected, "%s[%lld] must be %lld for these sequences, got %lld", name, n, expected, first[n]);
        if (n == N) break;
        int64_t entries = (offsets ? offsets[n + 1] - offsets[n] : T) * per_token, parts = entries / size + (entries % size > 0);
        expected += parts < least ? least : parts;
    }
    return nullptr;
}

const char* check_sizes(const Call& a) {
    REQUIRE(a.B >= 0 && a.T >= 0 && a.N >= 0, "B, T and N must be >= 0, got %lld, %lld and %lld", a.B, a.T, a.N);
    REQUIRE(a.H >= 1 && a.K >= 1 && a.V >= 1, "H, K and V must be >= 1, got %lld, %lld and %lld", a.H, a.K, a.V);
    REQUIRE(a.K <= LARGEST && a.V <= LARGEST, "K and V must be at most 2^30, got %lld and %lld", a.K, a.V);
    REQUIRE(a.per_token >= 1, "per_token must be >= 1, got %lld", a.per_token);
    REQUIRE(countable({a.N, a.H, a.K, a.V}) && countable({4096, a.K + 16, a.V + 16}) && countable({a.B, a.T, a.per_token, a.H, a.K + a.V}),
            "B = %lld, T = %lld, H = %lld, K = %lld, V = %lld, N = %lld and per_token = %lld are too many numbers to count", a.B,
            a.T, a.H, a.K, a.V, a.N, a.per_token);
    const int64_t most = (a.V + 15) / 16;
    REQUIRE(a.slices >= 1 && a.slices <= most, "slices must be from 1 to V / 16 = %lld, got %lld", most, a.slices);
    int64_t width = ((a.V + a.slices - 1) / a.slices + 15) / 16 * 16;
    REQUIRE((a.slices - 1) * width < a.V, "%lld slices of V = %lld columns leave one empty", a.slices, a.V);
    REQUIRE(!a.r.data || (!a.bonus && !a.normalize), "bonus and normalize are for calls without r");
    REQUIRE(a.decay >= NONE && a.decay <= PER_CHANNEL, "decay must be from 0 to 3, got %lld", int64_t(a.decay));
    if (!a.offsets) REQUIRE(a.N == a.B, "N must be B = %lld without cu_seqlens, got %lld", a.B, a.N);
    if (a.offsets) REQUIRE(a.B == 1, "cu_seqlens needs B = 1, got %lld", a.B);
    return nullptr;
}

// What every kernel of the recurrence reads.
const char* check_inputs(const Call& a) {
    CHECK(check_sizes(a));
    if (a.offsets) CHECK(check_offsets(a.offsets, a.N, a.T));
    const int64_t writes = a.T * a.per_token;
    CHECK(check_rows("q", a.q, Use::READ, a.B, a.T, a.H, a.K));
    CHECK(check_rows("k", a.k, Use::READ, a.B, writes, a.H, a.K));
    CHECK(check_rows("v", a.v, Use::READ, a.B, writes, a.H, a.V));
    if (a.r.data) CHECK(check_rows("r", a.r, Use::READ, a.B, writes, a.H, a.K));
    if (a.beta.data) CHECK(check_rows("beta", a.beta, Use::READ, a.B, writes, a.H, 1));
    const int64_t channels = a.decay == PER_CHANNEL ? a.K : 1;
    if (a.decay != NONE) CHECK(check_rows("log_decay", a.log_decay, Use::READ, a.B, a.T, a.H, channels));
    return nullptr;
}

// What the forward pass and a step write.
const char* check_outputs(const Call& a) {
    CHECK(check_rows("out", a.out, Use::WRITTEN, a.B, a.T, a.H, a.V));
    REQUIRE(a.wrong, "wrong is missing");
    REQUIRE(a.memory_out || a.N == 0, "memory_out is missing");
    REQUIRE(a.key_sum_out || a.N == 0 || !a.normalize, "key_sum_out is missing");
    return nullptr;
}

// The states that the forward pass keeps and the backward pass reads.
const char* check_segments(const Call& a) {
    CHECK(check_parts("first_segment", a.first_segment, a.offsets, a.N, a.T, a.per_token, SEGMENT_WRITES, 0));
    const int64_t needed = a.first_segment[a.N];
    REQUIRE(countable({needed, a.H, a.K, a.V + 1}), "%lld segments are too many numbers to count", needed);
    REQUIRE(a.segments == needed && (a.entries || needed == 0),
            "the states kept by the forward pass are %lld segments, and these sequences have %lld; cu_seqlens must not change in "
            "between",
            a.entries ? a.segments : 0, needed);
    return nullptr;
}

const char* check_forward(const Call& a) {
    CHECK(check_inputs(a));
    CHECK(check_outputs(a));
    if (a.entries || a.segments) CHECK(check_segments(a));
    return nullptr;
}

const char* check_step(const Call& a) {
    CHECK(check_inputs(a));
    CHECK(check_outputs(a));
    REQUIRE(a.T == 1 && a.per_token == 1, "a step takes T = 1 and per_token = 1, got %lld and %lld", a.T, a.per_token);
    REQUIRE(!a.offsets, "a step takes one token of every row, got packed sequences");
    REQUIRE(a.memory_in || a.N == 0, "memory_in is missing");
    REQUIRE(a.key_sum_in || a.N == 0 || !a.normalize, "key_sum_in is missing");
    return nullptr;
}

const char* check_backward(const Call& a, const Gradients& g) {
    CHECK(check_inputs(a));
    CHECK(check_segments(a));
    const int64_t writes = a.T * a.per_token;
    CHECK(check_rows("the gradient of out", g.out, Use::READ, a.B, a.T, a.H, a.V));
    CHECK(check_rows("the gradient of q", g.q, Use::WRITTEN, a.B, a.T, a.H, a.K));
    CHECK(check_rows("the gradient of k", g.k, Use::WRITTEN, a.B, writes, a.H, a.K));
    CHECK(check_rows("the gradient of v", g.v, Use::WRITTEN, a.B, writes, a.H, a.V));
    if (g.r.data) CHECK(check_rows("the gradient of r", g.r, Use::WRITTEN, a.B, writes, a.H, a.K));
    if (g.beta.data) CHECK(check_rows("the gradient of beta", g.beta, Use::WRITTEN, a.B, writes, a.H, 1));
    if (g.log_decay.data)
        CHECK(check_rows("the gradient of log_decay", g.log_decay, Use::WRITTEN, a.B, a.T, a.H, a.decay == PER_CHANNEL ? a.K : 1));
    REQUIRE(g.memory_in || a.N == 0, "the gradient of memory is missing");
    REQUIRE(a.carries || a.slices == 1, "slices must be 1 without carries, got %lld", a.slices);
    if (!a.carries) return nullptr;
    REQUIRE(!a.normalize && !a.bonus, "carries are for calls without normalize and bonus");
    for (int64_t n = 0; n < a.N; ++n)
        REQUIRE(a.first_segment[n] < a.first_segment[n + 1], "carries need sequences of a token or more, and %lld has none", n);
    return nullptr;
}

}  // namespace
