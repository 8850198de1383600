// Memory for kernels.
#pragma once

#include <cstddef>
#include <memory>

namespace edgekv {

// 64-byte aligned, zeroed; grows, never shrinks. The system backs a page with memory only when it is written, so a buffer may be as
// large as the worst case.
class Buffer {
public:
    bool reserve(size_t n_bytes);  // growing loses the contents; false: out of memory, nothing changed
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
