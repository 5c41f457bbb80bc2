// The recurrence backward, one segment of chunks after the other from the end: the states inside a segment are computed again
// from the one kept at its beginning, then the gradients flow back through its chunks.
#include "check.h"
#include "chunk_back.h"

namespace {

void read_output_gradient(HeadSlice& s, HeadGradients& g, const Tokens& at) {
    float* dO = g.sources + (s.stacked - C) * s.Vp;
    read_tokens(dO, g.out, at, s.call.per_token, s.Vp);
    for (int i = 0; i < C; ++i)
        for (int64_t n = i * s.Vp; n < (i + 1) * s.Vp; n += W) store(dO + n, read_scale(s, i) * load(dO + n));
}

void write_gradients(HeadSlice& s, HeadGradients& g, int64_t w, int64_t writes, const float* dv) {
    const int64_t per_token = s.call.per_token, n = s.call.decay == PER_CHANNEL ? s.Kp : 1;
    Tokens reads = tokens(w, writes, per_token, per_token - 1), decays = tokens(w, writes, per_token, 0);
    write_rows(g.q, reads.first, reads.count, g.drows + (s.stacked - C + reads.row) * s.Kp, per_token * s.Kp);
    if (g.log_decay.base) write_rows(g.log_decay, decays.first, decays.count, g.dlog + decays.row * n, per_token * n);
    if (g.r.base)
        write_rows(g.r, w, writes, g.drows, s.Kp);
    else if (s.erasing)  // r is k
        for (int64_t i = 0; i < C * s.Kp; i += W) store(g.dk + i, load(g.dk + i) + load(g.drows + i));
    write_rows(g.k, w, writes, g.dk, s.Kp);
    write_rows(g.v, w, writes, dv, s.Vp);
    if (g.beta.base) write_rows(g.beta, w, writes, g.dbeta, 1);
}

// What a segment begins with: its first chunk and the state kept before it.
void want_segment(Prefetch& prefetch, const HeadSlice& s, int64_t w) {
    want_inputs(prefetch, s, w, Stream());
    if (w < begin(s)) return;
    int64_t part = s.call.K * s.call.V / C * sizeof(float);
    prefetch.add(reinterpret_cast<char*>(saved_state(s, (w - begin(s)) / SEGMENT_WRITES)), part, part);
}

// The chunks of writes [w0, last), which have buffers of their own; the state before them is in those of the first. `next` is the
// slice that follows, at write `next_w`.
void segment_gradients(HeadSlice& s, HeadGradients& g, const ChunkBuffers* chunks, int64_t w0, int64_t last,
                       const HeadSlice& next, int64_t next_w) {
    const int64_t per_token = s.call.per_token;
    int64_t writes[SEGMENT_CHUNKS], count = 0;
    for (int64_t w = w0; w < last; w += C, ++count) {
        s.use(chunks[count]);
        writes[count] = read_chunk(s, w, last);
        if (w + C < last)
            want_inputs(s.prefetch, s, w + C, Stream());
        else
            g.want(s.prefetch, w, last);
        compute_writes(s);
        if (s.call.normalize) compute_normalizers(s);
        if (w + C >= last) continue;
        advance_state(s, chunks[count + 1].S);
        if (s.call.normalize) advance_key_sum(s, chunks[count + 1].z);
    }
    for (int64_t c = count - 1; c >= 0; --c) {
        int64_t w = w0 + c * C;
        s.use(chunks[c]);
        read_output_gradient(s, g, tokens(w, writes[c], per_token, per_token - 1));
        if (c)
            g.want(s.prefetch, w - C, w);
        else
            want_segment(s.prefetch, next, next_w);
        write_gradients(s, g, w, writes[c], chunk_back(s, g));
    }
}

void load_state_gradient(const HeadSlice& s, const Gradients& all, const HeadGradients& g) {
    const Call& a = s.call;
    const int64_t row = s.n * a.H + s.h;
    fill(g.dS, state_size(a), 0);
    fill(g.dz, s.Kp, 0);
    fill(g.dbonus, s.Kp, 0);
    if (all.key_sum_out) copy(g.dz, all.key_sum_out + row * a.K, a.K);
    if (all.memory_out)
        for (int64_t d = 0; d < a.K; ++d) copy(g.dS + d * s.Vp, all.memory_out + (row * a.K + d) * a.V + s.v0, s.V);
}

void store_state_gradient(const HeadSlice& s, const Gradients& all, const HeadGradients& g) {
    const Call& a = s.call;
    const int64_t row = s.n * a.H + s.h;
    if (all.key_sum_in) copy(all.key_sum_in + row * a.K, g.dz, a.K);
    if (all.bonus) copy(all.bonus + row * a.K, g.dbonus, a.K);
    for (int64_t d = 0; d < a.K; ++d) copy(all.memory_in + (row * a.K + d) * a.V, g.dS + d * s.Vp, a.V);
}

// The state kept before a segment: read in place if it needs no padding, else from `padded_state`; and its sum of keys.
void load_saved_state(ChunkBuffers& first, const HeadSlice& s, int64_t segment, float* padded_state) {
    const Call& a = s.call;
    float* kept = saved_state(s, segment);
    first.S = a.K == s.Kp && a.V == s.Vp ? kept : padded_state;
    if (a.normalize) fill(first.z, s.Kp, 0), copy(first.z, kept + a.K * a.V, a.K);
    if (first.S == kept) return;
    fill(padded_state, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(padded_state + d * s.Vp, kept + d * a.V, a.V);
}

// Buffers for the chunks of a segment, beside those for the gradients of one of them.
struct SegmentBuffers {
    Storage<ChunkBuffers, SEGMENT_CHUNKS> chunks;
    float* padded_state;

    explicit SegmentBuffers(const Call& a) {
        for (int i = 0; i < SEGMENT_CHUNKS; ++i) {
            ChunkBuffers& chunk = *new (&chunks[i]) ChunkBuffers(a);
            chunk.S = arena.take(state_size(a)), chunk.z = arena.take(sum_size(a)), chunk.unscaled = arena.take(C * chunk.Vp);
        }
        padded_state = chunks[0].S;
    }
    // Reserves them, and room for `heads` heads.
    static bool reserve(const Call& a, int64_t heads) {
        return arena.reserve(SEGMENT_CHUNKS * (chunk_size(a) + C * slice_width(a) + state_size(a) + sum_size(a)) +
                             chunk_gradients_size(a) + heads * (slice_size(a) + head_gradients_size(a)));
    }
};

// A group of heads in turn, from their last segment to the first.
bool backward_group(const Call& a, const Gradients& all, int64_t index, int64_t count) {
    if (!SegmentBuffers::reserve(a, count)) return false;
    SegmentBuffers buffers(a);
    ChunkGradients chunk(buffers.chunks[0]);
    Storage<HeadSlice, GROUP> heads;
    Storage<HeadGradients, GROUP> gradients;
    for (int64_t i = 0; i < count; ++i) {
        new (&heads[i]) HeadSlice(a, index + i, buffers.chunks[0]);
        load_state_gradient(heads[i], all, *new (&gradients[i]) HeadGradients(all, heads[i], chunk));
    }
    const int64_t step = SEGMENT_WRITES, first = begin(heads[0]), last = end(heads[0]);
    for (int64_t segment = (last - first + step - 1) / step - 1; segment >= 0; --segment)
        for (int64_t i = 0; i < count; ++i) {
            int64_t w = first + segment * step;
            bool around = i + 1 == count;
            load_saved_state(buffers.chunks[0], heads[i], segment, buffers.padded_state);
            segment_gradients(heads[i], gradients[i], &buffers.chunks[0], w, w + step < last ? w + step : last,
                              heads[around ? 0 : i + 1], around ? w - step : w);
        }
    for (int64_t i = 0; i < count; ++i) store_state_gradient(heads[i], all, gradients[i]);
    return true;
}

// Where there are many threads for each head, the gradient of the state behind every segment is found first, in slices of columns;
// then all segments run in parallel. Both take the same steps as `backward_group`, so the gradients are the same to the last bit.

// The gradient of the state behind a segment.
float* gradient_behind(const HeadSlice& s, int64_t segment) {
    const Call& a = s.call;
    return a.carries + ((a.first_segment[s.n] + segment) * a.H + s.h) * a.K * a.V + s.v0;
}

// The gradient of the state alone, from behind a chunk to before it.
void state_through_chunk(HeadSlice& s, HeadGradients& g, int64_t w, int64_t last) {
    int64_t writes = read_chunk(s, w, last);
    want_inputs(s.prefetch, s, w - C, g.out);
    compute_scores(s);
    read_output_gradient(s, g, tokens(w, writes, s.call.per_token, s.call.per_token - 1));
    if (s.erasing) writes_back(s, g);  // beta W, which what is read back needs
    float sign_entry[2 * C];
    entry_signs(s, sign_entry);
    state_back(s, g, sign_entry);
}

// The gradients of the state behind all segments of a head, for one slice of columns.
bool state_gradients(const Call& a, const Gradients& all, int64_t index) {
    if (!SegmentBuffers::reserve(a, 1)) return false;
    SegmentBuffers buffers(a);
    fill(buffers.chunks[0].unscaled, C * buffers.chunks[0].Vp, 0);  // only the gradient of beta reads it
    ChunkGradients chunk(buffers.chunks[0]);
    HeadSlice s(a, index, buffers.chunks[0]);
    HeadGradients g(all, s, chunk);
    load_state_gradient(s, all, g);
    const int64_t step = SEGMENT_WRITES, first = begin(s), last = end(s);
    for (int64_t segment = (last - first + step - 1) / step - 1; segment >= 0; --segment) {
        for (int64_t d = 0; d < a.K; ++d) copy(gradient_behind(s, segment) + d * a.V, g.dS + d * s.Vp, s.V);
        const int64_t from = first + segment * step, to = from + step < last ? from + step : last;
        for (int64_t w = from + (to - from - 1) / C * C; segment && w >= from; w -= C) state_through_chunk(s, g, w, to);
    }
    return true;
}

// One segment of one head, once the gradient of the state behind it is known.
bool segment_backward(const Call& a, const Gradients& all, int64_t n, int64_t h, int64_t segment) {
    if (!SegmentBuffers::reserve(a, 1)) return false;
    SegmentBuffers buffers(a);
    ChunkGradients chunk(buffers.chunks[0]);
    HeadSlice s(a, n * a.H + h, buffers.chunks[0]);
    HeadGradients g(all, s, chunk);
    fill(g.dS, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(g.dS + d * s.Vp, gradient_behind(s, segment) + d * a.V, a.V);
    const int64_t step = SEGMENT_WRITES, w = begin(s) + segment * step, last = end(s);
    load_saved_state(buffers.chunks[0], s, segment, buffers.padded_state);
    segment_gradients(s, g, &buffers.chunks[0], w, w + step < last ? w + step : last, s, -1);
    if (segment == 0) store_state_gradient(s, all, g);
    return true;
}

// The sequence of a segment, which is counted over all sequences.
int64_t sequence_of(const Call& a, int64_t segment) {
    int64_t n = 0;
    while (a.first_segment[n + 1] <= segment) ++n;
    return n;
}

}  // namespace

LAYOUT(Gradients, AT(out), AT(q), AT(k), AT(v), AT(r), AT(beta), AT(log_decay), AT(memory_out), AT(key_sum_out), AT(memory_in),
       AT(key_sum_in), AT(bonus))
LAYOUT(Backward, AT(call), AT(gradients))

KERNEL(backward, Backward) {
    const Call& a = *call.call;
    const Gradients& all = *call.gradients;
    CHECK(check_backward(a, all));
    if (!a.carries)
        return parallel(a.N * a.H, 1, loop, [&](int64_t begin, int64_t end) {
            bool done = true;
            for (int64_t i = begin, count; i < end && done; i += count)
                done = backward_group(a, all, i, count = group_size(a, i, end));
            return done;
        });
    CHECK(parallel(a.N * a.H * a.slices, 1, loop, [&](int64_t begin, int64_t end) {
        bool done = true;
        for (int64_t i = begin; i < end && done; ++i) done = state_gradients(a, all, i);
        return done;
    }));
    Call whole = a;
    whole.slices = 1;
    return parallel(a.first_segment[a.N] * a.H, 1, loop, [&](int64_t begin, int64_t end) {
        bool done = true;
        for (int64_t i = begin; i < end && done; ++i) {
            int64_t segment = i / a.H, n = sequence_of(a, segment);
            done = segment_backward(whole, all, n, i % a.H, segment - a.first_segment[n]);
        }
        return done;
    });
}
