// Arrays in device memory or in pinned host memory, and streams, for the tests.
#pragma once

#include <cstdlib>
#include <utility>
#include <vector>

#include "checks.h"
#include "cuda/gpu.h"

namespace test {

inline void must(bool ok) {
    ++n_checks;
    if (!ok) {
        std::printf("FAIL: %s\n", edgekv::gpu::last_error());
        std::exit(1);
    }
}

// Memory of exactly the size asked for, so that the emulated device finds what lies behind it.
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
    template <class Allocator>
    explicit DeviceArray(const std::vector<T, Allocator> & from, bool pinned = false) : DeviceArray(from.size(), pinned) { set(from); }
    DeviceArray(DeviceArray && other) noexcept { *this = std::move(other); }
    DeviceArray & operator=(DeviceArray && other) noexcept {
        std::swap(at, other.at);
        std::swap(n, other.n);
        std::swap(pinned, other.pinned);
        return *this;
    }
    ~DeviceArray() {
        if (at != nullptr) {
            pinned ? edgekv::gpu::free_pinned(at) : edgekv::gpu::free_device(at);
        }
    }

    // Sets the first elements.
    template <class Allocator>
    void set(const std::vector<T, Allocator> & from) {
        if (!from.empty()) {
            must(edgekv::gpu::copy(at, from.data(), from.size() * sizeof(T)));
        }
    }
    void set(std::initializer_list<T> from) { set(std::vector<T>(from)); }
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
    size_t n = 0;
    bool pinned = false;
};

// Where kernels take many times as long: where the emulator searches for races, and under native/tests/ptx --few.
#if defined(EDGEKV_RACECHECK) || defined(EDGEKV_FEW)
constexpr bool kFew = true;
#else
constexpr bool kFew = false;
#endif

struct TestStream {
    TestStream() { must(edgekv::gpu::stream_create(&s)); }
    ~TestStream() { edgekv::gpu::stream_destroy(s); }
    TestStream(const TestStream &) = delete;
    operator edgekv::gpu::Stream() const { return s; }
    edgekv::gpu::Stream s = nullptr;
};

// Bytes that have crossed the emulated device's link to host memory. A card does not tell.
#if defined(__CUDACC__)
constexpr bool kTellsCrossed = false;
inline size_t crossed_bytes() { return 0; }
#else
constexpr bool kTellsCrossed = true;
inline size_t crossed_bytes() { return edgekv::gpu::emulator::link_bytes(); }
#endif

// Returns whether the first device can be used, and says why not.
inline bool has_device(edgekv::gpu::Device & device) {
    const bool found = edgekv::gpu::device_count() > 0 && edgekv::gpu::use_device(0) && edgekv::gpu::device(0, device);
    if (!found) {
        std::printf("no device: %s\n", edgekv::gpu::last_error());
    }
    return found;
}

}  // namespace test
