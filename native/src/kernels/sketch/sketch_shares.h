// The results of a scan for a group: its cells' shares, which are exponentials relative to its largest logit.
#pragma once

#include "kernels/sketch/sketch_build.h"

namespace edgekv {
namespace {

// The place of a scan's results for one query and group.
struct QueryShares {
    uint16_t * cells;
    float *top, *sum;
};

inline QueryShares shares_of(const Shares & out, int query, int group) {
    return {out.cells + static_cast<size_t>(query) * out.cell_stride + static_cast<size_t>(group) * kGroupCells,
            out.tops + static_cast<size_t>(query) * out.group_stride + group, out.sums + static_cast<size_t>(query) * out.group_stride + group};
}

// The float 2^(x / 2^23), nearly, for x + 127 * 2^23 in `bits`: 0 from 2^-127 down.
inline I crude_exp2(F bits) { return Simd::to_int(Simd::max(bits, Simd::zero())); }

// Shares of a group from its logits, which are -inf for cells that are not visible.
inline void share_logits(const float * logits, const QueryShares & out) {
    F top = Simd::set1(-INFINITY);
    for (int c = 0; c < kGroupCells; c += kLanes) {
        top = Simd::max(top, Simd::load(logits + c));
    }
    *out.top = Simd::reduce_max(top);
    const F most = Simd::set1(*out.top), rate = Simd::set1(1.44269504f * 0x1p23f);
    F sum = Simd::zero();
    for (int c = 0; c < kGroupCells; c += 2 * kLanes) {
        I e[2];
        for (int i = 0; i < 2; ++i) {
            const F below = Simd::max(Simd::sub(Simd::load(logits + c + i * kLanes), most), Simd::set1(-1000.0f));
            e[i] = crude_exp2(Simd::fma(below, rate, Simd::set1(127.0f * 0x1p23f)));
            sum = Simd::add(sum, Simd::as_float(e[i]));
        }
        Simd::store_upper_halves(out.cells + c, e[0], e[1]);
    }
    *out.sum = Simd::sum(sum);
}

inline void cap_and_share(float * logits, float softcap, uint64_t visible, const QueryShares & out) {
    for (int c = 0; c < kGroupCells; c += kLanes) {
        const F x = softcap != 0.0f ? vector_softcap(Simd::load(logits + c), softcap) : Simd::load(logits + c);
        Simd::store(logits + c, x);
    }
    for (int c = 0; c < kGroupCells; ++c) {
        logits[c] = visible >> c & 1 ? logits[c] : -INFINITY;
    }
    share_logits(logits, out);
}

inline void see_nothing(const QueryShares & out) {
    *out.top = -INFINITY;
    *out.sum = 0.0f;
}

}  // namespace
}  // namespace edgekv
