// Memory for kernels.
#pragma once

#include <cstddef>
#include <memory>

namespace edgekv {

// 64-byte aligned, zeroed; grows, never shrinks. Pages that were never written take addresses and no memory, so that a buffer may be as
// large as the worst case.
class Buffer {
public:
    bool reserve(size_t n_bytes);  // contents are lost when it grows; false: out of memory, nothing changed
    void zero(size_t offset, size_t n_bytes);

    char * data() const { return ptr; }
    size_t size() const { return n; }

private:
    struct Free {
        void operator()(char * p) const;
    };

    std::unique_ptr<char, Free> memory;
    char * ptr = nullptr;
    size_t n = 0;
};

}  // namespace edgekv
