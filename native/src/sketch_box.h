// The scan of boxes, and what it shares with the scan of codes.
#pragma once

#include "sketch_query.h"

namespace edgekv {
namespace {

// What one scan of some rows needs to know; the rows are consecutive in the prepared query.
struct Scan {
    const char * rows;
    size_t row_bytes;
    float softcap;
    float * estimates;  // of the first row and strip
    size_t stride;
};

// Fetches a part of the next block while this one is worked on.
struct NextBlock {
    const char * next;
    int bytes;
    void fetch() {
        for (int i = 0; i < bytes; i += 64) {
            Simd::prefetch(next + i);
        }
        next += bytes;
    }
};

// The bound of a box: each channel of the query meets the end that makes more of it.
template <int D, int NR>
struct BoxScan {
    const Scan & scan;
    const char * q[NR];
    SketchRow header[NR];

    explicit BoxScan(const Scan & s) : scan(s) {
        for (int r = 0; r < NR; ++r) {
            const char * row = scan.rows + static_cast<size_t>(r) * scan.row_bytes;
            header[r] = row_header(row);
            q[r] = row + kRowQ;
        }
    }

    void run(const char * block, size_t strip, NextBlock & ahead) {
        const char * params = block + 2 * kVectorBytes;
        Simd::Products products[NR];
        EDGEKV_UNROLL
        for (int r = 0; r < NR; ++r) {
            products[r] = {Simd::izero(), Simd::izero()};
        }
        for (int i = 0; i < D / 4; ++i) {
            if (i % (D / 16) == 0) {
                ahead.fetch();
            }
            const I least = Simd::iload(params + 2 * i * kVectorBytes);
            const I most = Simd::iload(params + (2 * i + 1) * kVectorBytes);
            EDGEKV_UNROLL
            for (int r = 0; r < NR; ++r) {
                const I k = Simd::select(Simd::idup4(q[r] + 2 * D + 4 * i), most, least);
                Simd::add_products(products[r], k, Simd::idup8(q[r] + 8 * i));
            }
        }
        const F scale = Simd::load(block);
        const F reach = Simd::load(block + kVectorBytes);
        for (int r = 0; r < NR; ++r) {
            const F sum = Simd::to_float(Simd::isub(Simd::join_products(products[r]), header[r].excess));
            F x = Simd::mul(sum, Simd::mul(scale, Simd::set1(header[r].fine)));
            x = Simd::fma(reach, Simd::set1(header[r].slack), x);
            if (scan.softcap != 0.0f) {
                x = Simd::add(vector_softcap(x, scan.softcap), Simd::set1(scan.softcap * 0x1p-18f));
            }
            Simd::store(scan.estimates + static_cast<size_t>(r) * scan.stride + strip,
                        Simd::where_positive(scale, x, Simd::set1(-INFINITY)));
        }
    }

    void run(const char * block, int block_bytes, int n_blocks) {
        constexpr int passes = kSketchBlockStrips / kLanes;
        for (int b = 0; b < n_blocks; ++b, block += block_bytes) {
            // up to 3 lines too many a block, which are those of the block after it
            NextBlock ahead{block + block_bytes, (block_bytes / 64 + 4 * passes - 1) / (4 * passes) * 64};
            for (int pass = 0; pass < passes; ++pass) {
                run(block + pass * kLanes * 4, static_cast<size_t>(b) * kSketchBlockStrips + pass * kLanes, ahead);
            }
        }
    }
};

}  // namespace
}  // namespace edgekv
