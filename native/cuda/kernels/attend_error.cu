// Estimates the relative error of outputs from sampled rows by those rows: see AttendProblem. One block serves one KV head whose turn it
// is; a warp loads one row of V at a time, and all query heads of the group use it while it is in registers.
#include "cuda/kernels/attend_final.cuh"
#include "cuda/kernels/attend_load.cuh"
#include "cuda/kernels/attend_places.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kErrorThreads = 512, kErrorWarps = kErrorThreads/kWarp;
constexpr int kErrorRows = 4;   // rows that a warp has under way
constexpr int kErrorHeads = 4;  // heads at a time
constexpr int kMaxDim = 256;

struct ErrorShared {
    float out[kErrorHeads][kMaxDim];
    Final finals[kErrorHeads];
    float norms[kErrorHeads];
    float sums[kErrorHeads][kErrorWarps];
};

template <CellType kTypeV>
__device__ inline void error_of(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, int token, int first_head,
                                ErrorShared & shared, double & error, double & n_errors) {
    const int lane = threadIdx.x%kWarp, warp = threadIdx.x/kWarp, kv = blockIdx.x;
    const int group = p.n_head/p.n_head_kv, n_heads = min(kErrorHeads, group - first_head);
    const size_t list = static_cast<size_t>(token)*p.n_head_kv + kv;
    const int32_t * cells = p.rows.cells + list*p.rows.stride;
    const float * weights = p.rows.weights + list*p.rows.stride;
    const int n = p.rows.n_rows[list];

    if (n == 0) {  // the same in all threads of a block
        return;
    }
    __syncthreads();  // the previous heads are done with the shared arrays
    if (warp < n_heads) {
        const int i = token*group + first_head + warp;
        const Final final = final_of(p, workspace, kv, i, lane);
        const size_t row = row_of(p, kv, i);
        const float * out = reinterpret_cast<const float *>(p.out + row/p.n_head*p.out_stride_token + row%p.n_head*p.out_stride_head);
        float norm = 0.0f;
        for (int d = lane; d < p.head_dim; d += kWarp) {
            shared.out[warp][d] = out[d];
            norm += out[d]*out[d];
        }
        for (int step = kWarp/2; step >= 1; step /= 2) {
            norm += __shfl_xor_sync(0xffffffffu, norm, step);
        }
        if (lane == 0) {
            shared.finals[warp] = final;
            shared.norms[warp] = norm;
        }
    }
    __syncthreads();

    // a lane has eight channels of a row, or none
    const bool active = lane*8 < p.head_dim;
    float variance[kErrorHeads] = {};
    for (int first = warp*kErrorRows; first < n; first += kErrorWarps*kErrorRows) {
        uint4 words[kErrorRows];
        bool odd[kErrorRows];
        float weight[kErrorRows];
#pragma unroll
        for (int r = 0; r < kErrorRows; ++r) {
            weight[r] = first + r < n ? weights[first + r] : 1.0f;
            words[r] = make_uint4(0, 0, 0, 0);
            odd[r] = false;
            if (weight[r] > 1.0f) {
                bool home;
                const Place place = place_of(p, kv, cells[first + r], &home);
                if (active) {
                    const Eight eight = eight_of<kTypeV>(place.v, lane);
                    words[r] = load_eight<kTypeV>(eight);
                    odd[r] = in_blocks(kTypeV) && straddles(eight.at, 0);
                }
                if (lane == 0 && home && !part.brought && first_head == 0) {
                    reads_home(row_bytes(kTypeV, p.head_dim));
                }
            }
        }
#pragma unroll
        for (int r = 0; r < kErrorRows; ++r) {
            if (!(weight[r] > 1.0f)) {
                continue;
            }
            float v[8];
            const float factor = unpack_eight<kTypeV>(words[r], odd[r], v);
#pragma unroll
            for (int h = 0; h < kErrorHeads; ++h) {
                if (h >= n_heads) {
                    break;
                }
                const float logit = workspace.logits[row_of(p, kv, token*group + first_head + h)*workspace.logit_stride + first + r];
                const float share = weight[r]*__expf(logit - shared.finals[h].max)*shared.finals[h].inverse;
                float apart = 0.0f;
                if (active) {
#pragma unroll
                    for (int d = 0; d < 8; ++d) {
                        const float x = v[d]*factor - shared.out[h][lane*8 + d];
                        apart += x*x;
                    }
                }
                variance[h] += (1.0f - 1.0f/weight[r])*share*share*apart;
            }
        }
    }
#pragma unroll
    for (int h = 0; h < kErrorHeads; ++h) {
        for (int step = kWarp/2; step >= 1; step /= 2) {
            variance[h] += __shfl_xor_sync(0xffffffffu, variance[h], step);
        }
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
            error += shared.norms[h] > 0.0f ? sqrt(sum/shared.norms[h]) : 0.0;
            n_errors += 1.0;
        }
    }
}

template <CellType kTypeV>
__global__ void __launch_bounds__(kErrorThreads)
attend_error(AttendProblem p, AttendPart part, AttendWorkspace workspace, const uint32_t * n_ubatch) {
    EDGEKV_SHARED(ErrorShared, shared);
    const int kv = blockIdx.x;
    const uint32_t turn = static_cast<uint32_t>(kv) + static_cast<uint32_t>(p.error_turn) + (n_ubatch != nullptr ? *n_ubatch : 0u);
    if (turn%static_cast<uint32_t>(p.error_every) != 0) {
        return;
    }
    double error = 0.0, n_errors = 0.0;
    for (int token = 0; token < p.n_tokens; ++token) {
        for (int head = 0; head < p.n_head/p.n_head_kv; head += kErrorHeads) {
            error_of<kTypeV>(p, part, workspace, token, head, shared, error, n_errors);
        }
    }
    if (threadIdx.x == 0) {
        p.hits[kv].error += error;
        p.hits[kv].n_errors += n_errors;
    }
}

}  // namespace

void launch_attend_error(const AttendProblem & problem, const AttendPart & part, const void * workspace, int n_partials,
                         const uint32_t * n_ubatch, Stream stream) {
    if (!has_lists(problem) || problem.rows.weights == nullptr || problem.error_every == 0 || problem.hits == nullptr) {
        return;
    }
    const AttendWorkspace places = attend_workspace(problem, const_cast<void *>(workspace), n_partials);
    const auto kernel = problem.v_type == CellType::f16    ? attend_error<CellType::f16>
                        : problem.v_type == CellType::q8_0 ? attend_error<CellType::q8_0>
                                                           : attend_error<CellType::q4_0>;
    launch(kernel, {static_cast<unsigned>(problem.n_head_kv)}, kErrorThreads, 0, stream, problem, part, places, n_ubatch);
}

}  // namespace edgekv::gpu
