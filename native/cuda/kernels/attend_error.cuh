// Estimates the relative error of outputs from sampled rows by those rows: see AttendProblem. One block serves one KV head whose turn it is; all query
// heads of the group use a row of V while it is in registers. Bound by the latency of V's rows: as many are under way as registers hold.
#pragma once

#include "cuda/kernels/attend_final.cuh"
#include "cuda/kernels/attend_load.cuh"
#include "cuda/kernels/attend_places.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kErrorWarps = 8;
constexpr int kErrorLoads = 4;  // that a lane has under way: of as many rows, or of two or four times as many where several fit a warp
constexpr int kErrorHeads = 4;  // heads at a time
constexpr int kMaxDim = 256;

struct ErrorShared {
    float out[kErrorHeads][kMaxDim];
    float norms[kErrorHeads];
    float sums[kErrorHeads][kErrorWarps];
};

// A sum of relative errors and their number, in thread 0.
struct Errors {
    double sum, n;
};

// All threads of a block of kErrorWarps call it. `finals`: of the KV head's rows.
template <CellType kTypeV>
__device__ inline void error_of(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, const Final * finals, int token,
                                int first_head, ErrorShared & shared, Errors & errors) {
    const int lane = threadIdx.x%kWarp, warp = threadIdx.x/kWarp, kv = blockIdx.y;
    const int group = p.n_head/p.n_head_kv, n_heads = min(kErrorHeads, group - first_head);
    const size_t list = static_cast<size_t>(token)*p.n_head_kv + kv;
    const float * weights = p.rows.weights + list*p.rows.stride;
    const int n = p.rows.n_rows[list];

    if (n == 0) {  // the same in all threads of a block
        return;
    }
    __syncthreads();  // the output is written, and what lay in the shared arrays is used up
    if (warp < n_heads) {
        const size_t row = row_of(p, kv, token*group + first_head + warp);
        const float * out = reinterpret_cast<const float *>(p.out + row/p.n_head*p.out_stride_token + row%p.n_head*p.out_stride_head);
        float norm = 0.0f;
        for (int d = lane; d < p.head_dim; d += kWarp) {
            shared.out[warp][d] = out[d];
            norm += out[d]*out[d];
        }
        norm = sum_of_warp(norm);
        if (lane == 0) {
            shared.norms[warp] = norm;
        }
    }
    __syncthreads();

    // eight channels of a row each: 8, 16 or 32 lanes hold a row
    const int n_lanes = p.head_dim <= 64 ? 8 : p.head_dim <= 128 ? 16 : 32, n_at_once = kWarp/n_lanes;
    const int of_row = lane%n_lanes, mine = lane/n_lanes;
    const bool active = of_row*8 < p.head_dim;
    float variance[kErrorHeads] = {};
    for (int first = warp*kErrorLoads*n_at_once; first < n; first += kErrorWarps*kErrorLoads*n_at_once) {
        uint4 words[kErrorLoads];
        unsigned offset[kErrorLoads];
        float weight[kErrorLoads];
#pragma unroll
        for (int r = 0; r < kErrorLoads; ++r) {
            const int at = first + r*n_at_once + mine;
            weight[r] = at < n ? weights[at] : 1.0f;
            words[r] = make_uint4(0, 0, 0, 0);
            offset[r] = 0;
            if (weight[r] > 1.0f) {
                bool home;
                const Place place = place_of(p, kv, list*p.rows.stride + at, &home);
                if (active) {
                    const char * const eight = eight_of<kTypeV>(place.v, of_row);
                    words[r] = load_eight<kTypeV>(eight);
                    offset[r] = offset_of(eight);
                }
                if (of_row == 0 && home && !part.brought && first_head == 0) {
                    reads_home(row_bytes(kTypeV, p.head_dim));
                }
            }
        }
#pragma unroll
        for (int r = 0; r < kErrorLoads; ++r) {
            float v[8];
            const float factor = unpack_eight<kTypeV>(words[r], offset[r], lane, v);
            if (!(weight[r] > 1.0f)) {
                continue;
            }
            const int at = first + r*n_at_once + mine;
#pragma unroll
            for (int h = 0; h < kErrorHeads; ++h) {
                if (h >= n_heads) {
                    break;
                }
                const int i = token*group + first_head + h;
                const float logit = workspace.logits[row_of(p, kv, i)*workspace.logit_stride + at];
                const float share = weight[r]*__expf(logit - finals[i].max)*finals[i].inverse;
                float apart = 0.0f;
                if (active) {
#pragma unroll
                    for (int d = 0; d < 8; ++d) {
                        const float x = v[d]*factor - shared.out[h][of_row*8 + d];
                        apart += x*x;
                    }
                }
                variance[h] += (1.0f - 1.0f/weight[r])*share*share*apart;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < kErrorHeads; ++h) {
        variance[h] = sum_of_warp(variance[h]);
        if (lane == 0) {
            shared.sums[h][warp] = variance[h];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int h = 0; h < n_heads; ++h) {
            double sum = 0.0;
            for (int w = 0; w < kErrorWarps; ++w) {
                sum += shared.sums[h][w];
            }
            errors.sum += shared.norms[h] > 0.0f ? sqrt(sum/shared.norms[h]) : 0.0;
            errors.n += 1.0;
        }
    }
}

// Of all query tokens and heads of the block's KV head.
template <CellType kTypeV>
__device__ inline void add_errors(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, const Final * finals,
                                  ErrorShared & shared) {
    Errors errors = {0.0, 0.0};
    for (int token = 0; token < p.n_tokens; ++token) {
        for (int head = 0; head < p.n_head/p.n_head_kv; head += kErrorHeads) {
            error_of<kTypeV>(p, part, workspace, finals, token, head, shared, errors);
        }
    }
    if (threadIdx.x == 0) {
        p.hits[blockIdx.y].error += errors.sum;
        p.hits[blockIdx.y].n_errors += errors.n;
    }
}

}  // namespace
}  // namespace edgekv::gpu
