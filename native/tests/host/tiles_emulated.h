// The tiles of AMX in plain C++: eight of 16 rows of 64 bytes. Pairs of bf16 are multiplied one behind the other and summed up in single
// precision, as the processor does; it counts subnormal numbers as zeros, which these do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edgekv {
namespace {

struct EmulatedTiles {
    struct Config {};
    struct Tile {
        char rows[16][64];
    };
    static Tile & tile(int i) {
        static thread_local Tile tiles[8];
        return tiles[i];
    }
    static float bf16(const char * p) {
        uint16_t half;
        std::memcpy(&half, p, 2);
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }

    template <int T>
    static void zero() { std::memset(&tile(T), 0, sizeof(Tile)); }
    template <int T>
    static void load(const void * p, size_t stride) {
        for (size_t r = 0; r < 16; ++r) {
            std::memcpy(tile(T).rows[r], static_cast<const char *>(p) + r * stride, 64);
        }
    }
    template <int T>
    static void store(void * p, size_t stride) {
        for (size_t r = 0; r < 16; ++r) {
            std::memcpy(static_cast<char *>(p) + r * stride, tile(T).rows[r], 64);
        }
    }
    template <int C, int A, int B>
    static void multiply() {
        for (int m = 0; m < 16; ++m) {
            for (int k = 0; k < 16; ++k) {
                for (int n = 0; n < 16; ++n) {
                    float c;
                    std::memcpy(&c, tile(C).rows[m] + 4 * n, 4);
                    for (int i = 0; i < 2; ++i) {
                        c += bf16(tile(A).rows[m] + 4 * k + 2 * i) * bf16(tile(B).rows[k] + 4 * n + 2 * i);
                    }
                    std::memcpy(tile(C).rows[m] + 4 * n, &c, 4);
                }
            }
        }
    }
    template <int C, int A, int B, bool SIGNED_B>
    static void multiply_bytes() {
        for (int m = 0; m < 16; ++m) {
            for (int k = 0; k < 16; ++k) {
                for (int n = 0; n < 16; ++n) {
                    int32_t c;
                    std::memcpy(&c, tile(C).rows[m] + 4 * n, 4);
                    for (int i = 0; i < 4; ++i) {
                        const char b = tile(B).rows[k][4 * n + i];
                        c += static_cast<int8_t>(tile(A).rows[m][4 * k + i]) * (SIGNED_B ? static_cast<int8_t>(b) : static_cast<uint8_t>(b));
                    }
                    std::memcpy(tile(C).rows[m] + 4 * n, &c, 4);
                }
            }
        }
    }
};

}  // namespace
}  // namespace edgekv
