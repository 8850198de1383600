// Reads of rows far apart, as attention reads rows at home: engine/rates.cu measures the way to pinned host memory with them.
#pragma once

#include "cuda/gpu.h"

namespace edgekv::gpu {

// Piece i lies at i*step%n pieces: each in a place of its own for i < n, all over the memory, far from its neighbours.
struct Places {
    uint64_t n, step;  // without a common divisor

    __host__ __device__ uint64_t at(uint64_t i) const { return i*step % n; }
};
// As many pieces of n_bytes as the buffer has room for, fewer than 2^31; the steps are about the golden ratio of it.
Places places_of(size_t buffer_bytes, size_t n_bytes);

// K, or V, of a head and token: 64 or 128 channels in f16, 128 or 256 in q8_0
constexpr unsigned kReadBytes[] = {128, 136, 256, 272};

struct ReadProblem {
    const char * src;    // begins at 8 bytes; host memory is pinned
    unsigned row_bytes;  // a multiple of 8
    unsigned n_rows;     // places.n at most
    Places places;
    unsigned * sums;     // 2, of device memory: the low and the high halves of all words of 8 bytes are added, modulo 2^32
};
void launch_read_rows(const ReadProblem & problem, Stream stream, unsigned n_blocks);

}  // namespace edgekv::gpu
