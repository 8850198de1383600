// The second half of the attention merges partial softmaxes into the output, and strips' weights into mass and hits.
//
// One launch does it all. Every block computes the final max and sum of all rows of its KV head (it reads a few kilobytes from the
// L2 cache, which costs less than a second launch), then takes its share of the output's rows and of the pages. Blocks share the pages by
// number. With lists these are the last blocks, as many as there are tokens; each takes its pages of all lists, one list after the other, because two
// tokens may have read rows of the same page: its mass is the same sum, whoever has it. Bound by the latency of rows' logits.
//
// The last block of a head adds up what these found, and estimates errors for the few heads whose turn it is, which need the whole output. A ticket
// says which one that is; it counts round to zero, so that a recorded launch finds it as it left it.
#include "cuda/kernels/attend_error.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kMaxRows = kMaxGroup*kMaxQueryTokens;  // of a KV head

// Merges one row of the output: groups of threads take partials in turn, four values per thread.
__device__ inline void merge_row(const AttendProblem & p, const AttendWorkspace & workspace, int kv, int i, Final final, float4 * sums) {
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

// The mass that the heads of a group gave to one page in one token: the largest and the sum.
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
        x *= finals[i].inverse;
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

__device__ inline void add(ListSums & sums, const ListSums & other) {
    sums.n_read += other.n_read;
    sums.n_hits += other.n_hits;
    sums.mass += other.mass;
    sums.mass_hits += other.mass_hits;
}

__device__ inline void add_hits(AttendHits & hits, const ListSums & sums) {
    hits.n_read += sums.n_read;
    hits.n_hits += sums.n_hits;
    hits.mass += sums.mass;
    hits.mass_hits += sums.mass_hits;
}

// In thread 0.
__device__ inline ListSums sum_of_block(ListSums x, ListSums * warps) {
    for (int step = kWarp/2; step > 0; step /= 2) {
        const auto of_lane = [&](auto y) { return __shfl_xor_sync(0xffffffffu, y, step); };
        add(x, {of_lane(x.n_read), of_lane(x.n_hits), of_lane(x.mass), of_lane(x.mass_hits)});
    }
    if (threadIdx.x%kWarp == 0) {
        warps[threadIdx.x/kWarp] = x;
    }
    __syncthreads();
    for (int w = 1; w < kMergeThreads/kWarp && threadIdx.x == 0; ++w) {
        add(x, warps[w]);
    }
    return x;
}

// A token's list of one KV head.
struct List {
    const int32_t * cells;
    const float * weights;   // null: all 1
    const int32_t * copies;  // null: there are none
    int token, n;

    __device__ bool had_copy(int at) const { return copies != nullptr && copies[at] >= 0 && copies[at] < kBrought; }  // before this step
};

__device__ inline List list_of(const AttendProblem & p, int kv, int token) {
    const size_t list = static_cast<size_t>(token)*p.n_head_kv + kv, first = list*p.rows.stride;
    return {p.rows.cells + first, p.rows.weights != nullptr ? p.rows.weights + first : nullptr,
            p.copies.data != nullptr ? p.copies.slots + first : nullptr, token, p.rows.n_rows[list]};
}

// The mass of a page from the rows [first, end) of a list, all rows of that page, and that of those among them that had copies.
struct RowMass {
    Mass all;
    float of_copies;
};

__device__ inline RowMass mass_of_rows(const AttendProblem & p, const AttendWorkspace & workspace, const Final * finals, int kv, const List & list,
                                       int first, int end) {
    const int group = p.n_head/p.n_head_kv;
    RowMass mass = {{0.0f, 0.0f}, 0.0f};
    for (int g = 0; g < group; ++g) {
        const int i = list.token*group + g;
        const float * logits = workspace.logits + row_of(p, kv, i)*workspace.logit_stride;
        float x = 0.0f, copied = 0.0f;
        for (int at = first; at < end; ++at) {
            const float of_row = (list.weights != nullptr ? list.weights[at] : 1.0f)*__expf(logits[at] - finals[i].max);
            x += of_row;
            copied += list.had_copy(at) ? of_row : 0.0f;
        }
        x *= finals[i].inverse;
        mass.all.max = fmaxf(mass.all.max, x);
        mass.all.sum += x;
        mass.of_copies += copied*finals[i].inverse;
    }
    return mass;
}

// The pages of share `mine` of n_shares. One share adds to the head's hits; several leave what they found.
__device__ inline void observe_lists(const AttendProblem & p, const AttendWorkspace & workspace, const Final * finals, int kv, int mine,
                                     int n_shares, ListSums * warps) {
    const int32_t * slots = p.arena.data != nullptr ? p.arena.slots + static_cast<size_t>(kv)*p.arena.slots_stride : nullptr;
    const bool observed = observes(p);
    ListSums sums = {0, 0, 0.0f, 0.0f};
    for (int token = 0; token < p.n_tokens; ++token) {
        const List list = list_of(p, kv, token);
        for (int i = threadIdx.x; i < list.n; i += kMergeThreads) {
            const int page = list.cells[i]/p.page_tokens;
            if (page%n_shares != mine || (i > 0 && list.cells[i - 1]/p.page_tokens == page)) {
                continue;  // the thread of a page's first row serves all its rows
            }
            const bool hit = slots != nullptr && slots[page] >= 0;
            int end = i;
            for (; end < list.n && list.cells[end]/p.page_tokens == page; ++end) {
                sums.n_hits += hit || list.had_copy(end) ? 1 : 0;
            }
            sums.n_read += end - i;
            if (observed) {
                const RowMass of_page = mass_of_rows(p, workspace, finals, kv, list, i, end);
                add_mass(p, kv, page, of_page.all);
                sums.mass += of_page.all.sum;
                sums.mass_hits += hit ? of_page.all.sum : of_page.of_copies;
            }
        }
        __syncthreads();  // the next token's list gives the same page to another thread
    }
    if (p.hits == nullptr) {
        return;
    }
    sums = sum_of_block(sums, warps);
    if (threadIdx.x == 0 && n_shares > 1) {
        workspace.sums[kv*n_shares + mine] = sums;
    } else if (threadIdx.x == 0) {
        add_hits(p.hits[kv], sums);
    }
}

// In the order of the shares, whoever came first.
__device__ inline void add_shares(const AttendProblem & p, const AttendWorkspace & workspace, int kv, int n_shares) {
    ListSums sums = workspace.sums[kv*n_shares];
    for (int share = 1; share < n_shares; ++share) {
        add(sums, workspace.sums[kv*n_shares + share]);
    }
    add_hits(p.hits[kv], sums);
}

static_assert(kMergeThreads == kErrorWarps*kWarp, "error_of() takes the block's warps");

union MergeSums {
    float4 rows[kMergeThreads];
    ListSums hits[kMergeThreads/kWarp];
    ErrorShared error;
};

__device__ inline bool has_turn(const AttendProblem & p, const AttendPart & part, int kv) {
    if (!has_lists(p) || p.rows.weights == nullptr || p.error_every == 0 || p.hits == nullptr) {
        return false;
    }
    const uint32_t turn = static_cast<uint32_t>(kv) + static_cast<uint32_t>(p.error_turn) + (part.n_ubatch != nullptr ? *part.n_ubatch : 0u);
    return turn%static_cast<uint32_t>(p.error_every) == 0;
}

// Whether the block is the last of `n` that come to the ticket. Its threads then see what all of these wrote before their last barrier: merge_row() ends
// with one.
__device__ inline bool comes_last(uint32_t * ticket, unsigned n, bool & last) {
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(ticket, n - 1) + 1 == n;
        __threadfence();
    }
    __syncthreads();
    return last;
}

