// The recurrence forward; the state of one sequence and head stays in cache throughout.
//
//     O = scale ((G * Q) S + A U),  S' = Diag(G[C]) S + (D[C,.] * K)^T U
#include "check.h"
#include "chunk.h"

namespace {

// Multiplies each read by its factor, by way of what it is made from: its decay since the chunk began and its row of scores.
void scale_reads(HeadSlice& s) {
    for (int i = 0; i < C; ++i) {
        float by = read_scale(s, i);
        s.since_start[i] *= by;
        for (int n = i * C; n < i * C + C; n += W) store(s.q_scores + n, by * load(s.q_scores + n));
    }
}

// N vectors of columns of O from `n` on, into `to`; a few rows at a time, which read nothing written after them.
template <int N>
INLINE void read_columns(HeadSlice& s, float* to, int64_t ld, int64_t n, Vectors<N>) {
    for (int m = 0; m < C; m += TILE_R) {
        vec acc[TILE_R][N] = {};
        s.prefetch.issue();
        accumulate(acc, s.q_rows + m * s.Kp, s.Kp, 1, s.S + n, s.Vp, s.Kp);
        for (int r = 0; r < TILE_R; ++r)
            for (int i = 0; i < N; ++i) acc[r][i] *= s.since_start[m + r];
        accumulate(acc, s.q_scores + m * C, C, 1, s.written + n, s.Vp, m + TILE_R);
        store_tile(acc, to + m * ld + n, ld);
    }
}

void compute_outputs(HeadSlice& s, float* to, int64_t ld) {
    in_panels(s.Vp, [&](int64_t n, auto vectors) __attribute__((always_inline)) { read_columns(s, to, ld, n, vectors); });
}

// The outputs of the chunk's tokens, straight into the caller's tensor if whole rows of floats fit there.
void write_outputs(HeadSlice& s, const Tokens& at) {
    scale_reads(s);
    if (at.count == C && s.V == s.Vp && s.outputs.dtype == FLOAT32)
        return compute_outputs(s, reinterpret_cast<float*>(s.outputs.at(at.first)), s.outputs.step / sizeof(float));
    compute_outputs(s, s.out, s.Vp);
    write_rows(s.outputs, at.first, at.count, s.out + at.row * s.Vp, s.call.per_token * s.Vp);
}

void save_state(HeadSlice& s, int64_t segment) {
    if (!s.call.entries) return;
    float* to = saved_state(s, segment);
    for (int64_t d = 0; d < s.call.K; ++d) copy(to + d * s.call.V + s.v0, s.S + d * s.Vp, s.V);
    if (s.call.normalize && s.v0 == 0) copy(to + s.call.K * s.call.V, s.z, s.call.K);
}

// The chunks of writes [w, last), at most a segment. `next` is the slice that follows, at write `next_w`.
void segment_forward(HeadSlice& s, int64_t w, int64_t last, HeadSlice& next, int64_t next_w) {
    const int64_t per_token = s.call.per_token;
    for (; w < last; w += C) {
        int writes = read_chunk(s, w, last);
        const HeadSlice& then = w + C < last ? s : next;
        want_inputs(s.prefetch, then, w + C < last ? w + C : next_w, then.outputs);
        compute_writes(s);
        if (s.call.normalize) compute_normalizers(s);
        write_outputs(s, tokens(w, writes, per_token, per_token - 1));
        advance_state(s, s.S);
        if (s.call.normalize) advance_key_sum(s, s.z);
    }
}

// A group of slices in turn, a segment each.
bool forward_group(const Call& a, int64_t index, int64_t count) {
    if (!arena.reserve(chunk_size(a) + count * (slice_size(a) + state_size(a) + sum_size(a)))) return false;
    ChunkBuffers buffers(a);
    Storage<HeadSlice, GROUP> slices;
    for (int64_t i = 0; i < count; ++i) {
        buffers.S = arena.take(state_size(a)), buffers.z = arena.take(sum_size(a));
        load_state(*new (&slices[i]) HeadSlice(a, index + i, buffers));
    }
    int64_t last = end(slices[0]);
    for (int64_t w = begin(slices[0]), segment = 0; w < last; w += SEGMENT_WRITES, ++segment)
        for (int64_t i = 0; i < count; ++i) {
            save_state(slices[i], segment);
            int64_t stop = w + SEGMENT_WRITES < last ? w + SEGMENT_WRITES : last;
            bool around = i + 1 == count;
            segment_forward(slices[i], w, stop, slices[around ? 0 : i + 1], around ? stop : w);
        }
    for (int64_t i = 0; i < count; ++i) {
        store_state(slices[i]);
        if (slices[i].wrong) *a.wrong = 1;
    }
    return true;
}

}  // namespace

LAYOUT(Rows, AT(data), AT(batch), AT(time), AT(head), AT(heads), AT(dtype), AT(B), AT(T), AT(D))
LAYOUT(Call, AT(B), AT(T), AT(H), AT(K), AT(V), AT(N), AT(per_token), AT(slices), AT(segments), AT(decay), AT(normalize), AT(scale), AT(q),
       AT(k), AT(v), AT(r), AT(beta), AT(log_decay), AT(out), AT(bonus), AT(offsets), AT(memory_in), AT(key_sum_in), AT(memory_out),
       AT(key_sum_out), AT(entries), AT(first_segment), AT(carries), AT(wrong), CONSTANT(CHUNK_WRITES), CONSTANT(SEGMENT_WRITES))

KERNEL(forward, Call) {
    CHECK(check_forward(call));
    return parallel(call.N * call.H * call.slices, 1, loop, [&](int64_t begin, int64_t end) {
        bool done = true;
        for (int64_t i = begin, count; i < end && done; i += count) done = forward_group(call, i, count = group_size(call, i, end));
        return done;
    });
}
