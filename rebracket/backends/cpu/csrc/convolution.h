// The C interface of the short convolution: one call, described by pointers and strides.
//
//     y_t = act(b + sum_j w_j e_{t+j}),  j = 0..width-1,  e: the tail [width-1,D], then the sequence's x
#pragma once
#include "recurrence.h"

extern "C" {

struct Convolution {
    int64_t T, D, N, width;
    int64_t block, blocks;  // tokens of a block, at which sums are made; blocks of all sequences, each of which has one at least
    int32_t silu;
    int32_t dtype;  // Dtype of x, y, the tails and their gradients
    int32_t weight_dtype, bias_dtype;
    const void* x;  // [N,T,D], or packed [1,T,D]; strides in elements, channels contiguous; all else is contiguous
    int64_t x_row, x_token;
    void* y;
    const void* tail;  // [N,width-1,D] or null for zeros
    void* tail_out;
    const void *weight, *bias;    // [D,width]; [D] or null
    const int64_t* offsets;       // [N+1], tokens of packed sequences, or null
    const int64_t* first_block;   // [N+1], of packed sequences
    const void* grad_y;           // or null for zeros, as is grad_tail_out
    int64_t grad_y_row, grad_y_token;
    const void* grad_tail_out;
    void *grad_x, *grad_tail;     // grad_tail may be null
    float* sums;                  // [blocks,width+1,D], of each block: gradients of the weight, then of the bias
    float *grad_weight, *grad_bias;
};
}
