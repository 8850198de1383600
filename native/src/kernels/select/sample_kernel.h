// Sampling over the Simd of the translation unit that includes this.
#pragma once

#include "kernels/decode/attend_softmax.h"
#include "kernels/select/sample_internal.h"

namespace edgekv {
namespace {

// The factor of a query head's shares of each group in p, in steps of 2^-20; 0 if the head sees nothing.
inline void make_factors(const SampleProblem & p, int head, float * factor) {
    const float * tops = p.tops + static_cast<size_t>(head) * p.group_stride;
    const float * sums = p.sums + static_cast<size_t>(head) * p.group_stride;
    const int padded = (p.n_groups + 15) / 16 * 16;
    for (int i = 0; i < padded; ++i) {
        factor[i] = i < p.n_groups ? tops[i] : -INFINITY;
    }
    F most = Simd::set1(p.sinks != nullptr ? p.sinks[head] : -INFINITY);
    for (int i = 0; i < padded; i += kLanes) {
        most = Simd::max(most, Simd::load(factor + i));
    }
    const float top = Simd::reduce_max(most);
    float total = p.sinks != nullptr ? expf(p.sinks[head] - top) : 0.0f;
    const F shift = Simd::set1(top == -INFINITY ? 0.0f : top);
    for (int i = 0; i < padded; i += kLanes) {
        Simd::store(factor + i, vector_exp(Simd::sub(Simd::load(factor + i), shift)));
    }
    for (int i = 0; i < p.n_groups; ++i) {
        total += factor[i] > 0.0f ? factor[i] * sums[i] : 0.0f;
    }
    const F scale = Simd::set1(total > 0.0f ? p.resolution / static_cast<float>(p.group) * (1 << kChanceBits) / total : 0.0f);
    for (int i = 0; i < padded; i += kLanes) {
        Simd::store(factor + i, Simd::mul(Simd::load(factor + i), scale));
    }
}

inline SampleResult sample(const SampleProblem & p) {
    constexpr int one = 1 << kChanceBits;
    constexpr unsigned all = (1u << (kLanes - 1) << 1) - 1;
    const int padded = (p.n_groups + 15) / 16 * 16;
    float * factors = reinterpret_cast<float *>(p.scratch);
    for (int g = 0; g < p.group; ++g) {
        make_factors(p, g, factors + static_cast<size_t>(g) * padded);
    }

    // Writes rows and, in place of the weights, their chances. There are never more rows than cells so far, so a whole vector always fits.
    int32_t * chances = reinterpret_cast<int32_t *>(p.weights);
    SampleResult result{};
    for (int group = 0; group < p.n_groups; ++group) {
        result.n_visible += __builtin_popcountll(p.sight[group].visible);
    }
    const I least = Simd::iset1(least_chance(p.resolution, result.n_visible, p.exact_tokens));
    F missed = Simd::zero();
    for (int group = 0; group < p.n_groups; ++group) {
        const uint64_t visible = p.sight[group].visible;
        if (visible == 0) {
            continue;
        }
        const uint64_t certain = visible & p.sight[group].certain;
        I unread = Simd::izero();  // the sum of the shares of the group's unread cells
        I sum = Simd::izero();     // the walk's
        for (int v = 0; v < kGroupCells / kLanes; ++v) {
            const int first = group * kGroupCells + v * kLanes;
            if (first % kWalkCells == 0) {
                if ((visible >> v * kLanes & ((1u << kWalkCells) - 1)) == 0) {
                    v += kWalkCells / kLanes - 1;
                    continue;
                }
                sum = Simd::iset1(walk_offset(p.turn, p.positions[first]));
            }
            F x = Simd::zero();
            for (int g = 0; g < p.group; ++g) {
                const F share = Simd::load_upper_halves(p.shares + static_cast<size_t>(g) * p.cell_stride + static_cast<size_t>(first));
                x = Simd::fma(share, Simd::set1(factors[static_cast<size_t>(g) * padded + group]), x);
            }
            I by_share = Simd::to_int(Simd::min(x, Simd::set1(static_cast<float>(one))));
            I chance = Simd::imax(by_share, least);
            if (const unsigned seen = lane_bits(visible, v); seen != all) {
                by_share = Simd::lanes_of(Simd::izero(), by_share, seen);
                chance = Simd::lanes_of(Simd::izero(), chance, seen);
            }
            if (const unsigned sure = lane_bits(certain, v); sure != 0) {
                chance = Simd::lanes_of(chance, Simd::iset1(one), sure);
            }
            const I upto = Simd::iadd(sum, Simd::iprefix(chance));
            const unsigned taken = Simd::lanes_differ(Simd::right<kChanceBits>(upto), Simd::right<kChanceBits>(Simd::idiff(upto, chance)));
            if constexpr (kLanes < kWalkCells) {
                sum = Simd::ilast(upto);
            }
            unread = Simd::iadd(unread, Simd::lanes_of(by_share, Simd::izero(), taken));
            Simd::append(chances + result.n_rows, chance, taken);
            result.n_rows += Simd::append(p.rows + result.n_rows, Simd::icount(first), taken);
        }
        missed = Simd::add(missed, Simd::to_float(unread));
    }
    for (int i = 0; i < result.n_rows; i += kLanes) {  // there is room for the rest of a vector after the last row
        const I chance = Simd::iload(chances + i);
        const int left = result.n_rows - i;
        const unsigned here = left < kLanes ? (1u << left) - 1 : all;
        result.n_certain += __builtin_popcount(~Simd::lanes_differ(chance, Simd::iset1(one)) & here);
        Simd::store(p.weights + i, Simd::div(Simd::set1(static_cast<float>(one)), Simd::to_float(chance)));
    }
    result.missed = static_cast<double>(Simd::sum(missed)) / one;
    return result;
}

}  // namespace
}  // namespace edgekv
