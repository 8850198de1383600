#include "pages/buffer.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace edgekv {

void Buffer::Free::operator()(char * p) const { std::free(p); }

bool Buffer::reserve(size_t n_bytes) {
    if (n_bytes <= n) {
        return true;
    }

    const size_t rounded = (n_bytes + 63) / 64 * 64;
    char * p = static_cast<char *>(std::calloc(rounded + 64, 1));
    if (!p) {
        return false;
    }

    memory.reset(p);
    ptr = p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
    n   = rounded;
    return true;
}

void Buffer::zero(size_t offset, size_t n_bytes) { std::memset(ptr + offset, 0, n_bytes); }

}  // namespace edgekv
