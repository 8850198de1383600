// Estimates the strips of a head for its query group: chooses the scan for the kind, head_dim and number of rows.
#pragma once

#include "sketch_codes.h"

namespace edgekv {
namespace {

template <int D, int NR>
void scan_kind(SketchKind kind, const Scan & scan, const char * block, int block_bytes, int n_blocks) {
    switch (kind) {
        case SketchKind::none: return;
        case SketchKind::box: return BoxScan<D, NR>(scan).run(block, block_bytes, n_blocks);
        case SketchKind::b1: return CodeScan<D, 1, NR>(scan).run(block, block_bytes, n_blocks);
        case SketchKind::b2: return CodeScan<D, 2, NR>(scan).run(block, block_bytes, n_blocks);
    }
}

template <int D>
void scan_head(SketchKind kind, const Scan & whole, int group, const char * block, int block_bytes, int n_blocks) {
    constexpr auto rows = [](int n) { return n < Simd::kRows ? n : Simd::kRows; };
    constexpr void (*by_rows[])(SketchKind, const Scan &, const char *, int, int) = {
        scan_kind<D, rows(1)>, scan_kind<D, rows(2)>, scan_kind<D, rows(3)>, scan_kind<D, rows(4)>};
    const int n_parts = (group + Simd::kRows - 1) / Simd::kRows;
    for (int part = 0, done = 0; part < n_parts; ++part) {
        const int count = (group - done + n_parts - part - 1) / (n_parts - part);  // as even as it gets
        Scan scan = whole;
        scan.rows += static_cast<size_t>(done) * scan.row_bytes;
        scan.estimates += static_cast<size_t>(done) * scan.stride;
        by_rows[count - 1](kind, scan, block, block_bytes, n_blocks);
        done += count;
    }
}

inline void scan(const Sketch & sketch, const SketchLayout & layout, const SketchQuery & query, const char * prepared, int head,
                 int first_block, int n_blocks, float * estimates, size_t stride) {
    const Scan whole{prepared, row_bytes(sketch.head_dim), query.softcap, estimates, stride};
    const char * block =
        sketch.data + (static_cast<size_t>(head) * layout.n_blocks + first_block) * static_cast<size_t>(layout.block_bytes);
    switch (sketch.head_dim) {
        case 64: return scan_head<64>(sketch.kind, whole, query.group, block, layout.block_bytes, n_blocks);
        case 80: return scan_head<80>(sketch.kind, whole, query.group, block, layout.block_bytes, n_blocks);
        case 96: return scan_head<96>(sketch.kind, whole, query.group, block, layout.block_bytes, n_blocks);
        case 128: return scan_head<128>(sketch.kind, whole, query.group, block, layout.block_bytes, n_blocks);
        case 256: return scan_head<256>(sketch.kind, whole, query.group, block, layout.block_bytes, n_blocks);
    }
}

}  // namespace
}  // namespace edgekv
