// The recurrence backward, one segment of chunks after the other from the end: the states inside a segment are computed again
// from the one kept at its beginning, then the gradients flow back through its chunks.
#include "chunk_back.h"

namespace {

void pack_gradient(Unit& u, Flow& f, const Tokens& at) {
    float* dO = f.ends + (u.stacked - C) * u.Vp;
    pack_tokens(dO, f.out, at, u.call.per_token, u.Vp);
    for (int i = 0; i < C; ++i)
        for (int64_t n = i * u.Vp; n < (i + 1) * u.Vp; n += W) store(dO + n, factor(u, i) * load(dO + n));
}

void emit_gradient(Unit& u, Flow& f, int64_t w, int64_t writes, const float* dv) {
    const int64_t per_token = u.call.per_token, n = u.call.decay == PER_CHANNEL ? u.Kp : 1;
    Tokens reads = tokens(w, writes, per_token, per_token - 1), decays = tokens(w, writes, per_token, 0);
    write_rows(f.q, reads.first, reads.count, f.drows + (u.stacked - C + reads.row) * u.Kp, per_token * u.Kp);
    if (f.log_decay.base) write_rows(f.log_decay, decays.first, decays.count, f.dlog + decays.row * n, per_token * n);
    if (f.r.base)
        write_rows(f.r, w, writes, f.drows, u.Kp);
    else if (u.erasing)  // r is k
        for (int64_t i = 0; i < C * u.Kp; i += W) store(f.dk + i, load(f.dk + i) + load(f.drows + i));
    write_rows(f.k, w, writes, f.dk, u.Kp);
    write_rows(f.v, w, writes, dv, u.Vp);
    if (f.beta.base) write_rows(f.beta, w, writes, f.dbeta, 1);
}

// What a segment begins with: its first chunk and the state kept before it.
void ask_segment(Ahead& ahead, const Unit& u, int64_t w) {
    ask_inputs(ahead, u, w, Stream());
    if (w < begin(u)) return;
    int64_t part = u.call.K * u.call.V / C * sizeof(float);
    ahead.add(reinterpret_cast<char*>(saved(u, (w - begin(u)) / (SEGMENT * C))), part, part);
}

// Writes [w0, last) of a unit, whose chunks have buffers of their own; the state before them is in those of the first.
void segment_back(Unit& u, Flow& f, const Buffers* chunks, int64_t w0, int64_t last, const Unit& next, int64_t next_w) {
    const int64_t per_token = u.call.per_token;
    int64_t writes[SEGMENT], count = 0;
    for (int64_t w = w0; w < last; w += C, ++count) {
        u.use(chunks[count]);
        writes[count] = pack(u, w, last);
        if (w + C < last)
            ask_inputs(u.ahead, u, w + C, Stream());
        else
            f.ask(u.ahead, w, last);
        resolve(u);
        if (u.call.normalize) add_up(u);
        if (w + C >= last) continue;
        advance(u, chunks[count + 1].S);
        if (u.call.normalize) advance_sum(u, chunks[count + 1].z);
    }
    for (int64_t c = count - 1; c >= 0; --c) {
        int64_t w = w0 + c * C;
        u.use(chunks[c]);
        pack_gradient(u, f, tokens(w, writes[c], per_token, per_token - 1));
        if (c)
            f.ask(u.ahead, w - C, w);
        else
            ask_segment(u.ahead, next, next_w);
        emit_gradient(u, f, w, writes[c], chunk_back(u, f));
    }
}

void enter_back(const Unit& u, const Gradients& g, const Flow& f) {
    const Call& a = u.call;
    const int64_t row = u.n * a.H + u.h;
    fill(f.dS, state_size(a), 0);
    fill(f.dz, u.Kp, 0);
    fill(f.dbonus, u.Kp, 0);
    if (g.key_sum_out) copy(f.dz, g.key_sum_out + row * a.K, a.K);
    if (g.memory_out)
        for (int64_t d = 0; d < a.K; ++d) copy(f.dS + d * u.Vp, g.memory_out + (row * a.K + d) * a.V + u.v0, u.V);
}

void leave_back(const Unit& u, const Gradients& g, const Flow& f) {
    const Call& a = u.call;
    const int64_t row = u.n * a.H + u.h;
    if (g.key_sum_in) copy(g.key_sum_in + row * a.K, f.dz, a.K);
    if (g.bonus) copy(g.bonus + row * a.K, f.dbonus, a.K);
    for (int64_t d = 0; d < a.K; ++d) copy(g.memory_in + (row * a.K + d) * a.V, f.dS + d * u.Vp, a.V);
}

// The state kept at the beginning of a segment: where it lies if it needs no padding, else in `room`; and its sum of keys.
void restore(Buffers& first, const Unit& u, int64_t segment, float* room) {
    const Call& a = u.call;
    float* kept = saved(u, segment);
    first.S = a.K == u.Kp && a.V == u.Vp ? kept : room;
    if (a.normalize) fill(first.z, u.Kp, 0), copy(first.z, kept + a.K * a.V, a.K);
    if (first.S == kept) return;
    fill(room, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(room + d * u.Vp, kept + d * a.V, a.V);
}

// Buffers for the chunks of a segment, and for what flows back through one of them.
struct Segment {
    Room<Buffers, SEGMENT> chunks;
    float* room;  // for a state that has to be padded

    explicit Segment(const Call& a) {
        for (int i = 0; i < SEGMENT; ++i) {
            Buffers& chunk = *new (&chunks[i]) Buffers(a);
            chunk.S = arena.take(state_size(a)), chunk.z = arena.take(sum_size(a)), chunk.before = arena.take(C * chunk.Vp);
        }
        room = chunks[0].S;
    }
    static int64_t size(const Call& a) {
        return SEGMENT * (scratch(a) + C * slice_width(a) + state_size(a) + sum_size(a)) + flow_size(a);
    }
};

// Heads that take turns, from their last segment to the first.
void run(const Call& a, const Gradients& g, int64_t index, int64_t count) {
    arena.reserve(Segment::size(a) + count * (unit_size(a) + head_size(a)));
    Segment segment(a);
    FlowBuffers buffers(segment.chunks[0]);
    Room<Unit, GROUP> units;
    Room<Flow, GROUP> flows;
    for (int64_t i = 0; i < count; ++i) {
        new (&units[i]) Unit(a, index + i, segment.chunks[0]);
        enter_back(units[i], g, *new (&flows[i]) Flow(g, units[i], buffers));
    }
    const int64_t step = SEGMENT * C, first = begin(units[0]), last = end(units[0]);
    for (int64_t s = (last - first + step - 1) / step - 1; s >= 0; --s)
        for (int64_t i = 0; i < count; ++i) {
            int64_t w = first + s * step;
            bool around = i + 1 == count;
            restore(segment.chunks[0], units[i], s, segment.room);
            segment_back(units[i], flows[i], &segment.chunks[0], w, w + step < last ? w + step : last,
                         units[around ? 0 : i + 1], around ? w - step : w);
        }
    for (int64_t i = 0; i < count; ++i) leave_back(units[i], g, flows[i]);
}

// Where there are many threads for each head, what flows back into every segment is found first, for slices of columns apart;
// then all segments can go at once. Both take the same steps as `run`, so the gradients are the same to the last bit.

// The gradient that enters segment `segment` from behind.
float* carried(const Unit& u, int64_t segment) {
    const Call& a = u.call;
    return a.carries + ((a.first_segment[u.n] + segment) * a.H + u.h) * a.K * a.V + u.v0;
}

// Through a chunk on the way to the one before: of the gradients only that of the state.
void pass(Unit& u, Flow& f, int64_t w, int64_t last) {
    int64_t writes = pack(u, w, last);
    ask_inputs(u.ahead, u, w - C, f.out);
    score(u);
    pack_gradient(u, f, tokens(w, writes, u.call.per_token, u.call.per_token - 1));
    if (u.erasing) writes_back(u, f);  // beta W, which what is read back needs
    float sign_entry[2 * C];
    signs(u, sign_entry);
    state_back(u, f, sign_entry);
}

void carry(const Call& a, const Gradients& g, int64_t index) {
    arena.reserve(Segment::size(a) + unit_size(a) + head_size(a));
    Segment segment(a);
    fill(segment.chunks[0].before, C * segment.chunks[0].Vp, 0);  // only the gradient of beta asks for it
    FlowBuffers buffers(segment.chunks[0]);
    Unit u(a, index, segment.chunks[0]);
    Flow f(g, u, buffers);
    enter_back(u, g, f);
    const int64_t step = SEGMENT * C, first = begin(u), last = end(u);
    for (int64_t s = (last - first + step - 1) / step - 1; s >= 0; --s) {
        for (int64_t d = 0; d < a.K; ++d) copy(carried(u, s) + d * a.V, f.dS + d * u.Vp, u.V);
        const int64_t from = first + s * step, to = from + step < last ? from + step : last;
        for (int64_t w = from + (to - from - 1) / C * C; s && w >= from; w -= C) pass(u, f, w, to);
    }
}

// One segment of one head.
void piece(const Call& a, const Gradients& g, int64_t n, int64_t h, int64_t s) {
    arena.reserve(Segment::size(a) + unit_size(a) + head_size(a));
    Segment segment(a);
    FlowBuffers buffers(segment.chunks[0]);
    Unit u(a, n * a.H + h, segment.chunks[0]);
    Flow f(g, u, buffers);
    fill(f.dS, state_size(a), 0);
    for (int64_t d = 0; d < a.K; ++d) copy(f.dS + d * u.Vp, carried(u, s) + d * a.V, a.V);
    const int64_t step = SEGMENT * C, w = begin(u) + s * step, last = end(u);
    restore(segment.chunks[0], u, s, segment.room);
    segment_back(u, f, &segment.chunks[0], w, w + step < last ? w + step : last, u, -1);
    if (s == 0) leave_back(u, g, f);
}

// The sequence to which kept segment `segment` of all belongs.
int64_t sequence_of(const Call& a, int64_t segment) {
    int64_t n = 0;
    while (a.first_segment[n + 1] <= segment) ++n;
    return n;
}

}  // namespace

#define NAME(isa) rebracket_backward_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin, count; i < end; i += count) run(*call, *gradients, i, count = together(*call, i, end));
}

#define CARRY(isa) rebracket_carry_##isa
#define EXPORT_CARRY(isa) CARRY(isa)
extern "C" void EXPORT_CARRY(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) carry(*call, *gradients, i);
}

#define PIECES(isa) rebracket_pieces_##isa
#define EXPORT_PIECES(isa) PIECES(isa)
extern "C" void EXPORT_PIECES(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        int64_t segment = i / call->H, n = sequence_of(*call, segment);
        piece(*call, *gradients, n, i % call->H, segment - call->first_segment[n]);
    }
}
