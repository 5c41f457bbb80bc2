// Runs kernels of a library on behalf of a process of another architecture: driver <library>, calls on standard input, answers on
// standard output, all in words of 8 bytes or plain bytes, little-endian.
//
// A call: the length of the symbol, the symbol; the number of regions and of those how many are structures, which come first; for
// each region its address over there, its size, its bytes. A word of a structure that is such an address, or lies in such a region,
// becomes the pointer here. The answer: the length of the refusal (-1 for none), the refusal, then the bytes of all regions that
// are not structures.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Region {
    uint64_t there, size;
    std::vector<uint64_t> words;  // aligned as memory of the kernels has to be
    char* here() { return reinterpret_cast<char*>(words.data()); }
};

static void take(void* to, size_t size) {
    if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);  // the other side has ended
}

static uint64_t word() {
    uint64_t x;
    take(&x, sizeof x);
    return x;
}

static void give(const void* from, size_t size) {
    if (size) std::fwrite(from, size, 1, stdout);
}

static void translate(Region& structure, std::vector<Region>& regions) {
    for (uint64_t& x : structure.words)
        for (Region& region : regions)
            if (x >= region.there && x < region.there + region.size) {
                x = reinterpret_cast<uint64_t>(region.here() + (x - region.there));
                break;
            }
}

int main(int, char** arguments) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    for (;;) {
        std::string symbol(word(), 0);
        take(&symbol[0], symbol.size());
        std::vector<Region> regions(word());
        const uint64_t structures = word();
        for (Region& region : regions) {
            region.there = word(), region.size = word();
            region.words.resize((region.size + 7) / 8);
            take(region.here(), region.size);
        }
        for (uint64_t i = 0; i < structures; ++i) translate(regions[i], regions);
        auto kernel = reinterpret_cast<const char* (*)(const void*, void*)>(dlsym(library, symbol.c_str()));
        const char* refusal = kernel ? kernel(regions[0].here(), nullptr) : dlerror();
        const int64_t length = refusal ? std::strlen(refusal) : -1;
        give(&length, sizeof length);
        if (refusal) give(refusal, length);
        for (uint64_t i = structures; i < regions.size(); ++i) give(regions[i].here(), regions[i].size);
        std::fflush(stdout);
    }
}