__global__ void __launch_bounds__(kMergeThreads) attend_merge(AttendProblem p, AttendPart part, AttendWorkspace workspace) {
    wait_for_launch();
    EDGEKV_SHARED(Final[kMaxRows], finals);
    EDGEKV_SHARED(MergeSums, sums);
    EDGEKV_SHARED(bool, last);
    const int kv = blockIdx.y, n_shares = part.n_page_blocks, first_share = gridDim.x - n_shares;
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
    if (!has_lists(p)) {
        if (observes(p)) {
            observe_view(p, workspace, finals, kv, part.first_page, part.end_page);
        }
    } else if (static_cast<int>(blockIdx.x) >= first_share && (observes(p) || p.hits != nullptr)) {
        observe_lists(p, workspace, finals, kv, blockIdx.x - first_share, n_shares, sums.hits);
    }
    const bool adds = n_shares > 1 && p.hits != nullptr, turn = has_turn(p, part, kv);
    if ((!adds && !turn) || !comes_last(part.tickets + kv, gridDim.x, last)) {
        return;
    }
    if (adds && threadIdx.x == 0) {
        add_shares(p, workspace, kv, n_shares);
    }
    if (!turn) {
        return;
    }
    switch (p.v_type) {
        case CellType::f16: return add_errors<CellType::f16>(p, part, workspace, finals, sums.error);
        case CellType::q8_0: return add_errors<CellType::q8_0>(p, part, workspace, finals, sums.error);
        case CellType::q4_0: return add_errors<CellType::q4_0>(p, part, workspace, finals, sums.error);
    }
}

}  // namespace

AttendWorkspace attend_workspace(const AttendProblem & p, void * workspace, int n_partials) {
    static_assert(sizeof(float2) == 2*sizeof(float), "as attend_scratch() has it");
    const AttendScratch scratch = attend_scratch(p, n_partials);
    char * const at = static_cast<char *>(workspace);
    AttendWorkspace w;
    w.n_partials = n_partials;
    w.strip_stride = view_pages(p)*(p.page_tokens/kStrip);
    w.logit_stride = w.strip_stride*kStrip;
    w.max_sum = reinterpret_cast<float2 *>(at);
    w.out = reinterpret_cast<float *>(at + scratch.out);
    w.sums = reinterpret_cast<ListSums *>(at + scratch.sums);
    w.strips = has_lists(p) ? nullptr : reinterpret_cast<float2 *>(at + scratch.noted);
    w.logits = has_lists(p) ? reinterpret_cast<float *>(at + scratch.noted) : nullptr;
    return w;
}

void launch_attend_merge(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream) {
    constexpr int kMostBlocks = 64;
    const bool lists = has_lists(problem);
    const int n_rows = problem.n_tokens*(problem.n_head/problem.n_head_kv);
    AttendPart in_view = part;
    in_view.end_page = part.end_page < view_pages(problem) ? part.end_page : view_pages(problem);
    in_view.n_page_blocks = part.n_page_blocks > 0 ? part.n_page_blocks : page_blocks(problem);
    // with lists, further blocks, without rows of the output, take the pages
    const int n_page_blocks = !lists && observes(problem) ? (in_view.end_page - part.first_page + kMergeThreads - 1)/kMergeThreads : 0;
    int n_blocks = n_rows > n_page_blocks ? n_rows : n_page_blocks;
    n_blocks = n_blocks < kMostBlocks ? n_blocks : kMostBlocks;
    const Grid grid = {static_cast<unsigned>(n_blocks + in_view.n_page_blocks), static_cast<unsigned>(problem.n_head_kv), 1};
    launch_behind(attend_merge, grid, kMergeThreads, 0, stream, problem, in_view, attend_workspace(problem, workspace, n_partials));
}

}  // namespace edgekv::gpu
