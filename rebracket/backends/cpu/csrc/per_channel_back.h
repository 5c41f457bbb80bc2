// Gradients of a chunk's rows and decays under one decay a channel; every term of a decay's gradient is a product that holds the
// decay itself, as under one decay a token.
#pragma once
#include "head_gradients.h"

namespace {

// The rows of one vector of channels at d, their factors, and the gradients of both.
struct Channels {
    const HeadSlice& s;
    const HeadGradients& g;
    const int64_t d, Kp, q0;
    vec a[C], q[C], r[C], k[C], dq[C], dr[C], dk[C], dlog[C];

    Channels(const HeadSlice& s, const HeadGradients& g, int64_t d) : s(s), g(g), d(d), Kp(s.Kp), q0(s.stacked - C) {
        for (int i = 0; i < C; ++i) {
            a[i] = load(s.channel + i * Kp + d), k[i] = load(s.k + i * Kp + d);
            q[i] = load(s.given + (q0 + i) * Kp + d), r[i] = q0 ? load(s.given + i * Kp + d) : vec{};
        }
    }
    INLINE float a_back(int i, int j) const { return g.dscores[(q0 + i) * C + j]; }
    INLINE float l_back(int i, int j) const { return g.dscores[i * C + j]; }
    // Reads scaled to the border below their half (h = 8) or block (h = 4), keys to the border above theirs.
    INLINE vec read_at(int h, int64_t rows, int i) const {
        bool far = h > BLOCK && i >= C - BLOCK;
        return load(far ? s.half + (rows * BLOCK + i - C + BLOCK) * Kp + d : s.within + (rows * C + i) * Kp + d);
    }
    INLINE vec key_at(int h, int j) const { return load((h > BLOCK && j < BLOCK ? s.keys_half : s.keys_within) + j * Kp + d); }
};

// What came through the state is scaled by the decays since the chunk began or until it ends.
template <bool ERASING, bool BONUS>
INLINE void through_state(Channels& c) {
    vec since = splat(1), until = splat(1);
    for (int i = 0; i < C; ++i) {
        vec read = BONUS ? since : since * c.a[i];
        since *= c.a[i];
        c.dq[i] = read * load(c.g.drows + (c.q0 + i) * c.Kp + c.d);
        if (ERASING) c.dr[i] = -since * load(c.g.drows + i * c.Kp + c.d);
    }
    for (int j = C - 1; j >= 0; --j) {
        c.dk[j] = until * load(c.g.dk + j * c.Kp + c.d);
        until *= c.a[j];
    }
    vec carried = load(c.g.overlap + c.d), later = {};
    if (c.s.call.normalize) carried += load(c.s.z + c.d) * load(c.g.dz + c.d);
    carried *= since;
    for (int m = 0; m < C; ++m) {
        c.dlog[m] = carried;
        carried += c.k[m] * c.dk[m];
    }
    for (int m = C - 1; m >= 0; --m) {
        vec read = c.q[m] * c.dq[m];
        if (ERASING) later += c.r[m] * c.dr[m];
        c.dlog[m] += BONUS ? later : later + read;
        later += read;
    }
}

// Pairs of a read in [mid, mid + h) and a key in [mid - h, mid), by way of the border between them.
template <bool ERASING, bool BONUS, int h>
INLINE void through_border(Channels& c, int mid) {
    vec since = splat(1), until = splat(1), passed = {}, through[C];
    for (int i = mid; i < mid + h; ++i) {
        vec q = {}, r = {};
        for (int j = mid - h; j < mid; ++j) {
            vec key = c.key_at(h, j);
            q += c.a_back(i, j) * key;
            if (ERASING) r += c.l_back(i, j) * key;
        }
        q *= BONUS ? since : since * c.a[i];
        since *= c.a[i];
        c.dq[i] += q;
        through[i] = c.q[i] * q;
        if (ERASING) c.dr[i] += since * r, through[i] += c.r[i] * since * r;
    }
    for (int i = mid + h - 1; i >= mid; --i) {
        c.dlog[i] += BONUS ? passed : passed + through[i];
        passed += through[i];
    }
    for (int j = mid - 1; j >= mid - h; --j) {
        vec back = {};
        for (int i = mid; i < mid + h; ++i) {
            back += c.a_back(i, j) * c.read_at(h, c.q0 / C, i);
            if (ERASING) back += c.l_back(i, j) * c.read_at(h, 0, i);
        }
        back *= until;
        until *= c.a[j];
        c.dk[j] += back;
        through[j] = c.k[j] * back;
    }
    passed = vec{};
    for (int j = mid - h; j < mid; ++j) {
        c.dlog[j] += passed;
        passed += through[j];
    }
}

// Pairs within block [top, top + BLOCK), one by one.
template <bool ERASING, bool BONUS>
INLINE void through_block(Channels& c, int top) {
    for (int i = top; i < top + BLOCK; ++i) {
        vec between = BONUS ? splat(1) : c.a[i];
        for (int j = i - 1; j >= top; --j) {
            vec q = c.a_back(i, j) * between, r = ERASING ? c.l_back(i, j) * between : vec{};
            vec back = q * c.q[i];
            c.dq[i] += q * c.k[j];
            if (ERASING) c.dr[i] += r * c.k[j], back += r * c.r[i];
            c.dk[j] += back;
            vec passed = back * c.k[j];
            for (int m = j + 1; m <= (BONUS ? i - 1 : i); ++m) c.dlog[m] += passed;
            between *= c.a[j];
        }
        if (BONUS) continue;
        c.dq[i] += c.a_back(i, i) * c.k[i];  // a token with itself
        c.dk[i] += c.a_back(i, i) * c.q[i];
    }
}

template <bool ERASING, bool BONUS>
void channel_gradient(HeadSlice& s, HeadGradients& g) {
    for (int64_t d = 0; d < s.Kp; d += W) {
        Channels c(s, g, d);
        through_state<ERASING, BONUS>(c);
        through_border<ERASING, BONUS, 8>(c, 8);
        through_border<ERASING, BONUS, 4>(c, 4);
        through_border<ERASING, BONUS, 4>(c, 12);
        for (int top = 0; top < C; top += BLOCK) through_block<ERASING, BONUS>(c, top);
        for (int i = 0; i < C; ++i) {
            store(g.drows + (c.q0 + i) * s.Kp + d, c.dq[i]);
            if (ERASING) store(g.drows + i * s.Kp + d, c.dr[i]);
            store(g.dk + i * s.Kp + d, c.dk[i]);
            store(g.dlog + i * s.Kp + d, c.a[i] == splat(0) ? vec{} : c.dlog[i]);
        }
    }
}

void channel_gradients(HeadSlice& s, HeadGradients& g) {
    s.erasing ? channel_gradient<true, false>(s, g) : s.call.bonus ? channel_gradient<false, true>(s, g) : channel_gradient<false, false>(s, g);
}

}  // namespace
