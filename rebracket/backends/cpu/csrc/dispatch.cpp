// What the library exports: its description, the instruction sets this machine runs, and every kernel of the list.
#include <cstddef>
#include <cstring>
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define VISIBLE extern "C" __attribute__((visibility("default")))

#ifndef ISAS  // the build lists the instruction sets it compiled, the best first
#define ISAS(X) X(baseline)
#endif

#define DECLARE(name, structure, isa) extern "C" const char* KERNEL_NAME(name, isa)(const structure& call, Loop loop);
#define DECLARE_ALL(isa) KERNELS(DECLARE, isa)
ISAS(DECLARE_ALL)

namespace {

#define POINTER(name, structure, isa) const char* (*name)(const structure& call, Loop loop);
struct Set {
    const char* name;
    bool runs;
    KERNELS(POINTER, )
};

// What this machine and its system allow, as the processor tells it.
struct Cpu {
    bool baseline = true, avx2 = false, avx512 = false;
#if defined(__x86_64__)
    Cpu() {
        unsigned a, b, c, d, low, high;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return;  // no xgetbv
        bool fma = c >> 12 & 1;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        avx2 = fma && (b >> 5 & 1) && (low & 6) == 6;
        avx512 = avx2 && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1) && (low & 0xe6) == 0xe6;
    }
#endif
};
const Cpu cpu;

#define ENTRY(name, structure, isa) KERNEL_NAME(name, isa),
#define SET(isa) {#isa, cpu.isa, KERNELS(ENTRY, isa)},
const Set sets[] = {ISAS(SET)};

struct Fact {
    const char* name;
    int64_t value;
};

// What a caller has to agree with: the version, which is raised where a meaning changes and no size does; the shared constants;
// the size of the structure of every kernel; the size of every structure and the place of each of its fields.
#define KERNEL_FACT(name, structure, isa) {"kernel " #name, sizeof(structure)},
#define SIZE(structure) {"size " #structure, sizeof(structure)}
#define AT(structure, field) {#structure "." #field, offsetof(structure, field)}
const Fact facts[] = {
    {"version", 1},
    {"chunk_writes", CHUNK_WRITES},
    {"segment_writes", SEGMENT_WRITES},
    KERNELS(KERNEL_FACT, )
#define ROWS(field) AT(Rows, field)
    SIZE(Rows), ROWS(data), ROWS(batch), ROWS(time), ROWS(head), ROWS(heads), ROWS(dtype), ROWS(B), ROWS(T), ROWS(D),
#define CALL(field) AT(Call, field)
    SIZE(Call), CALL(B), CALL(T), CALL(H), CALL(K), CALL(V), CALL(N), CALL(per_token), CALL(slices), CALL(segments), CALL(decay),
    CALL(normalize), CALL(scale), CALL(q), CALL(k), CALL(v), CALL(r), CALL(beta), CALL(log_decay), CALL(out), CALL(bonus), CALL(offsets),
    CALL(memory_in), CALL(key_sum_in), CALL(memory_out), CALL(key_sum_out), CALL(entries), CALL(first_segment), CALL(carries), CALL(wrong),
#define GRADIENT(field) AT(Gradients, field)
    SIZE(Gradients), GRADIENT(out), GRADIENT(q), GRADIENT(k), GRADIENT(v), GRADIENT(r), GRADIENT(beta), GRADIENT(log_decay),
    GRADIENT(memory_out), GRADIENT(key_sum_out), GRADIENT(memory_in), GRADIENT(key_sum_in), GRADIENT(bonus),
    SIZE(Backward), AT(Backward, call), AT(Backward, gradients),
#define CONVOLUTION(field) AT(Convolution, field)
    SIZE(Convolution), CONVOLUTION(T), CONVOLUTION(D), CONVOLUTION(N), CONVOLUTION(width), CONVOLUTION(block), CONVOLUTION(blocks),
    CONVOLUTION(silu), CONVOLUTION(dtype), CONVOLUTION(weight_dtype), CONVOLUTION(bias_dtype), CONVOLUTION(x), CONVOLUTION(x_row),
    CONVOLUTION(x_token), CONVOLUTION(y), CONVOLUTION(tail), CONVOLUTION(tail_out), CONVOLUTION(weight), CONVOLUTION(bias),
    CONVOLUTION(offsets), CONVOLUTION(first_block), CONVOLUTION(grad_y), CONVOLUTION(grad_y_row), CONVOLUTION(grad_y_token),
    CONVOLUTION(grad_tail_out), CONVOLUTION(grad_x), CONVOLUTION(grad_tail), CONVOLUTION(sums), CONVOLUTION(grad_weight),
    CONVOLUTION(grad_bias),
    {nullptr, 0},
};

}  // namespace

// The description, up to a name that is null.
VISIBLE const Fact* rebracket_facts() { return facts; }

// Asks for large pages under new memory: a fault for every 4 KiB of a long output can take as long as computing it.
VISIBLE void rebracket_large_pages(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const int64_t page = 2 << 20;
    int64_t from = (reinterpret_cast<int64_t>(data) + page - 1) / page * page, to = (reinterpret_cast<int64_t>(data) + bytes) / page * page;
    if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

// The name of instruction set `i`, best first, of those this machine runs; null after the last.
VISIBLE const char* rebracket_isa(int64_t i) {
    for (const Set& set : sets)
        if (set.runs && i-- == 0) return set.name;
    return nullptr;
}

// The kernels of an instruction set by name; null if this machine does not run it.
VISIBLE const void* rebracket_kernels(const char* name) {
    for (const Set& set : sets)
        if (set.runs && !std::strcmp(set.name, name)) return &set;
    return nullptr;
}

// Every kernel of an instruction set, over the threads of `loop`; null, or what does not fit in the call.
#define EXPORT(name, structure, isa)                                                                          \
    VISIBLE const char* rebracket_##name(const void* kernels, const structure* call, Loop loop) {             \
        return static_cast<const Set*>(kernels)->name(*call, loop);                                           \
    }
KERNELS(EXPORT, )
