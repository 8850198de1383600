// The scan of a group that has no sketch yet: over its keys.
#pragma once

#include "kernels/sketch/sketch_shares.h"

namespace edgekv {
namespace {

template <int D>
void scan_keys_of(const SketchKeys & keys, int head_dim, const SketchQuery & query, int head, int group, const Shares & out) {
    const int dim = dim_of<D>(head_dim);
    const char * first = keys.k + static_cast<size_t>(group) * kGroupCells * keys.stride_cell + static_cast<size_t>(head) * keys.stride_head;
    for (int token = 0; token < query.n_tokens; ++token) {
        const uint64_t visible = query.sight[static_cast<size_t>(token) * query.sight_stride + static_cast<size_t>(group)].visible;
        for (int g = 0; g < query.group; ++g) {
            const QueryShares shares = shares_of(out, token * query.group + g, group);
            if (visible == 0) {
                see_nothing(shares);
                continue;
            }
            const char * q = query_of(query, token, g);
            alignas(64) float key[most_dim<D>()], logits[kGroupCells] = {};
            for (uint64_t left = visible; left != 0; left &= left - 1) {
                const int cell = __builtin_ctzll(left);
                load_key<D>(keys.type, first + static_cast<size_t>(cell) * keys.stride_cell, dim, key);
                F dot = Simd::zero();
                for (int i = 0; i < dim; i += kLanes) {
                    dot = Simd::fma(Simd::load(key + i), load_floats<D>(q, i, dim), dot);
                }
                logits[cell] = Simd::sum(dot) * query.scale;
            }
            cap_and_share(logits, query.softcap, visible, shares);
        }
    }
}

inline void scan_keys(const SketchKeys & keys, int head_dim, const SketchQuery & query, int head, int group, const Shares & out) {
    for_head_dim(head_dim, [&](auto dim) { scan_keys_of<dim>(keys, head_dim, query, head, group, out); });
}

}  // namespace
}  // namespace edgekv
