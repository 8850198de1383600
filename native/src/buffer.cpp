#include "buffer.h"

#include <cstdlib>
#include <cstring>

namespace edgekv {

void Buffer::Free::operator()(char * p) const {
    std::free(p);
}

bool Buffer::reserve(size_t n_bytes) {
    if (n_bytes <= n) {
        return true;
    }

    const size_t rounded = (n_bytes + 63)/64*64;
    char * p = static_cast<char *>(std::aligned_alloc(64, rounded));
    if (!p) {
        return false;
    }

    std::memset(p, 0, rounded);
    ptr.reset(p);
    n = rounded;

    return true;
}

void Buffer::zero(size_t offset, size_t n_bytes) {
    std::memset(ptr.get() + offset, 0, n_bytes);
}

}  // namespace edgekv
