// The library's doors: which instruction sets this machine runs, and each kernel over all units on torch's threads.
#include <cstring>
#include "convolution.h"
#include "recurrence.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define VISIBLE extern "C" __attribute__((visibility("default")))

using Kernel = void (*)(const Call*, int64_t, int64_t);
using BackKernel = void (*)(const Call*, const Gradients*, int64_t, int64_t);
using StripKernel = void (*)(const Convolution*, int64_t, int64_t);
// torch's own loop over its threads: torch_parallel_for of its stable C interface.
using Loop = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* with);

#ifndef ISAS  // the build lists the instruction sets it compiled, the best first
#define ISAS(X) X(baseline)
#endif

#define DECLARE(isa)                                                        \
    extern "C" void rebracket_forward_##isa(const Call*, int64_t, int64_t); \
    extern "C" void rebracket_step_##isa(const Call*, int64_t, int64_t);    \
    extern "C" void rebracket_backward_##isa(const Call*, const Gradients*, int64_t, int64_t); \
    extern "C" void rebracket_carry_##isa(const Call*, const Gradients*, int64_t, int64_t);    \
    extern "C" void rebracket_pieces_##isa(const Call*, const Gradients*, int64_t, int64_t);   \
    extern "C" void rebracket_convolution_forward_##isa(const Convolution*, int64_t, int64_t);  \
    extern "C" void rebracket_convolution_backward_##isa(const Convolution*, int64_t, int64_t); \
    extern "C" void rebracket_convolution_finish_##isa(const Convolution*, int64_t, int64_t);
ISAS(DECLARE)

namespace {

struct Set {
    const char* name;
    bool runs;
    Kernel forward, step;
    BackKernel backward, carry, pieces;
    StripKernel convolve, convolve_back, convolve_finish;
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

#define SET(isa)                                                                                \
    {#isa,                                                                                      \
     cpu.isa,                                                                                   \
     rebracket_forward_##isa,                                                                   \
     rebracket_step_##isa,                                                                      \
     rebracket_backward_##isa,                                                                  \
     rebracket_carry_##isa,                                                                     \
     rebracket_pieces_##isa,                                                                    \
     rebracket_convolution_forward_##isa,                                                       \
     rebracket_convolution_backward_##isa,                                                      \
     rebracket_convolution_finish_##isa},
const Set sets[] = {ISAS(SET)};

struct Work {
    const Call* call;
    const Gradients* gradients;
    Kernel kernel;
    BackKernel back;
};

void body(int64_t begin, int64_t end, void* with) {
    const Work& work = *static_cast<Work*>(with);
    if (work.back)
        work.back(work.call, work.gradients, begin, end);
    else
        work.kernel(work.call, begin, end);
}

void spread(Work work, int64_t units, int64_t grain, Loop loop) {
    if (loop && units > grain)
        loop(0, units, grain, body, &work);
    else
        body(0, units, &work);
}

struct StripWork {
    const Convolution* call;
    StripKernel kernel;
};

void strip_body(int64_t begin, int64_t end, void* with) {
    const StripWork& work = *static_cast<StripWork*>(with);
    work.kernel(work.call, begin, end);
}

// A unit may be one token: a thread takes at least as many as fill 64 KiB.
void spread(StripWork work, int64_t units, Loop loop) {
    int64_t tokens = work.call->T < work.call->block ? work.call->T : work.call->block;
    int64_t grain = 1 + (1 << 14) / (1 + tokens * (work.call->D < STRIP ? work.call->D : STRIP));
    if (loop && units > grain)
        loop(0, units, grain, strip_body, &work);
    else
        strip_body(0, units, &work);
}

int64_t strips(const Convolution* call) { return call->blocks * ((call->D + STRIP - 1) / STRIP); }

}  // namespace

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

VISIBLE void rebracket_forward(const void* kernels, const Call* call, Loop loop) {
    spread({call, nullptr, static_cast<const Set*>(kernels)->forward, nullptr}, call->N * call->H * call->slices, 1, loop);
}

// A step is short: a thread takes at least as many heads as fill 64 KiB.
VISIBLE void rebracket_step(const void* kernels, const Call* call, Loop loop) {
    int64_t grain = 1 + (1 << 16) / (4 * call->K * call->V);
    spread({call, nullptr, static_cast<const Set*>(kernels)->step, nullptr}, call->N * call->H, grain, loop);
}

VISIBLE void rebracket_backward(const void* kernels, const Call* call, const Gradients* gradients, Loop loop) {
    const Set& set = *static_cast<const Set*>(kernels);
    if (!call->carries) return spread({call, gradients, nullptr, set.backward}, call->N * call->H, 1, loop);
    spread({call, gradients, nullptr, set.carry}, call->N * call->H * call->slices, 1, loop);
    Call whole = *call;
    whole.slices = 1;
    spread({&whole, gradients, nullptr, set.pieces}, call->first_segment[call->N] * call->H, 1, loop);
}

VISIBLE void rebracket_convolution_forward(const void* kernels, const Convolution* call, Loop loop) {
    spread({call, static_cast<const Set*>(kernels)->convolve}, strips(call), loop);
}

VISIBLE void rebracket_convolution_backward(const void* kernels, const Convolution* call, Loop loop) {
    const Set& set = *static_cast<const Set*>(kernels);
    spread({call, set.convolve_back}, strips(call), loop);
    spread({call, set.convolve_finish}, (call->D + COLUMNS - 1) / COLUMNS, loop);
}
