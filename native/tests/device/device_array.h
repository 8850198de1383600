// Arrays in device memory (or in pinned host memory) for the tests, and how they fail.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda/gpu.h"

namespace test {

inline int failures = 0;

#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition) && ++test::failures <= 20) {                      \
            std::printf("FAIL %s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::printf(__VA_ARGS__);                                      \
            std::printf("\n");                                             \
        }                                                                  \
    } while (0)

inline void must(bool ok) {
    if (!ok) {
        std::printf("FAIL: %s\n", edgekv::gpu::last_error());
        std::exit(1);
    }
}

template <class T>
class DeviceArray {
public:
    explicit DeviceArray(size_t n = 0, bool pinned = false) : n(n), pinned(pinned) {
        if (n > 0) {
            void * p = nullptr;
            must(pinned ? edgekv::gpu::alloc_pinned(&p, n * sizeof(T)) : edgekv::gpu::alloc(&p, n * sizeof(T)));
            at = static_cast<T *>(p);
        }
    }
    explicit DeviceArray(const std::vector<T> & from, bool pinned = false) : DeviceArray(from.size(), pinned) { set(from); }
    ~DeviceArray() {
        if (n > 0) {
            pinned ? edgekv::gpu::free_pinned(at) : edgekv::gpu::free_device(at);
        }
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray & operator=(const DeviceArray &) = delete;

    void set(const std::vector<T> & from) {
        if (n > 0) {
            must(edgekv::gpu::copy(at, from.data(), n * sizeof(T)));
        }
    }
    std::vector<T> get() const {
        std::vector<T> out(n);
        if (n > 0) {
            must(edgekv::gpu::copy(out.data(), at, n * sizeof(T)));
        }
        return out;
    }
    T * data() const { return at; }
    T * or_null(bool condition) const { return condition ? at : nullptr; }

private:
    T * at = nullptr;
    size_t n;
    bool pinned;
};

}  // namespace test
