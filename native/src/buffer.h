// Memory for kernels.
#pragma once

#include <cstddef>
#include <memory>

namespace edgekv {

// 64-byte aligned, zeroed; grows, never shrinks
class Buffer {
public:
    bool reserve(size_t n_bytes);  // contents are lost when it grows; false: out of memory, nothing changed
    void zero(size_t offset, size_t n_bytes);

    char * data() const { return ptr.get(); }
    size_t size() const { return n; }

private:
    struct Free {
        void operator()(char * p) const;
    };

    std::unique_ptr<char, Free> ptr;
    size_t n = 0;
};

}  // namespace edgekv
