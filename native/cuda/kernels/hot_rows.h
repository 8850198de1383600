// Copies in the device's memory of the rows that were read most lately: as cache/row_cache.h, in sets of which any block takes a place. Arguments.
#pragma once

#include "cuda/kernels/places.h"
#include "kernels/device_sizes.h"

namespace edgekv::gpu {

// Bit of a row's slot in a list: this launch has brought the row. Slots are below it.
constexpr int32_t kBrought = kMostHotRowSets * kHotRowWays;

struct HotRows {
    unsigned long long * entries;  // [n_sets][kHotRowWays], zeros at first; null: there are none
    uint32_t n_sets;
    char * data;                   // slot s: a row of K at data + s * stride, its V at v_offset from there; all multiples of 16
    size_t stride, v_offset;
    uint64_t first;                // the number of the layer's first row: rows are [layer][head][stream][cell]
    int n_streams, n_cells;        // of the cache

    EDGEKV_HOST_AND_DEVICE uint64_t row(int head, int64_t stream, int64_t cell) const {
        return first + (static_cast<uint64_t>(head) * n_streams + stream) * n_cells + cell;
    }
};

// Rows of K or V at home.
struct HomeRows {
    CellRows of;  // of the cache's first stream
    size_t stride_stream;
    int row_bytes;
};

// What a launch needs in order to keep copies of the rows that it lists. Rows in the arena need none, and those of open groups may change.
struct KeptRows {
    HotRows hot;
    HomeRows k, v;
    PageSlots arena;
    const int32_t * open;   // [stream of the cache][n_groups], not 0: open
    int n_groups;           // of a stream
    int32_t * slots;        // out, as the lists' rows: the slot, with kBrought where this launch wrote it; -1: there is no copy
};

}  // namespace edgekv::gpu
