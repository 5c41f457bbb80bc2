// What a kernel is made of, and how Python finds it. A source holds one kernel or a few: the structure that describes a call, its
// LAYOUT, and KERNEL(name, structure) { ... }. Python asks for both by name, so that no list has to be kept.
#pragma once
#include <cstddef>
#include <cstdint>

#define VISIBLE extern "C" __attribute__((visibility("default")))

// torch's own loop over its threads: torch_parallel_for of its stable C interface.
using Loop = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* with);

#define JOINED(name, structure, isa) rebracket_##name##_##structure##_##isa
#define EXPORTED(name, structure, isa) JOINED(name, structure, isa)

// A kernel for the instruction set of this translation unit. It returns null, or what does not fit in the call.
#define KERNEL(name, structure) VISIBLE const char* EXPORTED(name, structure, ISA)(const structure& call, Loop loop)

struct Fact {
    const char* name;
    int64_t value;
};

// What Python has to agree with before it calls a kernel: the size of a structure, the place of each field, its constants.
#define LAYOUT(structure, ...)                                                                   \
    VISIBLE const Fact* EXPORTED(layout, structure, ISA)() {                                     \
        using Described = structure;                                                             \
        static const Fact facts[] = {{"sizeof", sizeof(Described)}, __VA_ARGS__, {nullptr, 0}};  \
        return facts;                                                                            \
    }
#define AT(field) {#field, offsetof(Described, field)}
#define CONSTANT(name) {#name, name}

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
