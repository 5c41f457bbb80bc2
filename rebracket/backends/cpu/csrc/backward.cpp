// The recurrence backward, one segment of chunks after the other from the end: the states inside a segment are computed again
// from the one kept at its beginning, then the gradients flow back through its chunks.
//
//     dU = A^T dO + (D[C,.] * K) dS',  W = (I + beta L)^-T dU,  dV = beta W
//     dA = tril(dO U^T),  dL = -stril(beta W U^T)
//     dQ = (dA D) K + G * (dO S^T),  dR = (dL D) K - G * (beta W S^T),  dK = (dA D)^T Q + (dL D)^T R + D[C,.] * (U dS'^T)
//     dS = Diag(G[C]) dS' + (G * Q)^T dO - (G * R)^T beta W
#include "chunk.h"

namespace {

// What flows back through one chunk. R and Q, and beta W and dO, stand above each other.
struct FlowBuffers {
    float *ends, *dU;               // [beta W; dO] [2C,Vp]; dU, then W [C,Vp]
    float *ends_turned, *u_turned;  // the same transposed, [Vp,2C] and [Vp,C]
    float *dscores, *passed;        // [dL; dA] weighted by D, [2C,C]; dA A + dL L, [C,C]
    float *turned, *drows, *dk;     // gradients of [R; Q] and K, transposed [Kp,2C], [2C,Kp], [C,Kp]
    float *scaled;                  // [-G R; G Q]
    float *dlog, *dbeta, *dtotal;   // [C,1 or Kp], [C], [C]
    float* overlap;                 // rows of S times rows of dS [Kp]: what a decay's gradient has from state to state

    FlowBuffers(const Buffers& u) {
        ends = arena.take(2 * C * u.Vp), dU = arena.take(C * u.Vp);
        ends_turned = arena.take(2 * C * u.Vp), u_turned = arena.take(C * u.Vp);
        dscores = arena.take(2 * C * C), passed = arena.take(C * C);
        turned = arena.take(2 * C * u.Kp), drows = arena.take(2 * C * u.Kp), dk = arena.take(C * u.Kp);
        scaled = arena.take(2 * C * u.Kp), dlog = arena.take(C * u.Kp), dbeta = arena.take(C), dtotal = arena.take(C), overlap = arena.take(u.Kp);
    }
};

// One sequence and head backward, with the buffers of its current chunk.
struct Flow : FlowBuffers {
    float *dS, *dz;  // gradients of the state [Kp,Vp] and of the sum of keys [Kp] after the chunk, then before it
    float* dbonus;   // [Kp], so far
    Stream out, q, k, v, r, beta, log_decay;

