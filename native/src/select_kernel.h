// Selection over the Simd of the translation unit that includes this.
#pragma once

#include <math.h>
#include <string.h>

#include "attend_softmax.h"
#include "select.h"

namespace edgekv {
namespace {

// Rows of scratch, each of `padded` floats; values behind the last page are -inf, so that nothing takes them.
struct SelectRows {
    int padded, padded_strips;
    float *value, *sum, *top, *strips, *rows;
    float * row(int g) const { return rows + static_cast<size_t>(g) * padded; }
};

inline SelectRows select_rows(const SelectProblem & p) {
    SelectRows r;
    r.padded = (p.n_pages + 15) / 16 * 16;
    r.padded_strips = (p.n_pages * p.per_page + 15) / 16 * 16;
    float * at = reinterpret_cast<float *>(p.scratch);
    r.value = at;
    r.sum = at + r.padded;
    r.top = r.sum + r.padded;
    r.rows = r.top + r.padded;
    r.strips = r.rows + static_cast<size_t>(p.group) * r.padded;
    return r;
}

// A row of `n` floats as vectors, with `fill` behind the end.
inline F load_part(const float * row, int i, int n, float fill) {
    if (i + kLanes <= n) {
        return Simd::load(row + i);
    }
    alignas(64) float tail[kLanes];
    for (int j = 0; j < kLanes; ++j) {
        tail[j] = i + j < n ? row[i + j] : fill;
    }
    return Simd::load(tail);
}

// row(g)[page] = share of query head g's softmax on the page, by its estimates. Returns false if it sees nothing.
inline bool estimate_row(const SelectProblem & p, const SelectRows & r, int g) {
    const float * from = p.estimates + static_cast<size_t>(g) * p.stride;
    float * mass = r.row(g);
    F top = Simd::set1(-INFINITY);
    if (p.per_page == 1) {
        for (int i = 0; i < r.padded; i += kLanes) {
            const F x = Simd::add_bias(load_part(from, i, p.n_pages, -INFINITY), Simd::min(load_part(p.standing, i, p.n_pages, -INFINITY), Simd::zero()));
            Simd::store(mass + i, x);
            top = Simd::max(top, x);
        }
    } else {
        for (int s = 0; s < r.padded_strips; ++s) {
            r.strips[s] = s < p.n_pages * p.per_page && p.standing[s / p.per_page] >= 0.0f ? from[s] : -INFINITY;
        }
        for (int s = 0; s < r.padded_strips; s += kLanes) {
            top = Simd::max(top, Simd::load(r.strips + s));
        }
    }
    float max = Simd::reduce_max(top);
    if (max == -INFINITY) {
        memset(mass, 0, static_cast<size_t>(r.padded) * sizeof(float));
        return false;
    }
    if (p.sinks != nullptr && p.sinks[g] > max) {
        max = p.sinks[g];
    }
    const F shift = Simd::set1(max);
    F total = Simd::zero();
    float * const x = p.per_page == 1 ? mass : r.strips;
    for (int i = 0; i < (p.per_page == 1 ? r.padded : r.padded_strips); i += kLanes) {
        const F e = vector_exp(Simd::sub(Simd::load(x + i), shift));
        Simd::store(x + i, e);
        total = Simd::add(total, e);
    }
    if (p.per_page > 1) {
        for (int page = 0; page < r.padded; ++page) {
            mass[page] = 0.0f;
            for (int s = page * p.per_page; page < p.n_pages && s < (page + 1) * p.per_page; ++s) {
                mass[page] += r.strips[s];
            }
        }
    }
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, total);
    float sum = p.sinks != nullptr ? expf(p.sinks[g] - max) : 0.0f;
    for (int i = 0; i < kLanes; ++i) {
        sum += lanes[i];
    }
    const F inverse = Simd::set1(1.0f / sum);
    for (int i = 0; i < r.padded; i += kLanes) {
        Simd::store(mass + i, Simd::mul(Simd::load(mass + i), inverse));
    }
    return true;
}

// Sum and maximum over the query heads.
inline void estimate(const SelectProblem & p, const SelectRows & r) {
    if (p.estimates == nullptr) {
        for (int i = 0; i < r.padded; i += kLanes) {
            const F x = p.known != nullptr ? load_part(p.known, i, p.n_pages, 0.0f) : Simd::zero();
            Simd::store(r.sum + i, x);
            Simd::store(r.top + i, x);
        }
        return;
    }
    for (int g = 0; g < p.group; ++g) {
        estimate_row(p, r, g);
        for (int i = 0; i < r.padded; i += kLanes) {
            const F x = Simd::load(r.row(g) + i);
            Simd::store(r.sum + i, g == 0 ? x : Simd::add(Simd::load(r.sum + i), x));
            Simd::store(r.top + i, g == 0 ? x : Simd::max(Simd::load(r.top + i), x));
        }
    }
}

inline int count_from(const float * value, int n, float threshold) {
    int count = 0;
    for (int i = 0; i < n; i += kLanes) {
        count += __builtin_popcount(Simd::at_least(Simd::load(value + i), Simd::set1(threshold)));
    }
    return count;
}

inline float sum_from(const float * value, const float * what, int n, float threshold) {
    F sum = Simd::zero();
    for (int i = 0; i < n; i += kLanes) {
        sum = Simd::add(sum, Simd::zero_below(Simd::load(what + i), Simd::load(value + i), Simd::set1(threshold)));
    }
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, sum);
    float total = 0.0f;
    for (int i = 0; i < kLanes; ++i) {
        total += lanes[i];
    }
    return total;
}

