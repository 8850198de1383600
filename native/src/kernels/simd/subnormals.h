// While an object of this class lives, values below a float's normal range count as zero on this thread. Many processors take a hundred
// times as long for such values, and they do not matter here: weights of exp(-87) and less, scores that decayed for a thousand runs.
// An f16 below its own normal range is normal as a float, and keeps its value.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#    include <xmmintrin.h>
#endif

namespace edgekv {

class SubnormalsAreZero {
public:
    SubnormalsAreZero() : before(get()) { set(before | kFlags); }
    ~SubnormalsAreZero() { set(before); }
    SubnormalsAreZero(const SubnormalsAreZero &) = delete;
    SubnormalsAreZero & operator=(const SubnormalsAreZero &) = delete;

private:
#if defined(__x86_64__)
    static constexpr uint64_t kFlags = 0x8040;  // MXCSR: results (FTZ) and operands (DAZ)
    static uint64_t get() { return _mm_getcsr(); }
    static void set(uint64_t flags) { _mm_setcsr(static_cast<unsigned>(flags)); }
#elif defined(__aarch64__) && defined(__GNUC__)
    static constexpr uint64_t kFlags = 1u << 24;  // FPCR.FZ
    static uint64_t get() {
        uint64_t flags;
        __asm__ volatile("mrs %0, fpcr" : "=r"(flags));
        return flags;
    }
    static void set(uint64_t flags) { __asm__ volatile("msr fpcr, %0" : : "r"(flags)); }
#else
    static constexpr uint64_t kFlags = 0;
    static uint64_t get() { return 0; }
    static void set(uint64_t) {}
#endif

    uint64_t before;
};

}  // namespace edgekv
