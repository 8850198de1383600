// A set's places are words of 64 bits: the number of the row there plus 1, and the number of the launch that listed it last. Whoever changes a word
// compares it first, so blocks of one launch agree on who has a place; a row that this launch has listed keeps its place until the next one begins.
#pragma once

#include "cuda/kernels/hot_rows.h"

namespace edgekv::gpu {
namespace {

constexpr int kLaunchBits = 24;
constexpr unsigned kLaunches = (1u << kLaunchBits) - 1;

// Neighbours lie in different sets, and so do rows a power of two apart (Knuth's multiplicative hash).
__device__ inline uint32_t hot_set(const HotRows & hot, uint64_t row) {
    const uint64_t hash = row * 0x9e3779b97f4a7c15ull >> 32;
    return static_cast<uint32_t>(hash * hot.n_sets >> 32);
}

// The row's slot, with kBrought if it takes the place of the row that was listed longest ago and must be written; -1: all places are taken by rows of this
// launch. `launch` counts launches.
__device__ inline int32_t place_hot_row(const HotRows & hot, uint64_t row, uint32_t launch) {
    const unsigned now = launch & kLaunches;
    const uint32_t set = hot_set(hot, row);
    unsigned long long * const places = hot.entries + static_cast<size_t>(set) * kHotRowWays;
    const unsigned long long mine = (row + 1) << kLaunchBits | now;
    for (;;) {  // again where another block was faster, which has its place now
        unsigned long long oldest = 0;
        unsigned most = 0;
        int at = -1;
        bool there = false;
        unsigned long long words[kHotRowWays];
#pragma unroll
        for (int i = 0; i < kHotRowWays; ++i) {
            words[i] = look(places + i);  // all under way at once
        }
#pragma unroll
        for (int i = 0; i < kHotRowWays && !there; ++i) {
            const unsigned long long found = words[i];
            there = found >> kLaunchBits == row + 1;
            const unsigned age = found == 0 ? kLaunches + 1 : (now - static_cast<unsigned>(found)) & kLaunches;
            if (there || age > most) {
                oldest = found;
                most = age;
                at = i;
            }
        }
        const int32_t slot = static_cast<int32_t>(set) * kHotRowWays + at;
        if (at < 0 || oldest == mine) {
            return at < 0 ? -1 : slot;
        }
        if (atomicCAS(places + at, oldest, mine) == oldest) {
            return there ? slot : slot | kBrought;
        }
    }
}

// The row changed at home.
__device__ inline void forget_hot_row(const HotRows & hot, uint64_t row) {
    unsigned long long * const places = hot.entries + static_cast<size_t>(hot_set(hot, row)) * kHotRowWays;
    for (int i = 0; i < kHotRowWays; ++i) {
        if (look(places + i) >> kLaunchBits == row + 1) {
            atomicExch(places + i, 0ull);
        }
    }
}

}  // namespace
}  // namespace edgekv::gpu
