// One call of a program: every operation over all rows, the choice of tokens, and the drafts that were right.
#include <cmath>
#include "check.h"
#include "crew.h"
#include "program_choice.h"
#include "program_texts.h"

namespace {

// How the work of an operation is cut among threads: never along a sum.
enum Cut { BY_ROWS, BY_PANELS, BY_CHANNELS, BY_HEADS };

INLINE Cut cut_of(const Operation& op) {
    switch (op.kind) {
        case PRODUCT: return BY_PANELS;
        case CONVOLVE: return BY_CHANNELS;
        case RECUR: case ATTEND: return BY_HEADS;
    }
    return BY_ROWS;
}

void compute_rows(const ProgramCall& a, const Operation& op, int64_t begin, int64_t end, float* scratch) {
    switch (op.kind) {
        case EMBED: return embed(a, op, begin, end);
        case GATHER: return gather(a, op, begin, end);
        case QUANTIZE: return quantize(op, begin, end);
        case SELECT: return select(op, begin, end);
        case MAP: return map(op, begin, end);
        case PAIR: return pair(op, begin, end);
        case NORMALIZE: return normalize(op, begin, end);
        case SUM: return sum(op, begin, end);
        case EXPONENTIALS: return exponentials(op, begin, end);
        case ROTATE: return rotate(a, op, begin, end, scratch);
        case COSINE: return cosine(a, op, begin, end);
    }
}

void compute_product(const Operation& op, int64_t rows, int64_t part, int64_t parts) {
#if WIDTH >= 8
    if (op.format == BYTE) {
#if WIDTH == 16
        if (moved_bytes()) return product<ByteTile>(op, rows, part, parts);
#endif
        return product<SignedTile>(op, rows, part, parts);
    }
#endif
    product<FloatTile>(op, rows, part, parts);
}

void compute_texts(const ProgramCall& a, const Operation& op, int64_t part, int64_t parts, float* scratch) {
    const int64_t each = cut_of(op) == BY_CHANNELS ? (op.x.width + 15) / 16 : op.heads;
    for (int64_t unit = a.segments * each * part / parts; unit < a.segments * each * (part + 1) / parts; ++unit) {
        const int64_t segment = unit / each, i = unit % each;
        if (op.kind == CONVOLVE) convolve_channels(a, op, segment, 16 * i, lanes(16 * i, op.x.width));
        else if (op.kind == RECUR) recur(a, op, segment, i, scratch);
        else attend(a, op, segment, i, scratch);
    }
}

constexpr int64_t ROWS_AT_ONCE = 16;  // that go through neighbouring operations while they are in the cache

// One thread's part of a list of operations. Neighbours that are cut by rows need no meeting in between.
void compute(const ProgramCall& a, const Operation* ops, int64_t count, int64_t rows, int64_t part, int64_t parts, float* scratch) {
    for (int64_t i = 0; i < count;) {
        const Cut cut = cut_of(ops[i]);
        int64_t next = i + 1;
        if (cut == BY_ROWS) {
            while (next < count && cut_of(ops[next]) == BY_ROWS) ++next;
            const int64_t end = rows * (part + 1) / parts;
            for (int64_t m = rows * part / parts; m < end; m += ROWS_AT_ONCE)
                for (int64_t j = i; j < next; ++j) compute_rows(a, ops[j], m, std::min(end, m + ROWS_AT_ONCE), scratch);
        } else if (cut == BY_PANELS) {
            compute_product(ops[i], rows, part, parts);
        } else {
            compute_texts(a, ops[i], part, parts, scratch);
        }
        crew.meet(parts);
        i = next;
    }
}

void choose_tokens(const ProgramCall& a, int64_t part, int64_t parts, float* scratch) {
    for (int64_t i = a.wanted_count * part / parts; i < a.wanted_count * (part + 1) / parts; ++i) {
        const int64_t row = a.wanted[i];
        const Segment& s = a.segment[a.owner[row]];
        const int64_t last = s.first + plain_rows(s) - 1;
        if (!s.choose || row < last) continue;
        const uint64_t drawn = s.drawn + (s.temperature > 0 ? row - last : 0);
        a.chosen[row] = chosen_token(row_of(a.logits, i), s, drawn, scratch);
    }
}

// Counts the drafts that are the tokens chosen before them, up to a token that ends the text.
void judge(const ProgramCall& a) {
    for (int64_t n = 0; n < a.segments; ++n) {
        Segment& s = a.segment[n];
        s.accepted = plain_rows(s);
        s.ended = s.damaged = 0;
        for (int64_t row = s.first + s.accepted - 1; s.choose; ++row) {
            const int64_t token = a.chosen[row];
            s.damaged = token < 0, s.ended = token >= 0 && token == s.stop;
            if (s.damaged || s.ended || s.accepted == s.count || a.tokens[row + 1] != token) break;
            ++s.accepted;
        }
        a.seen[s.slot] += s.accepted;
    }
}

void accept_drafts(const ProgramCall& a, int64_t part, int64_t parts) {
    for (int64_t i = part; i < a.bodies; i += parts) {
        const Operation& op = a.body[i];
        if (op.kind != CONVOLVE && op.kind != RECUR) continue;
        for (int64_t n = 0; n < a.segments; ++n) {
            const int64_t rows = a.segment[n].accepted - plain_rows(a.segment[n]);
            if (rows == 0) continue;
            if (op.kind == CONVOLVE) accept_tail(a, op, n, rows);
            else for (int64_t h = 0; h < op.heads; ++h) accept_memory(a, op, n, h, rows);
        }
    }
}

struct Work {
    ProgramCall& a;
    bool choosing, drafting;
};

void run_part(void* with, int64_t part, int64_t parts) {
    const Work& work = *static_cast<Work*>(with);
    ProgramCall& a = work.a;
    const Rounding rounding;
    float* scratch = a.scratch + part * a.scratch_size;
    compute(a, a.body, a.bodies, a.rows, part, parts, scratch);
    if (a.wanted_count) compute(a, a.head, a.heads, a.wanted_count, part, parts, scratch);
    if (work.choosing) choose_tokens(a, part, parts, scratch);
    crew.meet(parts);
    if (part == 0) judge(a);
    crew.meet(parts);
    if (work.drafting) accept_drafts(a, part, parts);
}

// --- what is checked before anything is written ---

const char* check_choice(const ProgramCall& a, const Segment& s, int64_t n) {
    REQUIRE(s.drafted == 0 || s.choose, "segment %lld has %lld drafted tokens and no choice of a token to compare them with", n, s.drafted);
    if (!s.choose) return nullptr;
    REQUIRE(s.temperature >= 0 && s.temperature < __builtin_inf(), "segment %lld must have a temperature >= 0", n);
    REQUIRE(s.top_k >= 0 && s.top_p > 0 && s.top_p <= 1, "segment %lld must have top_k >= 1 and top_p in (0, 1]", n);
    REQUIRE(s.limit >= 1 && s.limit <= a.logits.width, "segment %lld must choose among 1 to %lld tokens, got %lld", n, a.logits.width, s.limit);
    return nullptr;
}

const char* check_pages(const ProgramCall& a, const Segment& s, int64_t n) {
    if (a.page_size == 0) return nullptr;
    const int64_t from = a.seen[s.slot], to = from + s.count, reach = a.window && from >= a.window ? from - a.window + 1 : 0;
    REQUIRE((to - 1) / PAGE_TOKENS - reach / PAGE_TOKENS < a.most_pages, "segment %lld ends at token %lld, and all pages hold %lld", n, to,
            a.most_pages * PAGE_TOKENS);
    for (int64_t page = reach / PAGE_TOKENS; page * PAGE_TOKENS < to; ++page) {
        const int64_t place = a.tables[s.slot * a.most_pages + page % a.most_pages];
        REQUIRE(place >= 0 && place < a.page_count, "segment %lld has no page for its tokens from %lld on", n, page * PAGE_TOKENS);
    }
    return nullptr;
}

const char* check_segment(const ProgramCall& a, int64_t n, int64_t first) {
    const Segment& s = a.segment[n];
    REQUIRE(s.slot >= 0 && s.slot < a.slot_count, "slot must be from 0 to %lld, got %lld in segment %lld", a.slot_count - 1, s.slot, n);
    REQUIRE(a.seen[s.slot] >= 0, "slot %lld of segment %lld is closed; open it first", s.slot, n);
    for (int64_t i = 0; i < n; ++i)
        REQUIRE(a.segment[i].slot != s.slot, "slot %lld is in segments %lld and %lld of one call; join their tokens", s.slot, i, n);
    REQUIRE(s.count >= 1, "segment %lld must have at least one token, got none", n);
    REQUIRE(s.first == first, "segment %lld must begin at row %lld, got %lld", n, first, s.first);
    REQUIRE(s.count <= a.most_rows - first, "a call takes at most %lld rows, got more; cut prompts into pieces", a.most_rows);
    REQUIRE(s.drafted >= 0 && s.drafted < s.count, "segment %lld must have 0 to %lld drafted tokens, got %lld", n, s.count - 1, s.drafted);
    for (int64_t t = first; t < first + s.count; ++t)
        REQUIRE(a.tokens[t] >= 0 && a.tokens[t] < a.vocab, "tokens must be from 0 to %lld, got %lld in segment %lld", a.vocab - 1, a.tokens[t], n);
    CHECK(check_choice(a, s, n));
    return check_pages(a, s, n);
}

const char* check_program(const ProgramCall& a) {
    REQUIRE(a.segments >= 1 && a.segments <= a.most_rows, "a call takes 1 to %lld segments, got %lld", a.most_rows, a.segments);
    REQUIRE(a.threads >= 1 && a.threads <= MOST_THREADS, "threads must be from 1 to %lld, got %lld", int64_t(MOST_THREADS), a.threads);
    int64_t rows = 0, drafted = 0;
    for (int64_t n = 0; n < a.segments; ++n) {
        CHECK(check_segment(a, n, rows));
        rows += a.segment[n].count, drafted += a.segment[n].drafted;
    }
    REQUIRE(rows == a.rows, "the segments have %lld rows, and the call has %lld", rows, a.rows);
    REQUIRE(drafted <= a.drafts, "a call takes at most %lld drafted tokens, got %lld", a.drafts, drafted);
    return nullptr;
}

// Where each row stands in its text, and which rows' logits are computed.
void place_rows(ProgramCall& a) {
    a.wanted_count = 0;
    for (int64_t n = 0; n < a.segments; ++n) {
        const Segment& s = a.segment[n];
        for (int64_t t = 0; t < s.count; ++t) {
            const int64_t row = s.first + t;
            a.positions[row] = a.seen[s.slot] + t, a.owner[row] = int32_t(n);
            const bool last = t >= plain_rows(s) - 1 && (s.wanted == LAST_LOGITS || s.choose);
            if (last || s.wanted == ALL_LOGITS) a.wanted[a.wanted_count++] = row;
        }
    }
}

// --- packing of weights ---

INLINE uint16_t to_bfloat16(float x) {  // to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 64);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// One output of a panel in int8, its scale and the sum of its weights.
void pack_bytes(const float* from, int64_t K, int8_t* to, float* scale, int32_t* sum) {
    float most = 0;
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::fabs(from[k]));
    const float inverse = most > 1e-36f ? 127 / most : 0;
    *scale = most > 1e-36f ? most / 127 : 0;
    for (int64_t k = 0; k < K; ++k) {
        const int8_t w = int8_t((from[k] * inverse + 12582912.0f) - 12582912.0f);
        to[k / 4 * 64 + k % 4] = w;
        *sum += 128 * w;
    }
}

// put(k, i) for all, so that a few lines of the cache are read and written at a time.
template <class Put>
INLINE void in_squares(int64_t K, int64_t outputs, const Put& put) {
    for (int64_t first = 0; first < K; first += 16)
        for (int64_t i = 0; i < outputs; ++i)
            for (int64_t k = first; k < std::min(first + 16, K); ++k) put(k, i);
}

void pack_panel(const Packing& a, int64_t panel) {
    const int64_t n = panel * LANES, outputs = lanes(n, a.N), K = a.K, bytes = panel_bytes(a.format, K);
    char* to = static_cast<char*>(a.to) + panel * bytes;
    const float* from = a.from + n * K;
    std::memset(to, 0, bytes);
    if (a.format == WHOLE) {
        in_squares(K, outputs, [&](int64_t k, int64_t i) { reinterpret_cast<float*>(to)[k * LANES + i] = from[i * K + k]; });
    } else if (a.format == HALF) {
        in_squares(K, outputs, [&](int64_t k, int64_t i) {
            reinterpret_cast<uint16_t*>(to)[k / 2 * 32 + i * 2 + k % 2] = to_bfloat16(from[i * K + k]);
        });
    } else {
        float* scales = reinterpret_cast<float*>(to + bytes - 128);
        int32_t* sums = reinterpret_cast<int32_t*>(to + bytes - 64);
        for (int64_t i = 0; i < outputs; ++i) pack_bytes(from + i * K, K, reinterpret_cast<int8_t*>(to) + i * 4, scales + i, sums + i);
    }
}

}  // namespace

