#include "select_list.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kMaxThreads = kWarp * kMaxWarps;
constexpr int kMinThreads = 64;
constexpr int kFinishThreads = 256;

// what a page that was not taken adds to the observation; what cannot be seen has no mass, or what an earlier scan found
__device__ inline float missed(const Scratch & s, const float * what, int page, float threshold) {
    return s.value[page] >= threshold ? 0.0f : what[page];
}

// A block for each list; grid: heads, tokens, streams.
__global__ void __launch_bounds__(kMaxThreads, 1) select_kernel(const SelectBatch b, const StepState * state) {
    __shared__ Shared shared;
    const int head = blockIdx.x, token = blockIdx.y, stream = blockIdx.z;
    const int64_t list = list_of(b, stream, token, head), at = pages_at(b, stream, head);
    const bool turns = b.estimates != nullptr && takes_turns(b);
    const bool scans = b.estimates != nullptr && (!turns || scans_now(*state, b.first_turn + head, b.reselect));
    float * const known = turns ? b.known + at : nullptr;
    Lister l = {b,
                shared,
                scratch_of(b, list),
                scans ? b.estimates + list * b.group * static_cast<int64_t>(b.estimate_stride) : nullptr,
                scans ? nullptr : known,
                scans ? known : nullptr,
                b.standing + (static_cast<int64_t>(stream) * b.n_tokens + token) * b.standing_stride,
                b.priority != nullptr ? b.priority + at : nullptr,
                b.pinned != nullptr ? b.pinned + at : nullptr,
                b.sinks != nullptr ? b.sinks + static_cast<int64_t>(head) * b.group : nullptr};
    const Scratch & s = l.s;
    l.rate_all();

    const int n_budget = budget_pages(b, l.n_visible);
    if (b.counts != nullptr && state->count_values != 0) {
        for (int bin = threadIdx.x; bin < kValueBuckets; bin += blockDim.x) {
            if (shared.values.count[bin] != 0) {
                atomicAdd(b.counts->buckets + bin, shared.values.count[bin]);
            }
        }
        if (threadIdx.x == 0) {  // whole numbers: exact in any order
            const int others = head == 0 ? b.dense_heads * (l.n_visible - n_budget) : 0;
            atomicAdd(&b.counts->n_budget, static_cast<double>(n_budget - others));
            atomicAdd(&b.counts->n_pinned, static_cast<double>(l.n_pinned));
        }
        __syncthreads();
    }

    float threshold = b.pooled ? state->threshold : -1.0f;
    int excess = 0;
    if (threshold < 0.0f) {
        threshold = 0.0f;
        const int budget = max(n_budget, l.n_pinned);
        if (budget == l.n_pinned) {
            threshold = INFINITY;
        } else if (budget < l.n_visible) {
            const Rank<uint32_t> rank = find_rank(shared.values, true, s.value, b.n_pages,
                                                  static_cast<uint32_t>(budget - l.n_pinned), [](int) { return 1u; });
            threshold = rank.value;
            excess = static_cast<int>(rank.there - rank.wanted);
        }
    }
    if (b.coverage > 0.0f && l.estimated()) {
        const float reached = l.coverage_threshold();
        if (reached > threshold) {
            threshold = reached;
            excess = 0;
        }
    }

    int32_t * const pages = b.pages + list * static_cast<int64_t>(b.list_stride);
    float * const covered = b.covered + list * b.group;
    float coverage = 0.0f;
    bool fell_back = false;
    int n_taken = 0;
    while (true) {
        n_taken = compact(s.value, b.n_pages, threshold, excess, pages, shared.ints, shared.ints + kMaxWarps);
        const float mean = l.cover(threshold, pages, n_taken, covered);
        coverage = fell_back ? coverage : mean;
        if (fell_back || !(mean < b.floor)) {
            break;
        }
        fell_back = true;
        threshold = kNotTaken;
        excess = 0;
        __syncthreads();  // the list is read no more
    }

    if (b.mass_max != nullptr && l.estimated() && b.n_tokens == 1) {
        for (int page = threadIdx.x; page < b.n_pages; page += blockDim.x) {
            b.mass_max[at + page] += missed(s, s.top, page, threshold);
            b.mass_sum[at + page] += missed(s, s.sum, page, threshold);
        }
    }
    if (threadIdx.x == 0) {
        b.n_pages_taken[list] = n_taken;
        *s.outcome = {threshold, coverage, l.n_visible, fell_back ? 1 : 0};
        if (b.totals != nullptr && b.n_tokens * b.n_streams == 1) {
            SelectTotals & t = b.totals[head];
            t = {t.n_steps + 1, t.n_visible + l.n_visible, t.coverage + coverage, t.n_fallbacks + (fell_back ? 1 : 0)};
        }
    }
}

