// Rows of K and V in the lanes of a warp: loads, scores, sums.
#pragma once

#include "cuda/kernels/attend_load.cuh"
#include "cuda/kernels/attend_workspace.h"

namespace edgekv::gpu {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kPlaceWords = 2;  // pointers of a Place

// Sums v[i] over groups of `kLanes` lanes, kCount values at once: each step halves the values that a lane still has to sum.
// Afterwards v[i] of a lane is sum number lane%kLanes*kCount/kLanes + i; with fewer values than lanes, several lanes hold the same sum.
template <int kLanes, int kCount>
__device__ __forceinline__ void fold(float (&v)[kCount], int lane) {
    int n = kCount;
#pragma unroll
    for (int step = kLanes/2; step >= 1; step /= 2) {
        if (n > 1) {
            n /= 2;
            const bool upper = (lane & step) != 0;
#pragma unroll
            for (int i = 0; i < kCount/2; ++i) {
                if (i < n) {
                    const float other = __shfl_xor_sync(kAll, upper ? v[i] : v[i + n], step);
                    v[i] = (upper ? v[i + n] : v[i]) + other;
                }
            }
        } else {
            v[0] += __shfl_xor_sync(kAll, v[0], step);
        }
    }
}

// kLanes: lanes that hold a row, 8 values each. kHeads: query heads that use it.
template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads>
struct RowMath {
    static constexpr int kRowsAtOnce = 32/kLanes;
    static constexpr int kRowsOfLane = kStrip/kRowsAtOnce;
    // rows of K, and of V, that a lane has under way: as many as the registers allow
    static constexpr int kBatch = kHeads == 2 && kRowsOfLane >= 8 ? 8 : 4;
    static constexpr int kBatches = kRowsOfLane/kBatch;
    static constexpr int kFold = 16/kHeads < kBatch ? 16/kHeads : kBatch;  // rows whose scores are summed over lanes together
    static constexpr int kWidth = kLanes*8;

    // The rows of a strip that a lane reads: the first, and the bytes from each to the next.
    template <CellType T>
    struct Rows {
        const char * first;
        unsigned step;
        __device__ __forceinline__ Rows(const char * rows, size_t stride, int lane)
            : first(eight_of<T>(rows + lane/kLanes*stride, lane%kLanes)), step(static_cast<unsigned>(stride)*kRowsAtOnce) {}
        __device__ __forceinline__ const char * at(int row) const { return first + row*step; }
        __device__ __forceinline__ unsigned offset(int row) const { return in_blocks(T) ? offset_of(first, row*step) : 0; }
    };

    // The same for a strip whose rows lie anywhere.
    template <CellType T>
    struct Scattered {
        const char * const * rows;  // shared memory, kPlaceWords apart
        int lane;
        __device__ __forceinline__ const char * at(int row) const {
            return eight_of<T>(rows[(row*kRowsAtOnce + lane/kLanes)*kPlaceWords], lane%kLanes);
        }
        __device__ __forceinline__ unsigned offset(int row) const { return in_blocks(T) ? offset_of(at(row)) : 0; }
    };

    template <CellType T, class R>
    static __device__ __forceinline__ void load(uint4 (&words)[kBatch], const R & rows, int batch, unsigned visible, int lane) {
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            const int row = batch*kBatch + r;
            // a row that no token sees is not read: it may hold a NaN or an infinity, which times zero is not zero
            words[r] = (visible >> (row*kRowsAtOnce + lane/kLanes) & 1) != 0 ? load_eight<T>(rows.at(row)) : make_uint4(0, 0, 0, 0);
        }
    }

    // The scores of a batch of rows, to shared memory.
    template <class R>
    static __device__ __forceinline__ void multiply(const uint4 (&words)[kBatch], const R & rows, int batch, const float4 * q,
                                                    float * scores, int lane) {
        constexpr int kCount = kFold*kHeads;
#pragma unroll
        for (int first = 0; first < kBatch; first += kFold) {
            float s[kCount];
#pragma unroll
            for (int pair = 0; pair < kFold; pair += 2) {
                float x[2][8], factor[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int r = first + pair + j;
                    factor[j] = unpack_eight<kTypeK>(words[r], rows.offset(batch*kBatch + r), lane, x[j]);
                }
#pragma unroll
                for (int h = 0; h < kHeads; ++h) {
                    const float4 a = q[(2*h)*kLanes + lane%kLanes], b = q[(2*h + 1)*kLanes + lane%kLanes];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        float dot = a.x*x[j][0];
                        dot += a.y*x[j][1];
                        dot += a.z*x[j][2];
                        dot += a.w*x[j][3];
                        dot += b.x*x[j][4];
                        dot += b.y*x[j][5];
                        dot += b.z*x[j][6];
                        dot += b.w*x[j][7];
                        s[h*kFold + pair + j] = in_blocks(kTypeK) ? dot*factor[j] : dot;
                    }
                }
            }
            fold<kLanes, kCount>(s, lane);
            constexpr int kEach = kCount > kLanes ? kCount/kLanes : 1;
            constexpr int kCopies = kCount < kLanes ? kLanes/kCount : 1;
            if (lane%kCopies == 0) {
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    const int at = lane%kLanes/kCopies*kEach + i;
                    const int cell = (batch*kBatch + first + at%kFold)*kRowsAtOnce + lane/kLanes;
                    scores[at/kFold*kStrip + cell] = s[i];
                }
            }
        }
    }

    template <class R>
    static __device__ __forceinline__ void accumulate(const uint4 (&words)[kBatch], const R & rows, int batch, const float4 * weights,
                                                      float (&acc)[kHeads][8], int lane) {
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            const int cell = (batch*kBatch + r)*kRowsAtOnce + lane/kLanes;
            float x[8];
            const float factor = unpack_eight<kTypeV>(words[r], rows.offset(batch*kBatch + r), lane, x);
            const float * w = reinterpret_cast<const float *>(weights) + cell*kHeads;
            float weight[kHeads];
            if constexpr (kHeads == 2) {
                const float2 two = *reinterpret_cast<const float2 *>(w);
                weight[0] = two.x;
                weight[1] = two.y;
            } else {
#pragma unroll
                for (int h = 0; h < kHeads; h += 4) {
                    const float4 four = *reinterpret_cast<const float4 *>(w + h);
                    weight[h] = four.x;
                    weight[h + 1] = four.y;
                    weight[h + 2] = four.z;
                    weight[h + 3] = four.w;
                }
            }
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                const float scaled = in_blocks(kTypeV) ? weight[h]*factor : weight[h];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    acc[h][i] += scaled*x[i];
                }
            }
        }
    }
};

}  // namespace
}  // namespace edgekv::gpu
