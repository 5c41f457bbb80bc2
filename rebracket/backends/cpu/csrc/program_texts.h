// Operations that read and change what a slot holds: row after row of each text. Units of work are apart from each other.
//
// Drafted rows change nothing but their record, from which the accepted ones are applied, with the bits of plain rows.
#pragma once
#include "program_rows.h"

namespace {

INLINE float* slot_of(const ProgramCall& a, const Segment& s) { return a.slots + s.slot * a.slot_stride; }
INLINE int64_t plain_rows(const Segment& s) { return s.count - s.drafted; }

// The record of a segment's first drafted row; those of all segments lie one after another.
INLINE float* record_of(const ProgramCall& a, int64_t segment) {
    int64_t before = 0;
    for (int64_t n = 0; n < segment; ++n) before += a.segment[n].drafted;
    return a.records + before * a.record_size;
}

// --- the short convolution: weight [W,D], tail [W-1,D] in the slot; a record is the row's x [D] ---

constexpr int64_t MOST_WIDTH = 64;

void convolve_channels(const ProgramCall& a, const Operation& op, int64_t segment, int64_t d, int64_t n) {
    const Segment& s = a.segment[segment];
    const int64_t D = op.x.width, past = op.width - 1;
    const float* weight = static_cast<const float*>(op.weight) + d;
    float *tail = slot_of(a, s) + op.held + d, *record = s.drafted ? record_of(a, segment) + op.record + d : nullptr;
    Lanes window[MOST_WIDTH];
    for (int64_t j = 0; j < past; ++j) window[j] = load16(tail + j * D, n);
    for (int64_t t = 0; t < s.count; ++t) {
        const int64_t m = s.first + t;
        if (t == plain_rows(s))
            for (int64_t j = 0; j < past; ++j) store16(tail + j * D, window[j], n);
        window[past] = load16(row_of(op.x, m) + d, n);
        if (t >= plain_rows(s)) store16(record + (t - plain_rows(s)) * a.record_size, window[past], n);
        Lanes y = op.bias ? load16(op.bias + d, n) : all(0);
        for (int64_t j = 0; j <= past; ++j) y = fma(load16(weight + j * D, n), window[j], y);
        if (op.flag) y = y * logistic(y);
        store16(row_of(op.out, m) + d, y, n);
        for (int64_t j = 0; j < past; ++j) window[j] = window[j + 1];
    }
    if (!s.drafted)
        for (int64_t j = 0; j < past; ++j) store16(tail + j * D, window[j], n);
}

// The tail after `rows` accepted drafts.
void accept_tail(const ProgramCall& a, const Operation& op, int64_t segment, int64_t rows) {
    const int64_t D = op.x.width, past = op.width - 1;
    float* tail = slot_of(a, a.segment[segment]) + op.held;
    const float* record = record_of(a, segment) + op.record;
    for (int64_t j = 0; j < past; ++j) {  // entry j takes what stands `rows` further on
        const int64_t from = j + rows;
        std::memcpy(tail + j * D, from < past ? tail + from * D : record + (from - past) * a.record_size, D * 4);
    }
}

// --- the recurrence ---
//
// memory [H,K,V] and key_sum [H,K] in the slot; decay holds factors [H] or [H,K]. A record is u [writes,H,V], then k [writes,H,K],
// then the decay [H] or [H,K], then beta [writes,H] where there is a key sum.

enum Channels { NO_DECAY, ONE_DECAY, EVERY_DECAY };

INLINE int64_t decays_a_head(const Operation& op) { return op.decay.data ? op.decay.width / op.heads : 0; }
INLINE int64_t values_recorded(const Operation& op) { return op.per_token * op.heads * op.value_dim; }
INLINE int64_t keys_recorded(const Operation& op) { return op.per_token * op.heads * op.key_dim; }

// N blocks of columns of the memory of one head, the last with n lanes.
template <int N, int C>
struct Columns {
    const Operation& op;
    int64_t n;
    INLINE Lanes read(const float* p, int j) const { return load16(p + 16 * j, j == N - 1 ? n : 16); }
    INLINE void write(float* p, int j, Lanes x) const { store16(p + 16 * j, x, j == N - 1 ? n : 16); }
    INLINE Lanes decayed(const float* row, int j, const float* a, int64_t d) const {
        Lanes s = read(row, j);
        return C == NO_DECAY ? s : all(a[C == EVERY_DECAY ? d : 0]) * s;
    }
    // What a key recalls of the decayed memory.
    INLINE void recall(Lanes (&sum)[N], const float* memory, const float* key, const float* a) const {
        for (int j = 0; j < N; ++j) sum[j] = all(0);
        for (int64_t d = 0; d < op.key_dim; ++d)
#pragma GCC unroll 8
            for (int j = 0; j < N; ++j) sum[j] = fma(all(key[d]), decayed(memory + d * op.value_dim, j, a, d), sum[j]);
    }
    // S = k u^T + a S into `to`; with q also what it recalls.
    INLINE void update(Lanes (&sum)[N], const float* from, float* to, const float* k, const Lanes (&u)[N], const float* q,
                       const float* a) const {
        for (int j = 0; j < N; ++j) sum[j] = all(0);
        for (int64_t d = 0; d < op.key_dim; ++d)
#pragma GCC unroll 8
            for (int j = 0; j < N; ++j) {
                Lanes s = fma(all(k[d]), u[j], decayed(from + d * op.value_dim, j, a, d));
                write(to + d * op.value_dim, j, s);
                if (q) sum[j] = fma(all(q[d]), s, sum[j]);
            }
    }
};

// One head of one segment.
struct Head {
    const ProgramCall& a;
    const Operation& op;
    const Segment& s;
    int64_t h, query, key;
    float *memory, *copy, *record, *scale, *own;
    Head(const ProgramCall& a, const Operation& op, int64_t segment, int64_t h, float* scratch)
        : a(a), op(op), s(a.segment[segment]), h(h), query(h / (op.heads / op.query_heads)), key(h / (op.heads / op.key_heads)) {
        memory = slot_of(a, s) + op.held + h * op.key_dim * op.value_dim;
        record = s.drafted ? record_of(a, segment) + op.record : nullptr;
        scale = scratch, own = scale + a.most_rows, copy = own + a.most_rows;
    }
    INLINE const float* q(int64_t t) const { return row_of(op.x, s.first + t) + query * op.key_dim; }
    INLINE const float* k(int64_t t, int64_t w) const { return row_of(op.k, s.first + t) + (w * op.key_heads + key) * op.key_dim; }
    INLINE const float* r(int64_t t, int64_t w) const { return row_of(op.r, s.first + t) + (w * op.key_heads + key) * op.key_dim; }
    INLINE const float* v(int64_t t, int64_t w) const { return row_of(op.v, s.first + t) + (w * op.heads + h) * op.value_dim; }
    INLINE float beta(int64_t t, int64_t w) const {
        return op.beta.data ? row_of(op.beta, s.first + t)[op.beta.stride ? w * op.heads + h : h] : 1;
    }
    INLINE const float* decay(int64_t t) const { return op.decay.data ? row_of(op.decay, s.first + t) + h * decays_a_head(op) : nullptr; }
    INLINE float* recorded(int64_t t) const { return record + (t - plain_rows(s)) * a.record_size; }