// What several lists of a head add to the same numbers, in the order of the tokens. Grid: pages, heads, streams.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const SelectBatch b) {
    const int head = blockIdx.y, stream = blockIdx.z;
    const int page = blockIdx.x * kFinishThreads + threadIdx.x;
    if (b.mass_max != nullptr && b.estimates != nullptr && b.n_tokens > 1 && page < b.n_pages) {
        const int64_t at = pages_at(b, stream, head) + page;
        float top = b.mass_max[at], sum = b.mass_sum[at];
        for (int token = 0; token < b.n_tokens; ++token) {
            const Scratch s = scratch_of(b, list_of(b, stream, token, head));
            top += missed(s, s.top, page, s.outcome->threshold);
            sum += missed(s, s.sum, page, s.outcome->threshold);
        }
        b.mass_max[at] = top;
        b.mass_sum[at] = sum;
    }
    if (b.totals != nullptr && blockIdx.x == 0 && stream == 0 && threadIdx.x == 0) {
        SelectTotals t = b.totals[head];
        for (int i = 0; i < b.n_streams * b.n_tokens; ++i) {
            const Outcome o = *scratch_of(b, static_cast<int64_t>(i) * b.n_head_kv + head).outcome;
            t = {t.n_steps + 1, t.n_visible + o.n_visible, t.coverage + o.coverage, t.n_fallbacks + o.fell_back};
        }
        b.totals[head] = t;
    }
}

__global__ void __launch_bounds__(kMaxThreads) list_visible_kernel(const VisibleBatch b) {
    __shared__ int counts[2 * kMaxWarps];
    const int64_t query = static_cast<int64_t>(blockIdx.z) * b.n_tokens + blockIdx.y, list = query * b.n_head_kv + blockIdx.x;
    // without an excess nothing is written to the values
    float * const standing = const_cast<float *>(b.standing) + query * b.standing_stride;
    const int n = compact(standing, b.n_pages, 0.0f, 0, b.pages + list * b.list_stride, counts, counts + kMaxWarps);
    if (threadIdx.x == 0) {
        b.n_pages_taken[list] = n;
    }
}

unsigned threads_for(int n_pages) {
    const int n = (n_pages + kWarp - 1) / kWarp * kWarp;
    return static_cast<unsigned>(n < kMinThreads ? kMinThreads : n > kMaxThreads ? kMaxThreads : n);
}

}  // namespace

size_t select_device_scratch_bytes(int n_lists, int n_pages, int group) {
    return static_cast<size_t>(n_lists) * list_floats(n_pages, group) * sizeof(float);
}

void launch_select(const SelectBatch & b, const StepState * state, Stream stream) {
    const unsigned heads = static_cast<unsigned>(b.n_head_kv), tokens = static_cast<unsigned>(b.n_tokens),
                   streams = static_cast<unsigned>(b.n_streams);
    launch(select_kernel, {heads, tokens, streams}, threads_for(b.n_pages), 0, stream, b, state);
    if (tokens * streams > 1 && (b.totals != nullptr || b.mass_max != nullptr)) {
        const bool feeds = b.mass_max != nullptr && tokens > 1;
        const unsigned blocks = feeds ? static_cast<unsigned>((b.n_pages + kFinishThreads - 1) / kFinishThreads) : 1;
        launch(finish_kernel, {blocks, heads, streams}, kFinishThreads, 0, stream, b);
    }
}

void launch_list_visible(const VisibleBatch & b, Stream stream) {
    const Grid grid = {static_cast<unsigned>(b.n_head_kv), static_cast<unsigned>(b.n_tokens), static_cast<unsigned>(b.n_streams)};
    launch(list_visible_kernel, grid, threads_for(b.n_pages), 0, stream, b);
}

}  // namespace edgekv::gpu
