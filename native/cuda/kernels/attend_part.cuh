// A part of the attention: partial softmaxes over some pages, or over the rows of lists.
//
// Shape. A block has four warps and one share of the pages of one KV head. A warp takes a strip of 16 cells at a time, every
// fourth of the share; with lists a strip is 16 rows of one list, wherever they lie. A lane holds eight values of a row of K or V (16 bytes
// of f16), so 8, 16 or 32 lanes hold a row, and one load of the warp covers 4, 2 or 1 rows. All query heads of the group use a row
// while it is in registers: K and V cross the memory bus once. Groups of more than eight heads, and query tokens that read the same
// pages, are spread over the warps of a block. These warps read the same rows at about the same time, from the L1 cache.
//
// Bounds. One row each of K and V with 128 values takes 512 bytes in f16, and a group of four spends about 50 warp
// instructions on it: some 40 bytes per clock and multiprocessor. The memory of an RTX 4070 delivers 4.4, that of an H100 15.
// So loads set the pace, and many must be under way: 8 or 12 warps per multiprocessor, each with 2 to 4 KB. K of the next
// strip is loaded while this strip's weights are computed, V of this strip while its K is multiplied.
//
// A score is a sum over the lanes of a row. Folding the sums of several scores together takes about one shuffle per score
// instead of four. Scores and weights then pass through shared memory.
#pragma once

#include "cuda/kernels/attend_places.cuh"
#include "cuda/kernels/attend_rows.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kWarps = kAttendWarps;

// `combine` over the 16 lanes that hold the cells of a strip.
template <class F>
__device__ __forceinline__ float over_cells(float x, F combine) {
#pragma unroll
    for (int step = kStrip/2; step >= 1; step /= 2) {
        x = combine(x, __shfl_xor_sync(kAll, x, step));
    }
    return x;
}

// kLanes: lanes that hold a row, 8 values each. kHeads: query heads of a unit; heads past the group's last are zeros. kLists: attends the
// rows that lists name.
template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads, bool kLists>
struct Kernel {
    using Math = RowMath<kTypeK, kTypeV, kLanes, kHeads>;
    template <CellType T>
    using Rows = std::conditional_t<kLists, typename Math::template Scattered<T>, typename Math::template Rows<T>>;
    // strips whose places a warp finds at a time
    static constexpr int kFound = kLists ? kWarp/kStrip : kWarp;
    static constexpr int kBatch = Math::kBatch, kBatches = Math::kBatches, kWidth = Math::kWidth;

    struct Shared {
        // first the units' queries, [unit][head][half][lane of the row][4], so that neighbours read neighbouring words; afterwards
        // the warps' outputs, [warp][head][kWidth]
        float4 rows[kWarps*kHeads*kWidth/4];
        float scores[kWarps][kHeads*kStrip];     // [head][cell]
        float4 weights[kWarps][kHeads*kStrip/4]; // [cell][head]
        float factors[kWarps][kHeads];
        float2 max_sum[kWarps][kHeads];
        Strip strips[kLists ? 1 : kWarps][2][kWarp];
        Place places[kLists ? kWarps : 1][2][kWarp];
        float row_weights[kLists ? kWarps : 1][2][kWarp];
    };

    static __device__ __forceinline__ void load_queries(const AttendProblem & p, const Units & units, Shared & shared) {
        const int group = p.n_head/p.n_head_kv;
#pragma unroll 1
        for (int i = threadIdx.x; i < units.n_together*kHeads*kWidth/4; i += kWarps*kWarp) {
            const int in_row = i%(kWidth/4);
            const Unit unit = unit_of(p, units, kHeads, blockIdx.z, i/(kHeads*kWidth/4));
            const int head = unit.first_head + i/(kWidth/4)%kHeads;
            const int d = in_row%kLanes*8 + in_row/kLanes*4;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (unit.valid && head < group && d < p.head_dim) {
                const char * row = p.q + static_cast<size_t>(unit.token)*p.q_stride_token +
                                   (static_cast<size_t>(blockIdx.y)*group + head)*p.q_stride_head;
                x = __ldg(reinterpret_cast<const float4 *>(row + d*4));
                x = make_float4(x.x*p.scale, x.y*p.scale, x.z*p.scale, x.w*p.scale);
            }
            shared.rows[i] = x;
        }
    }

