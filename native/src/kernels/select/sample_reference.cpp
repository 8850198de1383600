// The specification of sampling, in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/select/sample.h"

namespace edgekv {
namespace {

double share_of(uint16_t upper_half) {
    const uint32_t bits = static_cast<uint32_t>(upper_half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

}  // namespace

SampleResult sample_reference(const SampleProblem & p, int32_t * chances, int32_t * by_share) {
    // the factor of a query head's exponentials of a group in p
    std::vector<double> factor(static_cast<size_t>(p.group) * static_cast<size_t>(p.n_groups));
    for (int g = 0; g < p.group; ++g) {
        const float * tops = p.tops + static_cast<size_t>(g) * p.group_stride;
        const float * sums = p.sums + static_cast<size_t>(g) * p.group_stride;
        double most = p.sinks != nullptr ? p.sinks[g] : -INFINITY;
        for (int i = 0; i < p.n_groups; ++i) {
            most = std::max<double>(most, tops[i]);
        }
        double total = p.sinks != nullptr ? std::exp(p.sinks[g] - most) : 0.0;
        for (int i = 0; i < p.n_groups; ++i) {
            total += tops[i] == -INFINITY ? 0.0 : sums[i] * std::exp(tops[i] - most);
        }
        for (int i = 0; i < p.n_groups; ++i) {
            factor[static_cast<size_t>(g * p.n_groups + i)] =
                tops[i] == -INFINITY ? 0.0 : p.resolution / p.group * std::exp(tops[i] - most) / total;
        }
    }

    constexpr int64_t one = int64_t{1} << kChanceBits;
    SampleResult result{};
    for (int i = 0; i < p.n_groups; ++i) {
        result.n_visible += __builtin_popcountll(p.sight[i].visible);
    }
    const int64_t least = least_chance(p.resolution, result.n_visible, p.exact_tokens);
    int64_t sum = 0;
    for (int cell = 0; cell < kGroupCells * p.n_groups; ++cell) {
        const Sight & sight = p.sight[cell / kGroupCells];
        int64_t chance = 0, of_share = 0;
        if (cell % kWalkCells == 0) {
            const bool seen = (sight.visible >> cell % kGroupCells & ((1u << kWalkCells) - 1)) != 0;
            sum = seen ? walk_offset(p.turn, p.positions[cell]) : 0;
        }
        if (sight.visible >> cell % kGroupCells & 1) {
            double x = 0.0;
            for (int g = 0; g < p.group; ++g) {
                const double f = factor[static_cast<size_t>(g * p.n_groups + cell / kGroupCells)];
                x += f == 0.0 ? 0.0 : f * share_of(p.shares[static_cast<size_t>(g) * p.cell_stride + static_cast<size_t>(cell)]);
            }
            const bool certain = sight.certain >> cell % kGroupCells & 1;
            of_share = certain ? one : static_cast<int64_t>(std::rint(std::min(x, 1.0) * one));
            chance = std::max(of_share, least);
        }
        if (chances != nullptr) {
            chances[cell] = static_cast<int32_t>(chance);
        }
        if (by_share != nullptr) {
            by_share[cell] = static_cast<int32_t>(of_share);
        }
        if ((sum + chance) / one != sum / one) {
            p.rows[result.n_rows] = cell;
            p.weights[result.n_rows] = static_cast<float>(static_cast<double>(one) / static_cast<double>(chance));
            result.n_rows += 1;
            result.n_certain += chance == one ? 1 : 0;
        } else {
            result.missed += static_cast<double>(of_share) / one;
        }
        sum += chance;
    }
    return result;
}

}  // namespace edgekv
