// The second half of the attention: partial softmaxes into the output, and strips' weights into mass and hits.
//
// One launch does it all: every block forms the final max and sum of all rows of its KV head again (a few kilobytes from the
// second-level cache, less than a launch would cost), then takes its share of the rows of the output and of the pages. Without
// lists pages are shared out by number; with lists the last block has the pages of all lists, one list after the other, since two
// tokens may have selected the same page, and hits are one sum. Lists are short where they pay.
#include "attend_device.h"
#include "attend_workspace.h"

namespace edgekv::gpu {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kMaxRows = kMaxGroup*kMaxQueryTokens;  // of a KV head

struct Final {
    float max, inverse;  // 0: the row saw nothing
};

// Row `i` of a KV head is (token i/group, head i%group).
__device__ inline size_t row_of(const AttendProblem & p, int kv, int i) {
    const int group = p.n_head/p.n_head_kv;
    return static_cast<size_t>(i/group)*p.n_head + kv*group + i%group;
}

__device__ inline float weight_of(float2 partial, float max) { return partial.x == -INFINITY ? 0.0f : __expf(partial.x - max); }

// By one warp.
__device__ inline Final final_of(const AttendProblem & p, const AttendWorkspace & workspace, int kv, int i, int lane) {
    const size_t row = row_of(p, kv, i);
    const float2 * partials = workspace.max_sum + row*workspace.n_partials;
    const float sink = p.sinks != nullptr ? p.sinks[row%p.n_head] : -INFINITY;
    float max = sink;
    for (int at = lane; at < workspace.n_partials; at += kWarp) {
        max = fmaxf(max, partials[at].x);
    }
    for (int step = kWarp/2; step >= 1; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
    }
    float sum = 0.0f;
    for (int at = lane; at < workspace.n_partials; at += kWarp) {
        sum += partials[at].y*weight_of(partials[at], max);
    }
    for (int step = kWarp/2; step >= 1; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    sum += sink > -INFINITY ? __expf(sink - max) : 0.0f;
    return {max, sum > 0.0f ? 1.0f/sum : 0.0f};
}

// One row of the output: groups of threads take partials in turn, four values a thread.
__device__ inline void merge_row(const AttendProblem & p, const AttendWorkspace & workspace, int kv, int i, Final final,
                                 float4 * sums) {
    const size_t row = row_of(p, kv, i);
    const int wide = p.head_dim/4, n_groups = kMergeThreads/wide;
    const int at = threadIdx.x%wide, mine = threadIdx.x/wide;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int partial = mine; partial < workspace.n_partials && mine < n_groups; partial += n_groups) {
        const size_t from = row*workspace.n_partials + partial;
        const float weight = weight_of(workspace.max_sum[from], final.max);
        if (weight > 0.0f) {
            const float4 x = reinterpret_cast<const float4 *>(workspace.out + from*p.head_dim)[at];
            sum = make_float4(sum.x + weight*x.x, sum.y + weight*x.y, sum.z + weight*x.z, sum.w + weight*x.w);
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    char * out = p.out + row/p.n_head*p.out_stride_token + row%p.n_head*p.out_stride_head;
    for (int d = threadIdx.x; d < p.head_dim; d += kMergeThreads) {
        float total = 0.0f;
        for (int g = 0; g < n_groups; ++g) {
            total += reinterpret_cast<const float *>(sums)[g*p.head_dim + d];
        }
        reinterpret_cast<float *>(out)[d] = total*final.inverse;
    }
    __syncthreads();
}

// What the heads of a group gave to one page in one token: the largest and the sum.
struct Mass {
    float max, sum;
};

__device__ inline Mass mass_of(const AttendProblem & p, const AttendWorkspace & workspace, const Final * finals, int kv,
                               int token, int first_strip) {
    const int group = p.n_head/p.n_head_kv, per_page = p.page_tokens/kStrip;
    Mass mass = {0.0f, 0.0f};
    for (int g = 0; g < group; ++g) {
        const int i = token*group + g;
        const size_t row = row_of(p, kv, i);
        const float2 * strips = workspace.strips + row*workspace.strip_stride + first_strip;
        float x = 0.0f;
        for (int s = 0; s < per_page; ++s) {
            x += strips[s].x > 0.0f ? strips[s].x*__expf(strips[s].y - finals[i].max) : 0.0f;
        }
        x *= finals[i].inverse*(p.selection.coverage != nullptr ? p.selection.coverage[row] : 1.0f);
        mass.max = fmaxf(mass.max, x);
        mass.sum += x;
    }
    return mass;
}

__device__ inline void add_mass(const AttendProblem & p, int kv, int page, Mass mass) {
    const size_t at = static_cast<size_t>(kv)*p.mass_stride + page;
    if (p.mass_max != nullptr) {
        p.mass_max[at] += mass.max;
    }
    if (p.mass_sum != nullptr) {
        p.mass_sum[at] += mass.sum;
    }
}

__device__ inline void observe_view(const AttendProblem & p, const AttendWorkspace & workspace, const Final * finals, int kv,
                                    int first_page, int end_page) {
    for (int page = first_page + blockIdx.x*kMergeThreads + threadIdx.x; page < end_page; page += gridDim.x*kMergeThreads) {
        for (int token = 0; token < p.n_tokens; ++token) {
            add_mass(p, kv, page, mass_of(p, workspace, finals, kv, token, page*(p.page_tokens/kStrip)));
        }
    }
}

__device__ inline double sum_of_block(double x, double * sums) {
    __syncthreads();
    sums[threadIdx.x] = x;
    for (int n = kMergeThreads/2; n >= 1; n /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < n) {
            sums[threadIdx.x] += sums[threadIdx.x + n];
        }
    }
    return sums[0];  // of use to thread 0
}

__device__ inline void observe_lists(const AttendProblem & p, const AttendWorkspace & workspace, const Final * finals, int kv,
                                     double * sums) {
    const int32_t * slots = p.arena.data != nullptr ? p.arena.slots + static_cast<size_t>(kv)*p.arena.slots_stride : nullptr;
    const bool observed = observes(p);
    AttendHits mine = {0.0, 0.0, 0.0, 0.0};
    for (int token = 0; token < p.n_tokens; ++token) {
        const size_t list = static_cast<size_t>(token)*p.n_head_kv + kv;
        const int32_t * pages = p.selection.pages + list*p.selection.stride;
        const int n = p.selection.n_pages[list];
        for (int i = threadIdx.x; i < n; i += kMergeThreads) {
            const int page = pages[i];
            const bool hit = slots != nullptr && slots[page] >= 0;
            mine.n_selected += 1.0;
            mine.n_hits += hit ? 1.0 : 0.0;
            if (observed) {
                const Mass mass = mass_of(p, workspace, finals, kv, token, i*(p.page_tokens/kStrip));
                add_mass(p, kv, page, mass);
                mine.mass += mass.sum;
                mine.mass_hits += hit ? mass.sum : 0.0;
            }
        }
        __syncthreads();  // the next token's list gives the same page to another thread
    }
    if (p.hits == nullptr) {
        return;
    }
    const double n_selected = sum_of_block(mine.n_selected, sums);
    const double n_hits = sum_of_block(mine.n_hits, sums);
    const double mass = sum_of_block(mine.mass, sums);
    const double mass_hits = sum_of_block(mine.mass_hits, sums);
    if (threadIdx.x == 0) {
        AttendHits & hits = p.hits[kv];
        hits.n_selected += n_selected;
        hits.n_hits += n_hits;
        hits.mass += mass;
        hits.mass_hits += mass_hits;
    }
}

__global__ void __launch_bounds__(kMergeThreads)
attend_merge(AttendProblem p, AttendWorkspace workspace, int first_page, int end_page) {
    __shared__ Final finals[kMaxRows];
    __shared__ union {
        float4 rows[kMergeThreads];
        double hits[kMergeThreads];
    } sums;
    const int kv = blockIdx.y;
    const int n_rows = p.n_tokens*(p.n_head/p.n_head_kv);
    for (int i = threadIdx.x/kWarp; i < n_rows; i += kMergeThreads/kWarp) {
        const Final final = final_of(p, workspace, kv, i, threadIdx.x%kWarp);
        if (threadIdx.x%kWarp == 0) {
            finals[i] = final;
        }
    }
    __syncthreads();
    for (int i = blockIdx.x; i < n_rows; i += gridDim.x) {
        merge_row(p, workspace, kv, i, finals[i], sums.rows);
    }
    if (p.selection.pages == nullptr) {
        if (observes(p)) {
            observe_view(p, workspace, finals, kv, first_page, end_page);
        }
    } else if (blockIdx.x + 1 == gridDim.x && (observes(p) || p.hits != nullptr)) {
        observe_lists(p, workspace, finals, kv, sums.hits);
    }
}

size_t whole(size_t n_bytes) { return (n_bytes + 255)/256*256; }

}  // namespace

AttendWorkspace attend_workspace(const AttendProblem & p, void * workspace, int n_partials) {
    const size_t n = static_cast<size_t>(p.n_tokens)*p.n_head*n_partials;
    char * at = static_cast<char *>(workspace);
    AttendWorkspace w;
    w.n_partials = n_partials;
    w.strip_stride = view_pages(p)*(p.page_tokens/kStrip);
    w.max_sum = reinterpret_cast<float2 *>(at);
    at += whole(n*sizeof(float2));
    w.out = reinterpret_cast<float *>(at);
    at += whole(n*p.head_dim*sizeof(float));
    w.strips = reinterpret_cast<float2 *>(at);
    return w;
}

size_t attend_device_workspace_bytes(const AttendProblem & p, int n_partials, bool observed) {
    const size_t n_rows = static_cast<size_t>(p.n_tokens)*p.n_head;
    const size_t strips = static_cast<size_t>(view_pages(p))*(p.page_tokens/kStrip)*sizeof(float2);
    return whole(n_rows*n_partials*sizeof(float2)) + whole(n_rows*n_partials*p.head_dim*sizeof(float)) +
           (observed ? whole(n_rows*strips) : 0);
}

void launch_attend_merge(const AttendProblem & problem, int first_page, int end_page, void * workspace, int n_partials,
                         Stream stream) {
    constexpr int kMostBlocks = 64;
    const bool lists = problem.selection.pages != nullptr;
    const int n_rows = problem.n_tokens*(problem.n_head/problem.n_head_kv);
    const int end = end_page < view_pages(problem) ? end_page : view_pages(problem);
    // with lists: a block that has no row of the output, for the pages
    const int n_page_blocks = !lists && observes(problem) ? (end - first_page + kMergeThreads - 1)/kMergeThreads : 0;
    int n_blocks = n_rows > n_page_blocks ? n_rows : n_page_blocks;
    n_blocks = n_blocks < kMostBlocks ? n_blocks : kMostBlocks;
    const Grid grid = {static_cast<unsigned>(n_blocks + (lists ? 1 : 0)), static_cast<unsigned>(problem.n_head_kv), 1};
    launch(attend_merge, grid, kMergeThreads, 0, stream, problem, attend_workspace(problem, workspace, n_partials), first_page,
           end);
}

}  // namespace edgekv::gpu