    static __device__ __forceinline__ void run(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace) {
        Shared & shared = *reinterpret_cast<Shared *>(shared_memory());
        const int lane = threadIdx.x%kWarp, warp = threadIdx.x/kWarp;
        const int split = blockIdx.x, kv = blockIdx.y;
        const int group = p.n_head/p.n_head_kv;
        const Units units = units_of(p, kHeads);
        const Unit unit = unit_of(p, units, kHeads, blockIdx.z, warp%units.n_together);
        const int n_walkers = kWarps/units.n_together, walker = warp/units.n_together;
        const bool noted = kLists ? keeps_logits(p) : observes(p);

        load_queries(p, units, shared);
        __syncthreads();

        // this block's share: pages, or strips of a list
        const int per_page = kLists ? 1 : p.page_tokens/kStrip;
        size_t first_row = 0;  // of the list, among those of all lists
        const float * row_weights = nullptr;
        int first = part.first_page, n_pages = min(part.end_page, view_pages(p)) - first, n_rows = 0;
        if (kLists) {
            const size_t list = static_cast<size_t>(unit.token)*p.n_head_kv + kv;
            first_row = list*p.rows.stride;
            row_weights = p.rows.weights != nullptr ? p.rows.weights + first_row : nullptr;
            n_rows = p.rows.n_rows[list];
            first = 0;
            n_pages = (n_rows + kStrip - 1)/kStrip;
        }
        n_pages = max(n_pages, 0);
        const int begin = first + static_cast<int>(static_cast<int64_t>(n_pages)*split/part.n_splits);
        const int end = first + static_cast<int>(static_cast<int64_t>(n_pages)*(split + 1)/part.n_splits);
        const int first_strip = begin*per_page + walker;
        const int n_strips = unit.valid ? max(end*per_page - first_strip + n_walkers - 1, 0)/n_walkers : 0;

        const bool active = lane%kLanes*8 < p.head_dim;
        const float4 * q = shared.rows + warp%units.n_together*(kHeads*kWidth/4);
        float * scores = shared.scores[warp];
        float4 * weights = shared.weights[warp];
        float * factors = shared.factors[warp];

        float acc[kHeads][8] = {};
        // element i belongs to head lane/16 + 2*i and is the same in 16 lanes
        float top[kHeads/2], sum[kHeads/2];
        for (int i = 0; i < kHeads/2; ++i) {
            top[i] = -INFINITY;
            sum[i] = 0.0f;
        }

        // Finding a strip takes two or three dependent loads. Each lane finds one of the next 32 strips, or with lists one row of the
        // next two strips, so that the warp waits once for all. There are two sets, because the last strip of the old set is still in use.
        const auto row_at = [&](int i) { return (first_strip + i*n_walkers)*kStrip + lane%kStrip; };  // of the list
        const auto strip = [&](int i) -> Strip & { return shared.strips[warp][i/kWarp%2][i%kWarp]; };
        const auto found_at = [&](int i) { return i%kFound*kStrip; };
        const auto find = [&](int i) {
            if (i%kFound != 0) {
                return;
            }
            if constexpr (kLists) {
                const int at = row_at(i + lane/kStrip);
                Place place = {nullptr, nullptr};
                float weight = 0.0f;
                if (i + lane/kStrip < n_strips && at < n_rows) {
                    bool home;
                    place = place_of(p, kv, first_row + at, &home);
                    weight = row_weights != nullptr ? row_weights[at] : 1.0f;
                    if (home && !part.brought && unit.first_head == 0) {  // other heads of the group meet it in the cache
                        reads_home(row_bytes(kTypeK, p.head_dim) + row_bytes(kTypeV, p.head_dim));
                    }
                }
                shared.places[warp][i/kFound%2][lane] = place;
                shared.row_weights[warp][i/kFound%2][lane] = weight;
            } else if (i + lane < n_strips) {
                const int at = first_strip + (i + lane)*n_walkers;
                strip(i + lane) = strip_at(p, part.ring, kv, at/per_page, at%per_page*kStrip);
            }
            __syncwarp();
        };
        const auto k_rows = [&](int i) {
            if constexpr (kLists) {
                return Rows<kTypeK>{&shared.places[warp][i/kFound%2][found_at(i)].k, lane};
            } else {
                return Rows<kTypeK>(strip(i).k, strip(i).dense ? row_bytes(kTypeK, p.head_dim) : p.k_stride_cell, lane);
            }
        };
        const auto v_rows = [&](int i) {
            if constexpr (kLists) {
                return Rows<kTypeV>{&shared.places[warp][i/kFound%2][found_at(i)].v, lane};
            } else {
                return Rows<kTypeV>(strip(i).v, strip(i).dense ? row_bytes(kTypeV, p.head_dim) : p.v_stride_cell, lane);
            }
        };

        const auto look = [&](int i) {  // the token's mask of a strip's cells; a token sees all rows of its list
            if (i >= n_strips) {
                return -INFINITY;
            }
            find(i);
            if constexpr (kLists) {
                return row_at(i) < n_rows ? 0.0f : -INFINITY;
            } else {
                return bias_of(p, unit.token, strip(i).cell + lane%kStrip);
            }
        };
        const float per_softcap = p.softcap != 0.0f ? 1.0f/p.softcap : 0.0f;
        const auto seen = [&](float bias) { return __ballot_sync(kAll, bias > -INFINITY) & 0xffffu; };

        uint4 k_words[kBatch], v_words[kBatch];
        float next_bias = -INFINITY;
        unsigned next_visible = 0;
#pragma unroll 1
        for (int i = -1; i < n_strips; ++i) {  // turn -1 only loads the first strip
            const float bias = next_bias;
            const unsigned visible = next_visible;
            next_bias = look(i + 1);
            if (visible != 0) {
                Math::template load<kTypeV>(v_words, v_rows(i), 0, active ? visible : 0, lane);
#pragma unroll 1
                for (int b = 0; b < kBatches; ++b) {
                    Math::multiply(k_words, k_rows(i), b, q, scores, lane);
                    if (b + 1 < kBatches) {
                        Math::template load<kTypeK>(k_words, k_rows(i), b + 1, active ? visible : 0, lane);
                    }
                }
            }
            next_visible = seen(next_bias);
            if (next_visible != 0) {
                if constexpr (!kLists) {
                    if (lane == 0 && strip(i + 1).dense == 0 && !part.brought) {
                        reads_home(__popc(next_visible)*(row_bytes(kTypeK, p.head_dim) + row_bytes(kTypeV, p.head_dim)));
                    }
                }
                Math::template load<kTypeK>(k_words, k_rows(i + 1), 0, active ? next_visible : 0, lane);
            }
            __syncwarp();

            const auto note = [&](int head, float logit, float total, float max) {
                const size_t row = static_cast<size_t>(unit.token)*p.n_head + kv*group + unit.first_head + head;
                if (!noted || i < 0 || unit.first_head + head >= group) {
                    return;
                }
                if constexpr (kLists) {
                    if (row_at(i) < n_rows) {
                        workspace.logits[row*workspace.logit_stride + row_at(i)] = logit;
                    }
                } else if (lane%kStrip == 0) {
                    workspace.strips[row*workspace.strip_stride + first_strip + i*n_walkers] = make_float2(total, max);
                }
            };
            if (visible == 0) {
#pragma unroll
                for (int j = 0; j < kHeads/2; ++j) {
                    note(lane/kStrip + 2*j, -INFINITY, 0.0f, -INFINITY);
                }
                continue;
            }
            bool moved = false;
#pragma unroll
            for (int j = 0; j < kHeads/2; ++j) {
                const int head = lane/kStrip + 2*j;
                float s = scores[head*kStrip + lane%kStrip];
                if (p.softcap != 0.0f) {
                    s = p.softcap*tanhf(s*per_softcap);
                }
                s += bias;
                const float now = fmaxf(over_cells(s, [](float a, float b) { return fmaxf(a, b); }), top[j]);
                float weight = s == -INFINITY ? 0.0f : __expf(s - now);
                if constexpr (kLists) {
                    weight *= shared.row_weights[warp][i/kFound%2][found_at(i) + lane%kStrip];
                }
                const float factor = now == top[j] ? 1.0f : __expf(top[j] - now);
                const float total = over_cells(weight, [](float a, float b) { return a + b; });
                top[j] = now;
                sum[j] = sum[j]*factor + total;
                moved = moved || factor != 1.0f;
                reinterpret_cast<float *>(weights)[lane%kStrip*kHeads + head] = weight;
                if (lane%kStrip == 0) {
                    factors[head] = factor;
                }
                note(head, s, total, now);
            }
            moved = __any_sync(kAll, moved) != 0;
            __syncwarp();
            if (moved) {  // rare after the first strips
#pragma unroll
                for (int h = 0; h < kHeads; ++h) {
                    const float factor = factors[h];
#pragma unroll
                    for (int d = 0; d < 8; ++d) {
                        acc[h][d] *= factor;
                    }
                }
            }
#pragma unroll 1
            for (int b = 0; b < kBatches; ++b) {
                Math::accumulate(v_words, v_rows(i), b, weights, acc, lane);
                if (b + 1 < kBatches) {
                    Math::template load<kTypeV>(v_words, v_rows(i), b + 1, active ? visible : 0, lane);
                }
            }
        }
        leave(p, part, workspace, units, shared, acc, top, sum);
    }

