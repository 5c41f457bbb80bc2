// The C interface of a program: a whole model as a list of operations over rows, and one call of it over texts of any lengths.
//
// A row is one token. A slot holds what one text keeps. Every sum is made in an order that depends on neither the number of rows
// nor the other rows, so a row's bits depend on weights and its own text alone.
#pragma once
#include <cstdint>

constexpr int64_t PAGE_TOKENS = 64;  // of a page of keys and values
constexpr int64_t LANES = 16;        // outputs of a panel of weights, and partial sums of every sum

extern "C" {

enum Kind : int32_t {
    EMBED, PRODUCT, QUANTIZE, SELECT, MAP, PAIR, NORMALIZE, SUM, EXPONENTIALS, CONVOLVE, ROTATE, COSINE, RECUR, ATTEND, GATHER, KINDS
};
enum Function : int32_t { SILU, SIGMOID, SOFTPLUS, LOGSIGMOID, EXP, EXPM1, RELU, ELU1, SQUARE, SIN, COS, NEGATIVE, FUNCTIONS };
enum Pairing : int32_t { ADD, SUBTRACT, MULTIPLY, MAXIMUM, MINIMUM, LOGADDEXP, PAIRINGS };
enum Norm : int32_t { RMS, CENTERED, UNIT, NORMS };
enum Format : int32_t { WHOLE, HALF, BYTE, FORMATS };  // of weights: float32, bfloat16, int8
enum Wanted : int32_t { NO_LOGITS, LAST_LOGITS, ALL_LOGITS };

// A value: `width` numbers of row 0 at `data`, those of the next row `stride` numbers on. A weight has stride 0. Null is absent.
struct Span {
    float* data;
    int64_t stride, width;
};

// One operation; which fields it reads, and their shapes, stand with its kernel.
struct Operation {
    int32_t kind, function, format, flag;  // flag: silu of a convolution, division of exponentials
    Span out, x, k, v, r, beta, decay;     // x is q of a recurrence and of attention
    const void* weight;
    const float* bias;
    const int64_t* index;
    int64_t groups, query_heads, key_heads, heads, key_dim, value_dim, per_token;
    int64_t width;        // of a convolution, of a window in tokens (0 is all)
    int64_t weight_step;  // from the weights of one part to those of the next
    int64_t held, key_sum;  // places in a slot; key_sum is -1 without a normalizer
    int64_t paged;          // place in a page
    int64_t record;         // place in the record of a drafted row
    float eps, before, after;
};

// The next `count` tokens of one text, the last `drafted` of them guesses; how its next token is chosen; and what came of it.
struct Segment {
    int64_t slot, first, count, drafted;
    int32_t wanted, choose;  // which rows' logits are wanted; whether the next token is chosen
    double temperature, top_p;
    int64_t top_k, limit, stop;  // 0 for all tokens; ids below limit; -1 for none
    uint64_t seed, drawn;
    int64_t accepted;  // rows that the slot has read, of `count`
    int32_t ended, damaged;
};

// One call. A program's own arrays are as long as `most_rows` needs.
struct ProgramCall {
    const Operation *body, *head;
    int64_t bodies, heads;
    int64_t rows, most_rows, segments, drafts, threads, vocab;
    Span logits;
    Segment* segment;
    const int64_t* tokens;  // [rows]
    int64_t* positions;     // [most_rows]
    int64_t* wanted;        // [most_rows], rows whose logits are wanted
    int64_t* chosen;        // [most_rows]
    int32_t* owner;         // [most_rows], the segment of a row
    float* slots;           // [slots, slot_stride]
    int64_t slot_count, slot_stride;
    int64_t* seen;          // [slots], -1 for a slot that is closed
    float* pages;           // [pages, page_size]
    int64_t page_count, page_size, most_pages;
    int64_t window;         // the longest of all softmax layers, 0 for all tokens
    const int32_t* tables;  // [slots, most_pages], the pages of each slot in order, from the first again after the last
    float* records;         // [drafts, record_size]
    int64_t record_size;
    float* scratch;         // [threads, scratch_size]
    int64_t scratch_size;
    int64_t wanted_count;   // how many logits were computed
};

// Weights [N,K] by rows, packed as `format`; N and K as they are.
struct Packing {
    const float* from;
    void* to;
    int64_t N, K;
    int32_t format;
};
}