    Flow(const Gradients& g, const Unit& u, const FlowBuffers& buffers) : FlowBuffers(buffers) {
        const Call& a = u.call;
        dS = arena.take(state_size(a)), dz = arena.take(u.Kp), dbonus = arena.take(u.Kp);
        auto stream = [&](const Rows& x, int64_t n) { return Stream(x, u.batch, u.h, a.H, 0, n); };
        out = stream(g.out, a.V), q = stream(g.q, a.K), k = stream(g.k, a.K), v = stream(g.v, a.V);
        r = stream(g.r, a.K), beta = stream(g.beta, 1), log_decay = stream(g.log_decay, a.decay == PER_CHANNEL ? a.K : 1);
    }
    // Lets the gradients of writes [w, w + C) be asked for.
    void ask(Ahead& ahead, int64_t w, int64_t end) const { ::ask(ahead, {&out, &q, &k, &v, &r, &log_decay}, w, end); }
};

// Floats that these take from the arena: for a chunk of any head, and for a head.
int64_t flow_size(const Call& a) { return C * padded(a.V) * 6 + 3 * C * C + (C * 8 + 1) * padded(a.K) + 2 * C; }
int64_t head_size(const Call& a) { return state_size(a) + 2 * padded(a.K); }

// W from dU, in place from the last write to the first, and beta W; every row that is known is taken from all rows before it.
void solve_back(Unit& u, Flow& f, float* strong) {
    vec along[C] = {};
    for (int64_t n = 0; n < u.Vp; n += W) {
        vec x[C];
        for (int i = 0; i < C; ++i) x[i] = load(f.dU + i * u.Vp + n);
#pragma GCC unroll 16
        for (int i = C - 1; i >= 0; --i) {
            vec known = u.beta[i] * x[i];
            store(strong + i * u.Vp + n, known);
            along[i] += x[i] * load(u.before + i * u.Vp + n);
            if (!u.erasing) continue;
#pragma GCC unroll 16
            for (int j = 0; j < i; ++j) x[j] -= u.scores[i * C + j] * known;
        }
    }
    reduce16(along, f.dbeta);
}

INLINE float dot(const float* x, const float* y, int64_t n) {
    vec acc = {};
    for (int64_t i = 0; i < n; i += W) acc += load(x + i) * load(y + i);
    return sum(acc);
}

// d log a_m, what passes through the decay of write m: from earlier writes to this and later reads, from the state on entry to
// this and later reads, from earlier writes to the state on exit, and from state to state. Every term is a product that holds
// the decay itself; nothing is subtracted. A read that comes before its own token's decay (bonus) counts one token later.
//
//     sum over i >= m, j < m of dA_ij A_ij + dL_ij L_ij  +  sum over i >= m of entry_i  +  sum over j < m of exit_j  +  carried
void decay_gradient(Unit& u, Flow& f, const float* entry, const float* exit, float carried) {
    vec later[C / W] = {}, sums[C];
    float read = carried, written[C + 1] = {}, passed[C];
    for (int j = 0; j < C; ++j) written[j + 1] = written[j] + exit[j];
    for (int m = C - 1; m >= 0; --m) {
        int i = u.call.bonus ? m + 1 : m;
        sums[m] = vec{};
        for (int n = 0; n < C / W; ++n) {
            if (i < C) later[n] += load(f.passed + i * C + n * W);
            sums[m] += keep(later[n], triangle.below[m] + n * W);
        }
        if (i < C) read += entry[i];
        f.dlog[m] = read + written[m];
    }
    reduce16(sums, passed);
    for (int m = 0; m < C; ++m) f.dlog[m] = u.log[m] < LEAST_LOG ? 0 : f.dlog[m] + passed[m];
}

// The same for one vector of channels at d, and before it the gradients of the rows themselves: what came through the state is
// scaled by the decays since entry or until exit, what came through a score by those to the border between its pair.
void channel_gradient(Unit& u, Flow& f, int64_t d) {
    int64_t Kp = u.Kp;
    const int q0 = u.stacked - C;
    const bool bonus = u.call.bonus;
    vec a[C], dq[C], dr[C], dk[C], dlog[C], product = splat(1), carried = {};
    auto q = [&](int i) { return load(u.plain + (q0 + i) * Kp + d); };
    auto r = [&](int i) { return load(u.plain + i * Kp + d); };
    auto k = [&](int i) { return load(u.k + i * Kp + d); };
    for (int i = 0; i < C; ++i) {
        a[i] = exp_negative(load(u.channel + i * Kp + d));
        vec read = bonus ? product : product * a[i];
        product *= a[i];
        dq[i] = read * load(f.drows + (q0 + i) * Kp + d);
        dr[i] = u.erasing ? -product * load(f.drows + i * Kp + d) : vec{};
    }
    carried = load(f.overlap + d);
    if (u.call.normalize) carried += load(u.z + d) * load(f.dz + d);
    carried *= product;
    product = splat(1);
    for (int j = C - 1; j >= 0; --j) {
        dk[j] = product * load(f.dk + j * Kp + d);
        product *= a[j];
    }
    for (int m = 0; m < C; ++m) {
        dlog[m] = carried;
        carried += k(m) * dk[m];
    }
    vec later = {};
    for (int m = C - 1; m >= 0; --m) {
        vec read = q(m) * dq[m];
        if (u.erasing) later += r(m) * dr[m];
        dlog[m] += bonus ? later : later + read;
        later += read;
    }
    for (int level = 0, h = 1; level < LEVELS; ++level, h *= 2)
        for (int mid = h; mid < C; mid += 2 * h) {
            vec p = splat(1), e = splat(1), through[C];
            for (int i = mid; i < mid + h; ++i) {
                vec through_q = {}, through_r = {};
                for (int j = mid - h; j < mid; ++j) {
                    vec key = load(u.left + (level * C + j) * Kp + d);
                    through_q += f.dscores[(q0 + i) * C + j] * key;
                    if (u.erasing) through_r += f.dscores[i * C + j] * key;
                }
                through_q *= bonus ? p : p * a[i];
                p *= a[i];
                through_r *= p;
                through[i] = q(i) * through_q;
                if (u.erasing) through[i] += r(i) * through_r;
                dq[i] += through_q, dr[i] += through_r;
            }
            vec passed = {};
            for (int i = mid + h - 1; i >= mid; --i) {
                dlog[i] += bonus ? passed : passed + through[i];
                passed += through[i];
            }
            for (int j = mid - 1; j >= mid - h; --j) {
                vec back = {};
                for (int i = mid; i < mid + h; ++i) {
                    back += f.dscores[(q0 + i) * C + j] * load(u.right + ((LEVELS + level) * C + i) * Kp + d);
                    if (u.erasing) back += f.dscores[i * C + j] * load(u.right + (level * C + i) * Kp + d);
                }
                back *= e;
                e *= a[j];
                dk[j] += back;
                through[j] = k(j) * back;
            }
            passed = vec{};
            for (int j = mid - h; j < mid; ++j) {
                dlog[j] += passed;
                passed += through[j];
            }
        }
    for (int i = 0; i < C; ++i) {
        store(f.dlog + i * Kp + d, load(u.channel + i * Kp + d) < splat(LEAST_LOG) ? vec{} : dlog[i]);
        if (!bonus) {  // the pair of a token with itself
            float own = f.dscores[(q0 + i) * C + i];
            dq[i] += own * k(i), dk[i] += own * q(i);
        }
        store(f.drows + (q0 + i) * Kp + d, dq[i]);
        if (u.erasing) store(f.drows + i * Kp + d, dr[i]);
        store(f.dk + i * Kp + d, dk[i]);
    }
}

// The pair of a token with itself under a bonus: A_ii = sum of q_i bonus k_i.
void bonus_gradient(Unit& u, Flow& f, const float* own) {
    const float* bonus = u.call.bonus + u.h * u.call.K;
    for (int i = 0; i < C; ++i)
        for (int64_t d = 0; d < u.call.K; ++d) {
            float q = u.plain[(u.stacked - C + i) * u.Kp + d], k = u.k[i * u.Kp + d];
            f.drows[(u.stacked - C + i) * u.Kp + d] += own[i] * bonus[d] * k;
            f.dk[i * u.Kp + d] += own[i] * bonus[d] * q;
            f.dbonus[d] += own[i] * q * k;
        }
}

// Gradients of the rows under one decay a token, from what came through the state and the weighted scores.
void row_gradient(Unit& u, Flow& f, const float* sign_entry) {
    int64_t Kp = u.Kp;
    if (u.call.decay != NONE) {
        alignas(64) float read[C], recalled[C] = {}, entry[C], exit[C];
        const int64_t q = (u.stacked - C) * Kp;
        dots16(u.rows + q, Kp, f.drows + q, Kp, Kp, read);
        if (u.erasing) dots16(u.rows, Kp, f.drows, Kp, Kp, recalled);
        dots16(u.k, Kp, f.dk, Kp, Kp, exit);
        for (int i = 0; i < C; ++i) {
            entry[i] = sign_entry[u.stacked - C + i] * read[i] - (u.erasing ? u.entry[i] * recalled[i] : 0);
            exit[i] *= u.leave[i];
        }
        vec carried = {};
        for (int64_t d = 0; d < Kp; d += W) carried += load(f.overlap + d);
        decay_gradient(u, f, entry, exit, u.gain[0] * (sum(carried) + (u.call.normalize ? dot(u.z, f.dz, Kp) : 0)));
    }
    product<2>(f.dscores, C, 1, u.k, Kp, f.drows, Kp, u.stacked, Kp, C, u.ahead, sign_entry, 1);
    product<2>(f.dscores, 1, C, u.rows, Kp, f.dk, Kp, C, Kp, u.stacked, u.ahead, u.leave, 1);
}

// What flows back through total_i = G_i q_i . z + sum over j of A_ij, given the unweighted gradients of A and what came to q
// and k through the state. The output is a sum over total, so the total's gradient is minus the sum times its own, over total.
void add_up_back(Unit& u, Flow& f) {
    alignas(64) float entered[C], scored[C];
    dots16(u.q_rows, u.Kp, f.drows, u.Kp, u.Kp, entered);
    dots16(u.q_scores, C, f.dscores, C, C, scored);
    for (int i = 0; i < C; ++i) {
        f.dtotal[i] = u.total[i] == 0 ? 0 : -(u.entry[i] * entered[i] + scored[i]) / u.total[i];
        for (int n = i * C; n < i * C + C; n += W) store(f.dscores + n, load(f.dscores + n) + f.dtotal[i]);
        for (int64_t d = 0; d < u.Kp; d += W) {
            store(f.drows + i * u.Kp + d, load(f.drows + i * u.Kp + d) + f.dtotal[i] * load(u.z + d));
            store(f.dk + i * u.Kp + d, load(f.dk + i * u.Kp + d) + load(f.dz + d));
        }
    }
}

// dz = Diag(G[C]) dz' + (G * Q)^T dtotal.
void sum_back(Unit& u, Flow& f) {
    for (int64_t d = 0; d < u.Kp; d += W) {
        vec x = gain_at(u, d) * load(f.dz + d);
        for (int i = 0; i < C; ++i) x += f.dtotal[i] * load(f.scaled + i * u.Kp + d);
        store(f.dz + d, x);
    }
}

void chunk_back(Unit& u, Flow& f) {
    int64_t Kp = u.Kp, Vp = u.Vp;
    int stacked = u.stacked;
    float* dO = f.ends + (stacked - C) * Vp;
    float* strong = u.written == u.v ? f.dU : u.erasing ? f.ends : f.ends + C * Vp;
    product<0>(u.keys, Kp, 1, f.dS, Vp, f.dU, Vp, C, Vp, Kp, u.ahead);
    for (int m = 0; m < C; m += TILE_R)  // write j is read by no row before it
        product<1>(u.q_scores + m + m * C, 1, C, dO + m * Vp, Vp, f.dU + m * Vp, Vp, TILE_R, Vp, C - m, u.ahead);
    if (u.written != u.v) solve_back(u, f, strong);
    transpose(f.ends, Vp, stacked, Vp, f.ends_turned, stacked);
    transpose(u.written, Vp, C, Vp, f.u_turned, C);
    // Scores: dL above dA, weighted by the decays.
    product<0>(f.ends, Vp, 1, f.u_turned, C, f.dscores, C, stacked, C, Vp, u.ahead);
    // Rows: what came through the state.
    product<0>(u.S, Vp, 1, f.ends_turned, stacked, f.turned, stacked, Kp, stacked, Vp, u.ahead);
    transpose(f.turned, stacked, Kp, stacked, f.drows, Kp);
    product<0>(f.dS, Vp, 1, f.u_turned, C, f.turned, C, Kp, C, Vp, u.ahead);
    transpose(f.turned, C, Kp, C, f.dk, Kp);
    if (u.call.normalize) add_up_back(u, f);
    alignas(64) float own[C];
    for (int i = 0; i < C; ++i) own[i] = f.dscores[(stacked - C + i) * C + i];
    for (int n = 0; n < C * C; n += W) {  // what passes from write j to read i: gradient times score, both of the triangle
        vec x = load(f.dscores + (stacked - C) * C + n) * load(u.q_scores + n);
        if (u.erasing) x -= load(f.dscores + n) * load(u.scores + n);
        store(f.passed + n, x);
    }
    for (int i = 0; i < stacked; ++i)
        for (int n = 0; n < C; n += W) {
            bool lower = u.erasing && i < C, before = u.call.bonus;
            const float* weights = u.weights + (before && i ? i - 1 : i % C) * C + n;
            vec x = load(f.dscores + i * C + n) * load(weights);
            const int32_t* mask = (lower || before ? triangle.below : triangle.upto)[0] + i % C * C + n;
            store(f.dscores + i * C + n, keep(lower ? -x : x, mask));
        }
    // Rows: and what came through the scores.
    float sign_entry[2 * C];
    for (int i = 0; i < stacked; ++i) sign_entry[i] = u.erasing && i < C ? -u.entry[i] : u.entry[i % C];
    for (int64_t d = 0; d < Kp && u.call.decay != NONE; d += 16) dots16(u.S + d * Vp, Vp, f.dS + d * Vp, Vp, Vp, f.overlap + d);
    if (u.call.decay == PER_CHANNEL)
        for (int64_t d = 0; d < Kp; d += W) channel_gradient(u, f, d);
    else
        row_gradient(u, f, sign_entry);
    if (u.call.bonus) bonus_gradient(u, f, own);
    // State.
    for (int i = 0; i < stacked; ++i)
        for (int64_t d = 0; d < Kp; d += W) store(f.scaled + i * Kp + d, sign_entry[i] * load(u.rows + i * Kp + d));
    product<2>(f.scaled, 1, Kp, f.ends, Vp, f.dS, Vp, Kp, Vp, stacked, u.ahead, u.gain,
               u.call.decay == PER_CHANNEL);
    if (u.call.normalize) sum_back(u, f);
}

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
            ask_inputs(u.ahead, next, next_w, Stream());
        chunk_back(u, f);
        emit_gradient(u, f, w, writes[c], u.written == u.v ? f.dU : u.erasing ? f.ends : f.ends + C * u.Vp);
    }
}

