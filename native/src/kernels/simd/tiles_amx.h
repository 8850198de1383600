// Tiles of AMX, without the compiler's own functions: gcc does not know that these read and write memory, and gcc 12 loads a
// configuration wrongly (patches/README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edgekv {
namespace {

// It restores the earlier configuration: other users of tiles on this thread load theirs only once.
class TileConfig {
public:
    TileConfig() {
        asm volatile("sttilecfg %0" : "=m"(before));
        Bytes ours = {};
        ours.x[0] = 1;  // palette: eight tiles of 16 rows of 64 bytes
        for (int i = 0; i < 8; ++i) {
            const uint16_t bytes = 64;
            std::memcpy(ours.x + 16 + 2 * i, &bytes, 2);
            ours.x[48 + i] = 16;
        }
        asm volatile("ldtilecfg %0" : : "m"(ours));
    }
    ~TileConfig() {
        if (before.x[0] == 0) {
            asm volatile("tilerelease" : : : "memory");
        } else {
            asm volatile("ldtilecfg %0" : : "m"(before));
        }
    }
    TileConfig(const TileConfig &) = delete;
    TileConfig & operator=(const TileConfig &) = delete;

private:
    struct alignas(64) Bytes {
        uint8_t x[64];
    };
    Bytes before;
};

struct AmxTiles {
    using Config = TileConfig;

    template <int T>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" : : "i"(T));
    }
    template <int T>
    static void load(const void * p, size_t stride) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(p), "r"(stride) : "memory");
    }
    template <int T>
    static void store(void * p, size_t stride) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(T), "r"(p), "r"(stride) : "memory");
    }
    template <int C, int A, int B>
    static void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
    // of i8 with i8 or u8: adds to C, of int32
    template <int C, int A, int B, bool SIGNED_B>
    static void multiply_bytes() {
        if (SIGNED_B) {
            asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        } else {
            asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        }
    }
};

}  // namespace
}  // namespace edgekv
