// The C interface of the recurrence: one call, described by sizes, pointers and strides.
//
//     S~_t = Diag(exp(log_decay_t)) S_{t-1},   u_t = beta_t (v_t - S~_t^T r_t),   S_t = S~_t + k_t u_t^T,   o_t = scale S_t^T q_t
#pragma once
#include <cstdint>

constexpr int64_t CHUNK_WRITES = 16;     // writes that are computed at once
constexpr int64_t SEGMENT_WRITES = 128;  // writes between two states kept for the backward pass

extern "C" {

enum Dtype : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };
enum Decay : int32_t { NONE = 0, PER_HEAD = 1, PER_TOKEN = 2, PER_CHANNEL = 3 };

// x[b, t, head, d], with d contiguous. The last three sizes are checked against the call before anything is read.
struct Rows {
    void* data;
    int64_t batch, time, head;  // strides in elements
    int64_t heads;
    int32_t dtype;  // Dtype
    int64_t B = 0, T = 0, D = 0;
};

struct Call {
    int64_t B, T, H, K, V, N;
    int64_t per_token;  // writes a token; k, v, r and beta have T * per_token entries
    int64_t slices;     // into which the value columns of a head are cut, so that every thread has work
    int64_t segments;   // for which `entries` has room
    int32_t decay;      // Decay
    int32_t normalize;
    float scale;
    Rows q, k, v, r, beta, log_decay, out;  // data = null where absent; beta and log_decay have D = 1 unless per channel
    const float* bonus;                     // [H,K] or null
    const int64_t* offsets;                 // [N+1], tokens of packed sequences in one row, or null
    const float* memory_in;                 // [N,H,K,V] or null for zeros
    const float* key_sum_in;                // [N,H,K]
    float* memory_out;
    float* key_sum_out;
    float* entries;                // states kept for the backward pass [segments,H], each [K,V], then [K] if normalize; or null
    const int64_t* first_segment;  // [N+1], of every sequence
    float* carries;                // room for the gradient of the state behind every segment [segments,H,K,V]; or null
    int32_t* wrong;                // set to 1 when a log-decay is positive or NaN, or a beta not in [0, 2]
};

// Gradients: `out` and the final state in, everything else out; H heads also for q, k and r.
struct Gradients {
    Rows out, q, k, v, r, beta, log_decay;
    const float *memory_out, *key_sum_out;  // or null for zeros
    float *memory_in, *key_sum_in;
    float* bonus;  // [N,H,K] or null
};

// The backward pass of a call.
struct Backward {
    const Call* call;
    const Gradients* gradients;
};
}
