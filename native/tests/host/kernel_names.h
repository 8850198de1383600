// What programs of kernels ask of their machine and command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace test {

// The kernels that serve here, by name, the portable ones first. find(name): their table, or null.
template <class Find>
std::vector<const char *> kernel_names(const Find & find) {
    std::vector<const char *> names;
    for (const char * name : {"portable", "avx2", "avxvnni", "avx512", "avx512vnni", "neon", "dotprod"}) {
        if (find(name) != nullptr) {
            names.push_back(name);
            std::printf("%s ", name);
        }
    }
    std::printf("\n");
    return names;
}

// The first argument: one case in so many is checked.
inline uint64_t one_case_in(int argc, char ** argv, uint64_t usual) { return argc > 1 ? std::max(1ul, std::strtoul(argv[1], nullptr, 10)) : usual; }

}  // namespace test
