// What the library exports beside its kernels: its version, and the instruction sets that this machine runs.
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#ifndef ISAS  // the build lists the instruction sets it compiled, the best first
#define ISAS(X) X(baseline)
#endif

namespace {

struct Set {
    const char* name;
    bool runs;
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

#define SET(isa) {#isa, cpu.isa},
const Set sets[] = {ISAS(SET)};

}  // namespace

// Raised where the meaning of a call changes and no layout does.
VISIBLE int64_t rebracket_version() { return 2; }

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
