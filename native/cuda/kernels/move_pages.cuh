// Moves pages from home into slots. This file is device code alone and includes nothing: Python launches its kernel too (cuda/arrays.cu).
// It repeats two structs of edgekv.h under other names; move_device.cu checks that they agree.
#pragma once

struct EdgekvDeviceLayer {  // edgekv_device_layer
    unsigned long long k, v;
    unsigned long long k_stride_stream, k_stride_cell, k_stride_head;
    unsigned long long v_stride_stream, v_stride_cell, v_stride_head;
    unsigned long long k_row_bytes, v_row_bytes;
    unsigned long long v_offset;
    unsigned long long n_heads;
};

struct EdgekvDeviceMove {  // edgekv_move
    int layer, head, page, slot;
};

namespace move_pages {

// Rows at a stride.
struct Rows {
    char * data;
    unsigned long long stride;
};

// One warp copies in words of T, and also to `second` if given. Host memory answers late, so each thread has kInFlight loads under
// way before it stores.
template <class T>
__device__ inline void copy_words(const Rows & to, const Rows & second, const Rows & from, unsigned row_bytes, unsigned n_rows,
                                  unsigned lane) {
    constexpr unsigned kInFlight = 8, kLanes = 32;
    const unsigned per_row = row_bytes / static_cast<unsigned>(sizeof(T)), n = per_row * n_rows;
    const auto at = [](const Rows & rows, unsigned row, unsigned i) { return reinterpret_cast<T *>(rows.data + row * rows.stride) + i; };
    for (unsigned first = lane; first < n; first += kLanes * kInFlight) {
        T word[kInFlight];
#pragma unroll
        for (unsigned i = 0; i < kInFlight; ++i) {
            const unsigned w = first + i * kLanes;
            if (w < n) {
                word[i] = *at(from, w / per_row, w % per_row);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < kInFlight; ++i) {
            const unsigned w = first + i * kLanes;
            if (w < n) {
                *at(to, w / per_row, w % per_row) = word[i];
                if (second.data != nullptr) {
                    *at(second, w / per_row, w % per_row) = word[i];
                }
            }
        }
    }
}

// Copies in the widest words that all places are aligned to; row_bytes is a multiple of 2.
__device__ inline void copy_rows(const Rows & to, const Rows & second, const Rows & from, unsigned row_bytes, unsigned n_rows,
                                 unsigned lane) {
    const unsigned long long all = reinterpret_cast<unsigned long long>(to.data) | reinterpret_cast<unsigned long long>(second.data) |
                                   reinterpret_cast<unsigned long long>(from.data) | to.stride | second.stride | from.stride | row_bytes;
    if (all % 16 == 0) {
        copy_words<uint4>(to, second, from, row_bytes, n_rows, lane);
    } else if (all % 8 == 0) {
        copy_words<uint2>(to, second, from, row_bytes, n_rows, lane);
    } else if (all % 4 == 0) {
        copy_words<unsigned>(to, second, from, row_bytes, n_rows, lane);
    } else {
        copy_words<unsigned short>(to, second, from, row_bytes, n_rows, lane);
    }
}

// One page of one head.
struct Page {
    int head;
    int stream;
    int index;  // in the stream
    int tokens;
    int n_cells;  // of the stream: the last page has no rows past them
};

// Copies K or V of a page. The slot's bytes past the page's last cell stay as they are.
__device__ inline void copy_page(const EdgekvDeviceLayer & layer, bool value, const Page & page, char * slot, unsigned lane) {
    const int first = page.index * page.tokens;
    const int n_rows = page.n_cells - first < page.tokens ? page.n_cells - first : page.tokens;
    if (n_rows <= 0) {
        return;
    }
    const unsigned long long stride = value ? layer.v_stride_cell : layer.k_stride_cell;
    const unsigned long long from = value ? layer.v + page.stream * layer.v_stride_stream + page.head * layer.v_stride_head
                                          : layer.k + page.stream * layer.k_stride_stream + page.head * layer.k_stride_head;
    const unsigned row_bytes = static_cast<unsigned>(value ? layer.v_row_bytes : layer.k_row_bytes);
    copy_rows({value ? slot + layer.v_offset : slot, row_bytes}, {nullptr, 0}, {reinterpret_cast<char *>(from + first * stride), stride},
              row_bytes, static_cast<unsigned>(n_rows), lane);
}

}  // namespace move_pages

// One warp copies K or V of one move at a time. moves[i].page counts through all streams. Moves of a head that the layer lacks
// are skipped. n_cells: of a stream. blockDim.x must be a multiple of 32; any grid works.
#if defined(EDGEKV_ARRAYS)  // the one that Python finds by its name
extern "C" __global__ void
#else
[[maybe_unused]] static __global__ void  // each file that includes this has its own
#endif
edgekv_gather_pages(const EdgekvDeviceLayer * layers, const EdgekvDeviceMove * moves, int n_moves, char * arena,
                    unsigned long long slot_bytes, int page_tokens, int n_cells, int pages_per_stream) {
    const unsigned lane = threadIdx.x % 32;
    const long long n_warps = static_cast<long long>(gridDim.x) * (blockDim.x / 32);
    for (long long i = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; i < 2ll * n_moves; i += n_warps) {
        const EdgekvDeviceMove move = moves[i / 2];
        const EdgekvDeviceLayer & layer = layers[move.layer];
        if (move.head < static_cast<int>(layer.n_heads)) {
            const move_pages::Page page = {move.head, move.page / pages_per_stream, move.page % pages_per_stream, page_tokens, n_cells};
            move_pages::copy_page(layer, i % 2 != 0, page, arena + move.slot * slot_bytes, lane);
        }
    }
}