    // The warps' sums over rows and walkers, to the workspace.
    static __device__ __forceinline__ void leave(const AttendProblem & p, const AttendPart & part,
                                                 const AttendWorkspace & workspace, const Units & units, Shared & shared,
                                                 float (&acc)[kHeads][8], const float (&top)[kHeads/2],
                                                 const float (&sum)[kHeads/2]) {
        const int lane = threadIdx.x%kWarp, warp = threadIdx.x/kWarp;
        const int group = p.n_head/p.n_head_kv;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
            for (int d = 0; d < 8; ++d) {
#pragma unroll
                for (int step = kLanes; step < kWarp; step *= 2) {
                    acc[h][d] += __shfl_xor_sync(kAll, acc[h][d], step);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kHeads/2; ++j) {
            if (lane%kStrip == 0) {
                shared.max_sum[warp][lane/kStrip + 2*j] = make_float2(top[j], sum[j]);
            }
        }
        __syncthreads();  // no thread needs the queries any more

        const auto max_of = [&](int in_block, int head) {
            float max = -INFINITY;
#pragma unroll 1
            for (int w = in_block; w < kWarps; w += units.n_together) {
                max = fmaxf(max, shared.max_sum[w][head].x);
            }
            return max;
        };
        const auto factor_of = [&](int w, int head, float max) {
            const float own = shared.max_sum[w][head].x;
            return own == -INFINITY ? 0.0f : __expf(own - max);
        };
        float * rows = reinterpret_cast<float *>(shared.rows);
        if (lane < kLanes) {
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                const float f = factor_of(warp, h, max_of(warp%units.n_together, h));
                float4 * row = reinterpret_cast<float4 *>(rows + (warp*kHeads + h)*kWidth + lane*8);
                row[0] = make_float4(acc[h][0]*f, acc[h][1]*f, acc[h][2]*f, acc[h][3]*f);
                row[1] = make_float4(acc[h][4]*f, acc[h][5]*f, acc[h][6]*f, acc[h][7]*f);
            }
        }
        __syncthreads();

#pragma unroll 1
        for (int in_block = 0; in_block < units.n_together; ++in_block) {
            const Unit unit = unit_of(p, units, kHeads, blockIdx.z, in_block);
            const int n_heads = unit.valid ? min(kHeads, group - unit.first_head) : 0;
            const size_t first_row = static_cast<size_t>(unit.token)*p.n_head + blockIdx.y*group + unit.first_head;
            const size_t partial = part.first_partial + blockIdx.x;
#pragma unroll 1
            for (int i = threadIdx.x; i < n_heads*p.head_dim; i += kWarps*kWarp) {
                const int head = i/p.head_dim, d = i%p.head_dim;
                float x = 0.0f;
#pragma unroll 1
                for (int w = in_block; w < kWarps; w += units.n_together) {
                    x += rows[(w*kHeads + head)*kWidth + d];
                }
                workspace.out[((first_row + head)*workspace.n_partials + partial)*p.head_dim + d] = x;
            }
            if (static_cast<int>(threadIdx.x) < n_heads) {
                const int head = threadIdx.x;
                const float max = max_of(in_block, head);
                float total = 0.0f;
#pragma unroll 1
                for (int w = in_block; w < kWarps; w += units.n_together) {
                    total += shared.max_sum[w][head].y*factor_of(w, head, max);
                }
                workspace.max_sum[(first_row + head)*workspace.n_partials + partial] = make_float2(max, total);
            }
        }
    }
};

}  // namespace
}  // namespace edgekv::gpu
