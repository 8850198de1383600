// Dispatch of selection.
#include "select.h"

#include <cstring>

#include "select_internal.h"
#include "subnormals.h"

namespace edgekv {

size_t select_scratch_bytes(int n_pages, int per_page, int group) {
    const size_t pages = static_cast<size_t>(n_pages + 15) / 16 * 16;
    const size_t strips = (static_cast<size_t>(n_pages) * per_page + 15) / 16 * 16;
    return ((3 + static_cast<size_t>(group)) * pages + strips) * sizeof(float);
}

SelectResult select_pages(const SelectProblem & problem, Isa isa) {
    const SubnormalsAreZero fast;
#if defined(__x86_64__) || defined(_M_X64)
    switch (isa) {
        case Isa::avx512: return kSelectAvx512(problem);
        case Isa::avx2: return kSelectAvx2(problem);
        case Isa::portable: break;
    }
#endif
    (void) isa;
    return kSelectPortable(problem);
}

float bucket_value(int bucket) {
    const uint32_t bits = static_cast<uint32_t>(bucket) << 20;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

}  // namespace edgekv
