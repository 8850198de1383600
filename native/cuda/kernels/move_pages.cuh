// Moves pages from home into slots. Device code alone: it needs nothing but a CUDA compiler, so that NVRTC compiles this very
// file too. Two structs of edgekv.h stand here once more, under names of their own (move_device.cu checks that they agree).
#pragma once

struct EdgekvDeviceRow {  // edgekv_device_row
    unsigned long long k, v;
    unsigned long long k_stride_stream, k_stride_cell, k_stride_head;
    unsigned long long v_stride_stream, v_stride_cell, v_stride_head;
    unsigned long long k_row_bytes, v_row_bytes;
    unsigned long long v_offset;
    unsigned long long n_heads;
};

struct EdgekvDeviceMove {  // edgekv_move
    int row, head, page, slot;
};

namespace move_pages {

// Rows of `row_bytes` at a stride, to rows without gaps, by one warp in words of T. Host memory answers late: each thread has
// kInFlight loads under way before it stores.
template <class T>
__device__ inline void copy_words(char * dst, const char * src, unsigned long long stride, unsigned row_bytes, unsigned n_rows,
                                  unsigned lane) {
    constexpr unsigned kInFlight = 8, kLanes = 32;
    const unsigned per_row = row_bytes / (unsigned) sizeof(T);
    const unsigned n = per_row * n_rows;
    T * const to = reinterpret_cast<T *>(dst);
    for (unsigned first = lane; first < n; first += kLanes * kInFlight) {
        T word[kInFlight];
#pragma unroll
        for (unsigned i = 0; i < kInFlight; ++i) {
            const unsigned at = first + i * kLanes;
            if (at < n) {
                const unsigned row = at / per_row;
                word[i] = reinterpret_cast<const T *>(src + row * stride)[at - row * per_row];
            }
        }
#pragma unroll
        for (unsigned i = 0; i < kInFlight; ++i) {
            const unsigned at = first + i * kLanes;
            if (at < n) {
                to[at] = word[i];
            }
        }
    }
}

// In the widest words that both sides and the stride are aligned to; row_bytes is a multiple of 2.
__device__ inline void copy_rows(char * dst, const char * src, unsigned long long stride, unsigned row_bytes, unsigned n_rows,
                                 unsigned lane) {
    const unsigned long long all = (unsigned long long) dst | (unsigned long long) src | stride | row_bytes;
    if (all % 16 == 0) {
        copy_words<uint4>(dst, src, stride, row_bytes, n_rows, lane);
    } else if (all % 8 == 0) {
        copy_words<uint2>(dst, src, stride, row_bytes, n_rows, lane);
    } else if (all % 4 == 0) {
        copy_words<unsigned>(dst, src, stride, row_bytes, n_rows, lane);
    } else {
        copy_words<unsigned short>(dst, src, stride, row_bytes, n_rows, lane);
    }
}

// One page of one head.
struct Page {
    int head;
    int stream;
    int index;  // in the stream
    int tokens;
    int n_cells;  // of the stream: rows of a last page behind them do not exist
};

// Copies K or V of a page. The slot's bytes behind the page's last cell stay.
__device__ inline void copy_page(const EdgekvDeviceRow & row, bool value, const Page & page, char * slot, unsigned lane) {
    const int first = page.index * page.tokens;
    const int n_rows = page.n_cells - first < page.tokens ? page.n_cells - first : page.tokens;
    if (n_rows <= 0) {
        return;
    }
    const unsigned long long stride = value ? row.v_stride_cell : row.k_stride_cell;
    const unsigned long long from = value ? row.v + page.stream * row.v_stride_stream + page.head * row.v_stride_head
                                          : row.k + page.stream * row.k_stride_stream + page.head * row.k_stride_head;
    const unsigned row_bytes = (unsigned) (value ? row.v_row_bytes : row.k_row_bytes);
    copy_rows(value ? slot + row.v_offset : slot, reinterpret_cast<const char *>(from + first * stride), stride, row_bytes,
              (unsigned)n_rows, lane);
}

}  // namespace move_pages

// A warp for each move and each of K and V, in turn. moves[i].page counts through all streams; moves of a head that the row has
// not are left out. n_cells: of a stream. blockDim.x is a multiple of 32; any grid will do.
#if defined(__CUDACC_RTC__)
extern "C" __global__ void
#else
[[maybe_unused]] static __global__ void  // each file that includes this has its own
#endif
edgekv_gather_pages(const EdgekvDeviceRow * rows, const EdgekvDeviceMove * moves, int n_moves, char * arena,
                    unsigned long long slot_bytes, int page_tokens, int n_cells, int pages_per_stream) {
    const unsigned lane = threadIdx.x % 32;
    const long long n_warps = (long long) gridDim.x * (blockDim.x / 32);
    for (long long i = (long long) blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < 2ll * n_moves; i += n_warps) {
        const EdgekvDeviceMove move = moves[i / 2];
        const EdgekvDeviceRow & row = rows[move.row];
        if (move.head < (int) row.n_heads) {
            const move_pages::Page page = {move.head, move.page / pages_per_stream, move.page % pages_per_stream, page_tokens, n_cells};
            move_pages::copy_page(row, i % 2 != 0, page, arena + move.slot * slot_bytes, lane);
        }
    }
}
