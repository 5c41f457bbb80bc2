// The list of kernels, and what each of them is made of.
#pragma once
#include "convolution.h"
#include "recurrence.h"

// Every kernel: its name and the structure that describes its call. To add one, write its source file, which ends in
// KERNEL(name, structure) { ... }, and add a line here: declarations, the table of each instruction set and the exported
// functions all come from this list.
#define KERNELS(X, ...)                               \
    X(forward, Call, __VA_ARGS__)                     \
    X(step, Call, __VA_ARGS__)                        \
    X(backward, Backward, __VA_ARGS__)                \
    X(convolution_forward, Convolution, __VA_ARGS__)  \
    X(convolution_backward, Convolution, __VA_ARGS__)

// torch's own loop over its threads: torch_parallel_for of its stable C interface.
using Loop = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* with);

#define KERNEL_OF(name, isa) rebracket_##name##_##isa
#define KERNEL_NAME(name, isa) KERNEL_OF(name, isa)

// A kernel for the instruction set of this translation unit. It returns null, or what does not fit in the call.
#define KERNEL(name, structure) extern "C" const char* KERNEL_NAME(name, ISA)(const structure& call, Loop loop)

namespace {

// Runs body(begin, end) over all units on the threads of `loop`, at least `grain` units a thread. A body returns whether it had
// the memory it needs.
template <class Body>
const char* parallel(int64_t units, int64_t grain, Loop loop, const Body& body) {
    struct Work {
        const Body& body;
        int32_t failed;
    } work{body, 0};
    auto part = [](int64_t begin, int64_t end, void* with) {
        Work& work = *static_cast<Work*>(with);
        if (!work.body(begin, end)) __atomic_store_n(&work.failed, 1, __ATOMIC_RELAXED);
    };
    if (loop && units > grain)
        loop(0, units, grain, part, &work);
    else
        part(0, units, &work);
    return work.failed ? "out of memory: a thread of the kernels got no scratch memory" : nullptr;
}

}  // namespace