LAYOUT(Span, AT(data), AT(stride), AT(width))
LAYOUT(Operation, AT(kind), AT(function), AT(format), AT(flag), AT(out), AT(x), AT(k), AT(v), AT(r), AT(beta), AT(decay), AT(weight),
       AT(bias), AT(index), AT(groups), AT(query_heads), AT(key_heads), AT(heads), AT(key_dim), AT(value_dim),
       AT(per_token), AT(width), AT(weight_step), AT(held), AT(key_sum), AT(paged), AT(record), AT(eps), AT(before), AT(after))
LAYOUT(Segment, AT(slot), AT(first), AT(count), AT(drafted), AT(wanted), AT(choose), AT(temperature), AT(top_p), AT(top_k), AT(limit),
       AT(stop), AT(seed), AT(drawn), AT(accepted), AT(ended), AT(damaged))
LAYOUT(ProgramCall, CONSTANT(PAGE_TOKENS), CONSTANT(LANES), CONSTANT(MOST_WIDTH), CONSTANT(MOST_THREADS), AT(body), AT(head), AT(bodies),
       AT(heads), AT(rows), AT(most_rows), AT(segments), AT(drafts), AT(threads), AT(vocab), AT(logits), AT(segment), AT(tokens),
       AT(positions), AT(wanted), AT(chosen), AT(owner), AT(slots), AT(slot_count), AT(slot_stride), AT(seen), AT(pages),
       AT(page_count), AT(page_size), AT(most_pages), AT(window), AT(tables), AT(records), AT(record_size), AT(scratch), AT(scratch_size),
       AT(wanted_count))
LAYOUT(Packing, AT(from), AT(to), AT(N), AT(K), AT(format))

KERNEL(program_run, ProgramCall) {
    CHECK(check_program(call));
    (void)loop;  // programs have threads of their own
    ProgramCall& a = const_cast<ProgramCall&>(call);
    place_rows(a);
    Work work{a, false, false};
    for (int64_t n = 0; n < a.segments; ++n) work.choosing |= a.segment[n].choose, work.drafting |= a.segment[n].drafted > 0;
    crew.run(a.threads, run_part, &work);
    return nullptr;
}

KERNEL(program_pack, Packing) {
    REQUIRE(call.N >= 1 && call.K >= 1 && countable({call.N + LANES, call.K + 4}), "weights must be [N,K] with N, K >= 1, got [%lld,%lld]", call.N, call.K);
    REQUIRE(call.format >= WHOLE && call.format < FORMATS, "weights have the unknown format %lld", int64_t(call.format));
    REQUIRE(call.format != BYTE || call.K <= 60000, "int8 weights take at most 60000 inputs, got %lld: their sums would pass 32 bits", call.K);
    return parallel(panels_of(call.N), 64, loop, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) pack_panel(call, p);
        return true;
    });
}

