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
    // The bytes are zeros again, and whole pages among them take no memory until they are written.
    void give_back(size_t offset, size_t n_bytes);
    // Takes memory in the smallest pages from now on, where large ones would take it for bytes that are never written.
    void in_small_pages();

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
