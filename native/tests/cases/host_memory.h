// Host memory of the tests: buffers that end where a page does, and what lies on a 64-byte border.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace test {

// For vectors that get their size once, so that their end is that of what they reserve. Behind it lies a page that nothing may touch: what
// reads or writes past the end, faults.
template <class T>
struct AtEnd {
    using value_type = T;
    AtEnd() = default;
    template <class U>
    AtEnd(const AtEnd<U> &) {}

    static size_t page() {
        static const size_t n = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        return n;
    }
    static size_t whole(size_t n) { return (n * sizeof(T) + page() - 1) / page() * page(); }

    T * allocate(size_t n) {
        void * first = mmap(nullptr, whole(n) + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (first == MAP_FAILED || mprotect(static_cast<char *>(first) + whole(n), page(), PROT_NONE) != 0) {
            throw std::bad_alloc();
        }
        return reinterpret_cast<T *>(static_cast<char *>(first) + whole(n) - n * sizeof(T));
    }
    void deallocate(T * p, size_t n) { munmap(reinterpret_cast<char *>(p + n) - whole(n), whole(n) + page()); }

    friend bool operator==(const AtEnd &, const AtEnd &) { return true; }
    friend bool operator!=(const AtEnd &, const AtEnd &) { return false; }
};

template <class T>
using AtEndVector = std::vector<T, AtEnd<T>>;
using Bytes = AtEndVector<char>;

// The first 64-byte border of a buffer, which has 64 bytes more than lie there.
template <class Buffer>
char * aligned(Buffer & buffer) { return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) / 64 * 64); }

}  // namespace test