    void keep_record(int64_t t) const;
    void read_scales() const;
    template <int C>
    void columns() const;
    template <int N, int C>
    void column_block(int64_t column, int64_t n) const;
};

void Head::keep_record(int64_t t) const {
    const int64_t K = op.key_dim, each = decays_a_head(op);
    float* keys = recorded(t) + values_recorded(op);
    for (int64_t w = 0; w < op.per_token; ++w) std::memcpy(keys + (w * op.heads + h) * K, k(t, w), K * 4);
    float* decays = keys + keys_recorded(op);
    if (each) std::memcpy(decays + h * each, decay(t), each * 4);
    float* betas = decays + each * op.heads;
    if (op.key_sum >= 0)
        for (int64_t w = 0; w < op.per_token; ++w) betas[w * op.heads + h] = beta(t, w);
}

// z = a z + beta k for one write.
INLINE void add_keys(const Operation& op, float* z, const float* a, int64_t each, const float* k, float beta) {
    for (int64_t i = 0; i < op.key_dim; i += 16) {
        int64_t n = lanes(i, op.key_dim);
        Lanes kept = load16(z + i, n);
        if (each) kept = (each == 1 ? all(a[0]) : load16(a + i, n)) * kept;
        store16(z + i, fma(all(beta), load16(k + i, n), kept), n);
    }
}
INLINE float dot(const float* x, const float* y, int64_t D) {
    return summed(D, [&](int64_t i, int64_t n, Lanes sum) { return fma(load16(x + i, n), load16(y + i, n), sum); });
}

// What every row multiplies its output by, and its own weight where there is a bonus.
void Head::read_scales() const {
    const int64_t K = op.key_dim, each = decays_a_head(op);
    const float* bonus = static_cast<const float*>(op.weight);
    float *z = op.key_sum < 0 ? nullptr : slot_of(a, s) + op.key_sum + h * K, *spare = copy + K * op.value_dim;
    for (int64_t t = 0; t < s.count; ++t) {
        scale[t] = op.after;
        if (bonus)
            own[t] = summed(K, [&](int64_t i, int64_t n, Lanes sum) {
                return fma(load16(q(t) + i, n), load16(bonus + h * K + i, n) * load16(k(t, 0) + i, n), sum);
            });
        if (!z) continue;
        if (t == plain_rows(s)) std::memcpy(spare, z, K * 4), z = spare;
        float total = bonus ? dot(q(t), z, K) + own[t] : 0;
        for (int64_t w = 0; w < op.per_token; ++w) add_keys(op, z, decay(t), w == 0 ? each : 0, k(t, w), beta(t, w));
        scale[t] = reciprocal(bonus ? total : dot(q(t), z, K));
    }
}

template <int N, int C>
void Head::column_block(int64_t column, int64_t n) const {
    const int64_t V = op.value_dim;
    const Columns<N, C> decaying{op, n};
    const Columns<N, NO_DECAY> still{op, n};
    const float* bonus = static_cast<const float*>(op.weight);
    float* state = memory + column;
    Lanes u[N], sum[N], before[N];
    for (int64_t t = 0; t < s.count; ++t) {
        const float* from = state;
        if (t == plain_rows(s)) state = copy + column;  // what drafts write
        if (bonus) still.recall(before, from, q(t), nullptr);
        for (int64_t w = 0; w < op.per_token; ++w) {
            const float *value = v(t, w) + column, strength = beta(t, w), *read = w + 1 == op.per_token && !bonus ? q(t) : nullptr;
            if (op.r.data) {
                if (w == 0) decaying.recall(sum, from, r(t, w), decay(t));
                else still.recall(sum, from, r(t, w), nullptr);
            }
            for (int j = 0; j < N; ++j) {
                u[j] = decaying.read(value, j);
                if (op.r.data) u[j] = u[j] - sum[j];
                if (op.beta.data) u[j] = all(strength) * u[j];
                if (t >= plain_rows(s)) decaying.write(recorded(t) + (w * op.heads + h) * V + column, j, u[j]);
            }
            if (w == 0) decaying.update(sum, from, state, k(t, w), u, read, decay(t));
            else still.update(sum, from, state, k(t, w), u, read, nullptr);
            from = state;
        }
        float* out = row_of(op.out, s.first + t) + h * V + column;
        for (int j = 0; j < N; ++j) {
            if (bonus) sum[j] = fma(all(own[t]), decaying.read(v(t, 0) + column, j), before[j]);
            decaying.write(out, j, all(scale[t]) * sum[j]);
        }
    }
}

constexpr int WIDE = W == 16 ? 8 : 4;  // blocks of columns at once

template <int C>
void Head::columns() const {
    const int64_t V = op.value_dim;
    int64_t v = 0;
    for (; v + 16 * WIDE <= V; v += 16 * WIDE) column_block<WIDE, C>(v, 16);
    for (; v + 32 <= V; v += 32) column_block<2, C>(v, 16);
    for (; v < V; v += 16) column_block<1, C>(v, lanes(v, V));
}

void recur(const ProgramCall& a, const Operation& op, int64_t segment, int64_t h, float* scratch) {
    const Head head(a, op, segment, h, scratch);
    head.read_scales();
    const int64_t each = decays_a_head(op);
    if (each == 0) head.columns<NO_DECAY>();
    else if (each == 1 && op.key_dim > 1) head.columns<ONE_DECAY>();
    else head.columns<EVERY_DECAY>();
    for (int64_t t = plain_rows(head.s); t < head.s.count; ++t) head.keep_record(t);
}

// Applies the records of `rows` accepted drafts to the memory of one head, in order.
template <int C>
void accept_columns(const ProgramCall& a, const Operation& op, const float* record, float* memory, int64_t h, int64_t rows) {
    const int64_t V = op.value_dim, K = op.key_dim, each = decays_a_head(op);
    for (int64_t v = 0; v < V; v += 16) {
        const Columns<1, C> decaying{op, lanes(v, V)};
        const Columns<1, NO_DECAY> still{op, lanes(v, V)};
        for (int64_t t = 0; t < rows; ++t) {
            const float *of = record + t * a.record_size, *keys = of + values_recorded(op), *decay = keys + keys_recorded(op) + h * each;
            for (int64_t w = 0; w < op.per_token; ++w) {
                Lanes u[1] = {decaying.read(of + (w * op.heads + h) * V + v, 0)}, sum[1];
                const float* k = keys + (w * op.heads + h) * K;
                if (w == 0) decaying.update(sum, memory + v, memory + v, k, u, nullptr, decay);
                else still.update(sum, memory + v, memory + v, k, u, nullptr, nullptr);
            }
        }
    }
}

void accept_memory(const ProgramCall& a, const Operation& op, int64_t segment, int64_t h, int64_t rows) {
    const int64_t K = op.key_dim, each = decays_a_head(op);
    float* slot = slot_of(a, a.segment[segment]);
    const float* record = record_of(a, segment) + op.record;
    float* memory = slot + op.held + h * K * op.value_dim;
    if (each == 0) accept_columns<NO_DECAY>(a, op, record, memory, h, rows);
    else if (each == 1 && K > 1) accept_columns<ONE_DECAY>(a, op, record, memory, h, rows);
    else accept_columns<EVERY_DECAY>(a, op, record, memory, h, rows);
    if (op.key_sum < 0) return;
    for (int64_t t = 0; t < rows; ++t) {
        const float *keys = record + t * a.record_size + values_recorded(op), *decay = keys + keys_recorded(op);
        const float* betas = decay + each * op.heads;
        for (int64_t w = 0; w < op.per_token; ++w)
            add_keys(op, slot + op.key_sum + h * K, decay + h * each, w == 0 ? each : 0, keys + (w * op.heads + h) * K,
                     betas[w * op.heads + h]);
    }
}

// --- softmax attention ---
//
// A page holds, for each paged layer, keys [heads,K,PAGE_TOKENS] and values [heads,PAGE_TOKENS,V]; `heads` counts those of keys.

struct Pages {
    const ProgramCall& a;
    const Operation& op;
    const int32_t* table;
    int64_t head;
    INLINE float* page(int64_t position) const {
        return a.pages + table[position / PAGE_TOKENS % a.most_pages] * a.page_size + op.paged;
    }
    INLINE float* keys(int64_t position) const { return page(position) + head * op.key_dim * PAGE_TOKENS; }
    INLINE float* values(int64_t position) const {
        return page(position) + op.heads * op.key_dim * PAGE_TOKENS + (head * PAGE_TOKENS + position % PAGE_TOKENS) * op.value_dim;
    }
};

INLINE void attend_columns(const Pages& pages, const float* weight, int64_t begin, int64_t position, float divisor, float* out,
                           int64_t v, int64_t n) {
    Lanes sum = all(0);
    for (int64_t t = begin; t <= position; ++t) sum = fma(all(weight[t]), load16(pages.values(t) + v, n), sum);
    store16(out + v, sum / all(divisor), n);
}

// One query head of one row: scores of sixteen tokens at a time, then their exponentials, then the values.
void attend_row(const Pages& pages, const float* q, int64_t position, float* out, float* scratch) {
    const Operation& op = pages.op;
    const int64_t begin = op.width && position >= op.width ? position - op.width + 1 : 0, first = begin / 16 * 16;
    float* weight = scratch - first;  // by position
    float most = -__builtin_inff();
    for (int64_t t = first; t <= position; t += 16) {
        const float* keys = pages.keys(t) + t % PAGE_TOKENS;
        Lanes score = all(0);
        for (int64_t d = 0; d < op.key_dim; ++d) score = fma(all(q[d]), load16(keys + d * PAGE_TOKENS), score);
        store16(weight + t, all(op.after) * score);
        for (int64_t i = t; i < t + 16; ++i) {
            if (i < begin || i > position) weight[i] = -__builtin_inff();
            most = most != most || most > weight[i] ? most : weight[i];
        }
    }
    Lanes sum = all(0);
    for (int64_t t = first; t <= position; t += 16) {
        Lanes e = exponential(load16(weight + t) - all(most));
        store16(weight + t, e);
        sum = sum + e;
    }
    const float divisor = total(sum);
    for (int64_t v = 0; v < op.value_dim; v += 16) attend_columns(pages, weight, begin, position, divisor, out, v, lanes(v, op.value_dim));
}

// One head of keys of one segment, with the query heads that read it.
void attend(const ProgramCall& a, const Operation& op, int64_t segment, int64_t head, float* scratch) {
    const Segment& s = a.segment[segment];
    const Pages pages{a, op, a.tables + s.slot * a.most_pages, head};
    const int64_t each = op.query_heads / op.heads;
    for (int64_t t = 0; t < s.count; ++t) {
        const int64_t m = s.first + t, position = a.positions[m];
        const float* k = row_of(op.k, m) + head * op.key_dim;
        float* keys = pages.keys(position) + position % PAGE_TOKENS;
        for (int64_t d = 0; d < op.key_dim; ++d) keys[d * PAGE_TOKENS] = k[d];
        std::memcpy(pages.values(position), row_of(op.v, m) + head * op.value_dim, op.value_dim * 4);
        for (int64_t h = head * each; h < (head + 1) * each; ++h)
            attend_row(pages, row_of(op.x, m) + h * op.key_dim, position, row_of(op.out, m) + h * op.value_dim, scratch);
    }
}

}  // namespace