// The largest float >= 0 for which `enough` holds, which holds for 0 and for everything below one that it holds for.
template <class Enough>
float largest_threshold(Enough enough) {
    uint32_t low = 0, high = 0x7f800000u;  // +inf: the pins
    while (low + 1 < high) {
        const uint32_t middle = low + (high - low) / 2;
        float x;
        memcpy(&x, &middle, sizeof(x));
        (enough(x) ? low : high) = middle;
    }
    float x;
    memcpy(&x, &low, sizeof(x));
    return x;
}

constexpr float kNotTaken = -1.0f;  // the value of a visible page that loses a tie

// Of the pages whose value is the threshold itself, the `excess` oldest are not taken.
inline void drop_ties(float * value, int n, float threshold, int excess) {
    for (int i = 0; excess > 0 && i < n; ++i) {
        if (value[i] == threshold) {
            value[i] = kNotTaken;
            excess -= 1;
        }
    }
}

inline void take_pinned(const SelectProblem & p, float * value) {
    for (int i = 0; p.pinned != nullptr && i < p.n_pages; i += 8) {
        uint64_t any = 0;
        memcpy(&any, p.pinned + i, static_cast<size_t>(p.n_pages - i < 8 ? p.n_pages - i : 8));
        for (int j = i; any != 0 && j < i + 8 && j < p.n_pages; ++j) {
            if (p.pinned[j] != 0 && value[j] >= 0.0f) {
                value[j] = INFINITY;
            }
        }
    }
}

// into[i ...] += what[i ...] for the lanes that were not taken
inline void add_missed(const float * value, float threshold, const float * what, int i, int n, float * into) {
    if (into == nullptr) {
        return;
    }
    if (i + kLanes <= n) {
        const F x = Simd::load(what + i);
        const F missed = Simd::sub(x, Simd::zero_below(x, Simd::load(value + i), Simd::set1(threshold)));
        Simd::store(into + i, Simd::add(Simd::load(into + i), missed));
        return;
    }
    for (; i < n; ++i) {  // what lies behind the last page belongs to others
        into[i] += value[i] >= threshold ? 0.0f : what[i];
    }
}

inline SelectResult select(const SelectProblem & p) {
    const SelectRows r = select_rows(p);
    SelectResult result{};
    estimate(p, r);
    if (p.mass != nullptr) {
        memcpy(p.mass, r.sum, static_cast<size_t>(p.n_pages) * sizeof(float));
    }

    // values: +inf what is always taken, -inf what cannot be seen
    const bool estimated = p.estimates != nullptr || p.known != nullptr;
    const F of_mass = Simd::set1(estimated ? 1.0f - p.blend : 0.0f), of_priority = Simd::set1(estimated ? p.blend : 1.0f);
    for (int i = 0; i < r.padded; i += kLanes) {
        const F prior = p.priority != nullptr ? load_part(p.priority, i, p.n_pages, 0.0f) : Simd::zero();
        const F x = Simd::fma(Simd::load(r.sum + i), of_mass, Simd::mul(prior, of_priority));
        Simd::store(r.value + i, Simd::add(Simd::max(x, Simd::zero()), load_part(p.standing, i, p.n_pages, -INFINITY)));
    }
    take_pinned(p, r.value);
    result.n_visible = count_from(r.value, r.padded, 0.0f);
    result.n_pinned = count_from(r.value, r.padded, INFINITY);
    for (int i = 0; p.buckets != nullptr && i < p.n_pages; ++i) {
        if (r.value[i] >= 0.0f && r.value[i] < INFINITY) {
            uint32_t bits;
            memcpy(&bits, r.value + i, sizeof(bits));
            p.buckets[bits >> 20] += 1;
        }
    }

    const int budget = p.n_budget > result.n_pinned ? p.n_budget : result.n_pinned;
    float threshold = p.threshold;
    if (threshold < 0.0f) {
        threshold = 0.0f;
        if (budget == result.n_pinned) {
            threshold = INFINITY;
        } else if (budget < result.n_visible) {
            threshold = largest_threshold([&](float x) { return count_from(r.value, r.padded, x) >= budget; });
            drop_ties(r.value, p.n_pages, threshold, count_from(r.value, r.padded, threshold) - budget);
        }
    }
    if (p.coverage > 0.0f && estimated) {
        const float wanted = p.coverage * sum_from(r.value, r.sum, r.padded, kNotTaken);
        const float reached = largest_threshold([&](float x) { return sum_from(r.value, r.sum, r.padded, x) >= wanted; });
        threshold = reached > threshold ? reached : threshold;
    }

    const auto cover = [&] {
        float sum = 0.0f;
        for (int g = 0; g < p.group; ++g) {
            const float * mass = p.estimates != nullptr ? r.row(g) : r.sum;
            const float all = estimated ? sum_from(r.value, mass, r.padded, kNotTaken) : 0.0f;
            p.covered[g] = all > 0.0f ? fminf(sum_from(r.value, mass, r.padded, threshold) / all, 1.0f) : 1.0f;
            sum += p.covered[g];
        }
        return sum / static_cast<float>(p.group);
    };
    result.coverage = cover();
    if (result.coverage < p.floor) {
        result.fell_back = true;
        threshold = kNotTaken;
        cover();
    }

    const bool feed = estimated && (p.mass_max != nullptr || p.mass_sum != nullptr);
    for (int i = 0; i < r.padded; i += kLanes) {
        const unsigned taken = Simd::at_least(Simd::load(r.value + i), Simd::set1(threshold));
        for (unsigned bits = taken; bits != 0; bits &= bits - 1) {
            p.pages[result.n_taken++] = i + __builtin_ctz(bits);
        }
        if (feed) {
            add_missed(r.value, threshold, r.top, i, p.n_pages, p.mass_max);
            add_missed(r.value, threshold, r.sum, i, p.n_pages, p.mass_sum);
        }
    }
    return result;
}

}  // namespace
}  // namespace edgekv
