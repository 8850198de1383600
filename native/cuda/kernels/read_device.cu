#include "cuda/kernels/read_device.h"

#include <numeric>

namespace edgekv::gpu {
namespace {

constexpr unsigned kReaders = 256, kLanes = 16;  // threads of a block, and of a row

// Half a warp reads a row, words of 8 bytes, as rows of q8_0 lie. Four rows are under way at once, as in attention.
__global__ void __launch_bounds__(kReaders) read_rows_kernel(const ReadProblem p) {
    constexpr unsigned kAtOnce = 4;
    const unsigned lane = threadIdx.x%kLanes, n_readers = gridDim.x*(kReaders/kLanes);
    uint2 sum = make_uint2(0, 0);
    for (unsigned first = (blockIdx.x*kReaders + threadIdx.x)/kLanes; first < p.n_rows; first += kAtOnce*n_readers) {
        const uint2 * rows[kAtOnce];
#pragma unroll
        for (unsigned i = 0; i < kAtOnce; ++i) {
            const uint64_t row = first + i*n_readers;
            rows[i] = row < p.n_rows ? reinterpret_cast<const uint2 *>(p.src + p.places.at(row)*p.row_bytes) : nullptr;
        }
        for (unsigned word = lane; word < p.row_bytes/sizeof(uint2); word += kLanes) {
#pragma unroll
            for (unsigned i = 0; i < kAtOnce; ++i) {
                if (rows[i] != nullptr) {
                    const uint2 x = rows[i][word];
                    sum.x += x.x;
                    sum.y += x.y;
                }
            }
        }
    }
    // once a thread, for all its rows
    atomicAdd(p.sums, sum.x);
    atomicAdd(p.sums + 1, sum.y);
}

}  // namespace

Places places_of(size_t buffer_bytes, size_t n_bytes) {
    Places places = {buffer_bytes/n_bytes, 1};
    if (places.n > 2) {
        // with few digits, pieces of every five hundredth step would be neighbours
        places.step = static_cast<uint64_t>(0.6180339887498949*static_cast<double>(places.n));
        while (std::gcd(places.step, places.n) != 1) {
            ++places.step;
        }
    }
    return places;
}

void launch_read_rows(const ReadProblem & problem, Stream stream, unsigned n_blocks) {
    launch(read_rows_kernel, Grid{n_blocks}, kReaders, 0, stream, problem);
}

}  // namespace edgekv::gpu
