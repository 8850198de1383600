#include "cache/buffer.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edgekv {
namespace {

#ifdef __linux__
// Advises the kernel about the whole pages among some bytes; false: there are none, or it refuses.
bool advise(char * from, size_t n_bytes, int advice, char *& first, char *& end) {
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    first = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(from) + page - 1) / page * page);
    end   = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(from) + n_bytes) / page * page);
    return first < end && madvise(first, static_cast<size_t>(end - first), advice) == 0;
}
#endif

}  // namespace

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

void Buffer::give_back(size_t offset, size_t n_bytes) {
    char * from = ptr + offset;
#ifdef __linux__
    char * first, * end;
    if (advise(from, n_bytes, MADV_DONTNEED, first, end)) {
        std::memset(from, 0, static_cast<size_t>(first - from));
        std::memset(end, 0, static_cast<size_t>(from + n_bytes - end));
        return;
    }
#endif
    std::memset(from, 0, n_bytes);
}

void Buffer::in_small_pages() {
#ifdef __linux__
    char * first, * end;
    advise(ptr, n, MADV_NOHUGEPAGE, first, end);  // if refused, it takes more memory than it needs
#endif
}

}  // namespace edgekv