void enter_back(const Call& a, const Gradients& g, const Flow& f, int64_t index) {
    int64_t Vp = padded(a.V);
    fill(f.dS, state_size(a), 0);
    fill(f.dz, padded(a.K), 0);
    fill(f.dbonus, padded(a.K), 0);
    if (g.key_sum_out) copy(f.dz, g.key_sum_out + index * a.K, a.K);
    if (g.memory_out)
        for (int64_t d = 0; d < a.K; ++d) copy(f.dS + d * Vp, g.memory_out + (index * a.K + d) * a.V, a.V);
}

void leave_back(const Call& a, const Gradients& g, const Flow& f, int64_t index) {
    if (g.key_sum_in) copy(g.key_sum_in + index * a.K, f.dz, a.K);
    if (g.bonus) copy(g.bonus + index * a.K, f.dbonus, a.K);
    for (int64_t d = 0; d < a.K; ++d) copy(g.memory_in + (index * a.K + d) * a.V, f.dS + d * padded(a.V), a.V);
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

void run(const Call& a, const Gradients& g, int64_t index, int64_t count) {
    const int64_t chunk_size = scratch(a) + C * slice_width(a) + state_size(a) + sum_size(a), step = SEGMENT * C;
    arena.reserve(SEGMENT * chunk_size + flow_size(a) + count * head_size(a));
    Room<Buffers, SEGMENT> chunks;
    for (int i = 0; i < SEGMENT; ++i) {
        Buffers& chunk = *new (&chunks[i]) Buffers(a);
        chunk.S = arena.take(state_size(a)), chunk.z = arena.take(sum_size(a)), chunk.before = arena.take(C * chunk.Vp);
    }
    float* room = chunks[0].S;
    FlowBuffers buffers(chunks[0]);
    Room<Unit, GROUP> units;
    Room<Flow, GROUP> flows;
    for (int64_t i = 0; i < count; ++i) {
        new (&units[i]) Unit(a, index + i, chunks[0]);
        enter_back(a, g, *new (&flows[i]) Flow(g, units[i], buffers), index + i);
    }
    int64_t first = begin(units[0]), last = end(units[0]), segments = (last - first + step - 1) / step;
    for (int64_t s = segments - 1; s >= 0; --s)
        for (int64_t i = 0; i < count; ++i) {
            int64_t w = first + s * step;
            bool around = i + 1 == count;
            restore(chunks[0], units[i], s, room);
            segment_back(units[i], flows[i], &chunks[0], w, w + step < last ? w + step : last, units[around ? 0 : i + 1],
                         around ? w - step : w);
        }
    for (int64_t i = 0; i < count; ++i) leave_back(a, g, flows[i], index + i);
}

}  // namespace

#define NAME(isa) rebracket_backward_##isa
#define EXPORT(isa) NAME(isa)
extern "C" void EXPORT(ISA)(const Call* call, const Gradients* gradients, int64_t begin, int64_t end) {
    for (int64_t i = begin, count; i < end; i += count) run(*call, *gradients, i, count = together(*call, i, end));
}
