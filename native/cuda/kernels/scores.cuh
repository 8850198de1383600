// Scores of pages: their moving average, and the best and the worst of them. Device code alone, which Python launches (cuda/arrays.cu).
// Arrays are [head][page] with all rows' heads in one; the specification is moving_average.py, rank.py and ops.py of edgekv/arrays.
#pragma once

// scores = new * mass + old * scores on the pages before `end`, each product and the sum rounded (no fused multiply-add: the host
// has none), then 0 where the result is below `least`. Grid: x over pages, y over heads.
extern "C" __global__ void edgekv_ema(float * scores, const float * mass, int n_pages, int end, float weight_new,
                                      float weight_old, float least) {
    const int page = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    if (page < end) {
        const long long at = (long long) blockIdx.y * n_pages + page;
        const float score = __fadd_rn(__fmul_rn(weight_old, scores[at]), __fmul_rn(weight_new, mass[at]));
        scores[at] = score < least ? 0.0f : score;
    }
}

// scores = 0 on n pages of every head. Grid: x over pages[n], y over heads.
extern "C" __global__ void edgekv_clear(float * scores, const int * pages, int n, int n_pages) {
    const int i = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) {
        scores[(long long) blockIdx.y * n_pages + pages[i]] = 0.0f;
    }
}

// ---- the n best ----------------------------------------------------------------------------------------------------------------
//
// Every page that is asked about has a key of 64 bits, and no two the same: its value so that a larger key is a better page, and
// below it the page's number, so that of equal values the lower comes first. Eight passes find the n-th largest key, a byte each
// (the keys that begin like the n-th largest are counted by their next byte), and a last one writes down all that are not below it.
// The host knows nothing of it until it reads the list, whose order is that of the writing.

struct EdgekvQuestion {
    const float * values;         // [n_heads][n_pages]
    const unsigned char * state;  // [n_heads][end], or null: all pages
    const unsigned char * pins;   // [end] or [n_heads][pins_stride], not zero: left out; or null
    int pins_stride;              // 0: the same for all heads
    int among;                    // the state that is asked about
    int n_heads, n_pages, end;
    int n;
    int smallest;                 // 0: the largest above zero; 1: the smallest
};

// Between the passes; zeroed before the first.
struct EdgekvSearch {
    unsigned long long prefix[9];  // the first bytes of the n-th largest key, as known to each pass
    unsigned left[9];              // which of the keys that begin so it is
    unsigned count[8][256];        // keys that begin so, by the pass's byte
};

namespace edgekv_scores {

constexpr int kThreads = 256;

// Whether page i of [n_heads][end] is asked about, and its number in [n_heads][n_pages].
__device__ inline bool asked(const EdgekvQuestion & q, long long i, long long & at) {
    const unsigned head = (unsigned) i / (unsigned) q.end;  // there are fewer than 2^32
    const unsigned page = (unsigned) i - head * (unsigned) q.end;
    at = (long long) head * q.n_pages + page;
    return (q.state == nullptr || q.state[i] == q.among) &&
           (q.pins == nullptr || q.pins[(long long) head * q.pins_stride + page] == 0) && (q.smallest || q.values[at] > 0.0f);
}

__device__ inline unsigned long long key_of(const EdgekvQuestion & q, long long at) {
    const unsigned bits  = (unsigned) __float_as_int(q.values[at]);
    const unsigned order = bits >> 31 ? ~bits : bits | 0x80000000u;  // as the value, ascending
    return (unsigned long long) (q.smallest ? ~order : order) << 32 | (0xffffffffu - (unsigned) at);
}

// What the counts of the pass before say of the n-th largest key. All threads of the block; `prefix` and `left` are shared.
__device__ inline void narrow(const EdgekvQuestion & q, EdgekvSearch * search, int pass, unsigned * counts,
                              unsigned long long * prefix, unsigned * left) {
    if (pass > 0) {
        counts[threadIdx.x] = search->count[pass - 1][threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *prefix = 0;
        *left   = (unsigned) q.n;
        if (pass > 0) {
            *left = search->left[pass - 1];
            unsigned above = 0;
            int      byte  = 255;
            while (byte > 0 && above + counts[byte] < *left) {  // down to 0 where there are not so many: then all are listed
                above += counts[byte];
                --byte;
            }
            *prefix = search->prefix[pass - 1] << 8 | (unsigned) byte;
            *left -= above;
        }
        if (blockIdx.x == 0) {
            search->prefix[pass] = *prefix;
            search->left[pass]   = *left;
        }
    }
    __syncthreads();
}

}  // namespace edgekv_scores

// Pass 0..7. Blocks of 256 threads, any grid. The first pass also gives each block's number of pages asked about and the sum of
// their values: n_asked, sums [gridDim.x].
extern "C" __global__ void edgekv_search(const EdgekvQuestion * question, EdgekvSearch * search, int pass, unsigned * n_asked,
                                         double * sums) {
    using namespace edgekv_scores;
    const EdgekvQuestion q = *question;
    __shared__ unsigned           counts[kThreads];
    __shared__ double             partial[kThreads];
    __shared__ unsigned long long prefix;
    __shared__ unsigned           left;

    narrow(q, search, pass, counts, &prefix, &left);
    counts[threadIdx.x] = 0;
    __syncthreads();

    const int       shift = 8 * (7 - pass);
    const long long n_all = (long long) q.n_heads * q.end;
    double          sum   = 0.0;
    for (long long i = (long long) blockIdx.x * kThreads + threadIdx.x; i < n_all; i += (long long) gridDim.x * kThreads) {
        long long at;
        if (asked(q, i, at)) {
            const unsigned long long key = key_of(q, at);
            if (pass == 0 || key >> (shift + 8) == prefix) {
                atomicAdd(&counts[key >> shift & 255], 1u);
            }
            if (pass == 0) {
                sum += q.values[at];
            }
        }
    }
    __syncthreads();
    if (counts[threadIdx.x] != 0) {
        atomicAdd(&search->count[pass][threadIdx.x], counts[threadIdx.x]);
    }
    if (pass == 0) {
        partial[threadIdx.x] = sum;
        for (int half = kThreads / 2; half > 0; half /= 2) {
            __syncthreads();
            if ((int) threadIdx.x < half) {
                partial[threadIdx.x] += partial[threadIdx.x + half];
                counts[threadIdx.x] += counts[threadIdx.x + half];
            }
        }
        if (threadIdx.x == 0) {
            sums[blockIdx.x]    = partial[0];
            n_asked[blockIdx.x] = counts[0];
        }
    }
}

// Pass 8: the list, ids and values [n], and how many there are; n_listed begins at zero.
extern "C" __global__ void edgekv_list(const EdgekvQuestion * question, EdgekvSearch * search, unsigned * n_listed, unsigned * ids,
                                       float * values) {
    using namespace edgekv_scores;
    const EdgekvQuestion q = *question;
    __shared__ unsigned           counts[kThreads];
    __shared__ unsigned long long least;
    __shared__ unsigned           left;

    narrow(q, search, 8, counts, &least, &left);

    const long long n_all = (long long) q.n_heads * q.end;
    for (long long i = (long long) blockIdx.x * kThreads + threadIdx.x; i < n_all; i += (long long) gridDim.x * kThreads) {
        long long at;
        if (asked(q, i, at) && key_of(q, at) >= least) {
            const unsigned slot = atomicAdd(n_listed, 1u);
            if (slot < (unsigned) q.n) {
                ids[slot]    = (unsigned) at;
                values[slot] = q.values[at];
            }
        }
    }
}
