#include "cuda/kernels/choose_device.h"

namespace edgekv::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kBins = 256;
constexpr uint32_t kHidden = 0, kAlways = 0xffffffffu;  // keys of hidden pages, and of pages that are always read

// Sums over a block's threads, as often as needed.
struct Counts {
    unsigned pages, always, cells, certain_cells;
};

struct Shared {
    unsigned bins[kBins];
    Counts counts;
    unsigned warps[kWarps][2];
    unsigned found, above;
};

// Larger floats have larger keys; a NaN has the lowest float's key. No float's key equals kHidden or kAlways.
__device__ inline uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x == x ? x : -INFINITY);
    const uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return min(max(key, kHidden + 1), kAlways - 1);
}

// The bits of 16 neighbouring cells; a page has a multiple of 16.
__device__ inline unsigned sixteen(uint64_t bits, int cell) { return static_cast<unsigned>(bits >> cell % kGroupCells) & 0xffffu; }

// A block for each list; grid: heads, tokens, streams.
__global__ void __launch_bounds__(kThreads) choose_kernel(const ChooseBatch b, int n_pages, int n_keys) {
    EDGEKV_SHARED(Shared, s);
    const int head = blockIdx.x, stream = b.first_stream + static_cast<int>(blockIdx.z);
    const int64_t query = static_cast<int64_t>(blockIdx.z) * b.n_tokens + blockIdx.y, list = query * b.n_head_kv + head;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Sight * const sight = b.sight + query * static_cast<int64_t>(b.sight_stride);
    const int64_t first_page = head * static_cast<int64_t>(b.head_stride) + static_cast<int64_t>(stream) * b.pages_per_stream;
    uint32_t * const keys = b.keys + list * n_keys;
    int32_t * const rows = b.rows + list * static_cast<int64_t>(b.stride);

    if (threadIdx.x == 0) {
        s.counts = {0, 0, 0, 0};
    }
    __syncthreads();
    Counts mine = {0, 0, 0, 0};
    for (int page = threadIdx.x; page < n_pages; page += kThreads) {
        unsigned n_visible = 0;
        bool certain = false;
        for (int cell = page * b.page_tokens; cell < min((page + 1) * b.page_tokens, b.n_cells); cell += 16) {
            const Sight of = sight[cell / kGroupCells];
            n_visible += static_cast<unsigned>(__popc(sixteen(of.visible, cell)));
            certain = certain || sixteen(of.certain, cell) != 0;
        }
        const bool always = n_visible > 0 && certain;
        keys[page] = n_visible == 0 ? kHidden : always ? kAlways : key_of(b.priority[first_page + page]);
        mine = {mine.pages + (n_visible > 0 ? 1u : 0u), mine.always + (always ? 1u : 0u), mine.cells + n_visible,
                mine.certain_cells + (always ? n_visible : 0u)};
    }
    atomicAdd(&s.counts.pages, mine.pages);
    atomicAdd(&s.counts.always, mine.always);
    atomicAdd(&s.counts.cells, mine.cells);
    atomicAdd(&s.counts.certain_cells, mine.certain_cells);
    __syncthreads();

    const int n_visible = static_cast<int>(s.counts.pages), n_always = static_cast<int>(s.counts.always);
    const bool all = static_cast<int>(s.counts.cells) <= b.exact_tokens;
    const int wanted = all ? n_visible
                     : b.tokens > 0 ? (b.tokens + b.page_tokens - 1) / b.page_tokens
                                    : static_cast<int>(lroundf(__fmul_rn(b.share, static_cast<float>(n_visible))));
    unsigned left = static_cast<unsigned>(min(max(wanted, n_always), n_visible) - n_always);  // pages still to take, the best of the others

    // finds the last taken page's key, eight bits at a time from the top, then the number of pages with that key and how many to take
    uint32_t last = kAlways;
    unsigned ties = 0;
    for (int shift = 24; left > 0 && shift >= 0; shift -= 8) {
        s.bins[threadIdx.x] = 0;
        __syncthreads();
        for (int page = threadIdx.x; page < n_pages; page += kThreads) {
            const uint32_t key = keys[page];
            if (key != kHidden && key != kAlways && (shift == 24 || key >> (shift + 8) == last)) {
                atomicAdd(&s.bins[key >> shift & 0xffu], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned above = 0;
            int bin = kBins - 1;
            while (above + s.bins[bin] < left) {
                above += s.bins[bin--];
            }
            s.found = static_cast<unsigned>(bin);
            s.above = above;
        }
        __syncthreads();
        left -= s.above;
        ties = s.bins[s.found];
        last = (shift == 24 ? 0u : last << 8) | s.found;
        __syncthreads();  // all threads have read the bins before the next turn clears them
    }
    const unsigned skipped = ties - left;  // the oldest ties are skipped

    // each turn serves kThreads pages, one per thread: first the page's place among the ties, then its cells' place in the list
    unsigned n_ties = 0, n_rows = 0;
    for (int first = 0; first < n_pages; first += kThreads) {
        const int page = first + threadIdx.x;
        const uint32_t key = page < n_pages ? keys[page] : kHidden;
        const bool tied = key == last && key != kAlways;
        const unsigned before = (1u << lane) - 1u;
        const unsigned ballot = __ballot_sync(kAllLanes, tied);
        if (lane == 0) {
            s.warps[warp][0] = static_cast<unsigned>(__popc(ballot));
        }
        __syncthreads();
        unsigned tie = n_ties + static_cast<unsigned>(__popc(ballot & before));
        for (int w = 0; w < kWarps; ++w) {
            tie += w < warp ? s.warps[w][0] : 0u;
            n_ties += s.warps[w][0];
        }
        const bool taken = key == kAlways || (key != kHidden && (key > last || (tied && tie >= skipped)));

        unsigned n = 0;
        const int begin = page * b.page_tokens, end = min(begin + b.page_tokens, b.n_cells);
        for (int cell = begin; taken && cell < end; cell += 16) {
            n += static_cast<unsigned>(__popc(sixteen(sight[cell / kGroupCells].visible, cell)));
        }
        unsigned through = n;
        for (unsigned step = 1; step < kWarp; step *= 2) {
            const unsigned other = __shfl_up_sync(kAllLanes, through, step);
            through += lane >= static_cast<int>(step) ? other : 0u;
        }
        if (lane == kWarp - 1) {
            s.warps[warp][1] = through;
        }
        __syncthreads();
        unsigned at = n_rows + through - n;
        for (int w = 0; w < kWarps; ++w) {
            at += w < warp ? s.warps[w][1] : 0u;
            n_rows += s.warps[w][1];
        }
        for (int cell = begin; taken && cell < end; cell += 16) {
            for (unsigned bits = sixteen(sight[cell / kGroupCells].visible, cell); bits != 0; bits &= bits - 1) {
                rows[at++] = cell + __ffs(static_cast<int>(bits)) - 1;
            }
        }
        // no barrier: the next turn writes each of the two numbers behind one that all pass after they have read it
    }
    if (threadIdx.x == 0) {
        b.n_rows[list] = static_cast<int32_t>(n_rows);
        if (b.totals != nullptr) {
            atomicAdd(&b.totals[head].n_tokens, 1ull);
            atomicAdd(&b.totals[head].n_visible, static_cast<unsigned long long>(s.counts.cells));
            atomicAdd(&b.totals[head].n_certain, static_cast<unsigned long long>(s.counts.certain_cells));
        }
    }
}

}  // namespace

void launch_choose(const ChooseBatch & b, Stream stream) {
    const int n_pages = (b.n_cells + b.page_tokens - 1) / b.page_tokens;
    const Grid grid = {static_cast<unsigned>(b.n_head_kv), static_cast<unsigned>(b.n_tokens), static_cast<unsigned>(b.n_streams)};
    launch(choose_kernel, grid, kThreads, 0, stream, b, n_pages, choose_keys(n_pages));
}

}  // namespace edgekv::gpu
