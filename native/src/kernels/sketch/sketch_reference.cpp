// The specification of the sketches' logits, in double precision and from the keys themselves.
//
// A kernel's key differs from it by what its bytes round. Per channel, with s the exact step (a seventh of the range), S the step scale (the
// group's largest step / 255) and L the low scale (largest |low| / 127): both are within half a step of the key where the range is not
// left, which rounding low and step moves by at most L / 2 + 7 * S / 2, so they differ by at most s + 7 * S / 2 + L. Query times step is
// rounded to i8, which adds at most 0.504 * fine * 2^15 * S per channel and code, where fine = the query's largest channel / 16256;
// times low the query is rounded to coarse = its largest channel / 127. For the sums see tests/host/test_sketch.cpp, which checks them.
#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "kernels/sketch/sketch.h"

namespace edgekv {
namespace {

double cap(double x, double softcap) { return softcap != 0.0 ? softcap * std::tanh(x / softcap) : x; }

}  // namespace

SketchReference::SketchReference(const SketchKeys & keys, int head_dim, int head, int group, uint64_t valid)
    : head_dim(head_dim), rounded(static_cast<size_t>(kGroupCells) * head_dim) {
    for (int i = 0; i < head_dim; ++i) {
        double exact[kGroupCells], least = INFINITY, most = -INFINITY;
        for (int c = 0; c < kGroupCells; ++c) {
            const size_t at = static_cast<size_t>(group) * kGroupCells + static_cast<size_t>(c);
            exact[c] = channel(keys.type, keys.k + at * keys.stride_cell + static_cast<size_t>(head) * keys.stride_head, i);
            if (valid >> c & 1) {
                least = std::min(least, exact[c]);
                most = std::max(most, exact[c]);
            }
        }
        const double step = (most - least) / 7.0;
        for (int c = 0; c < kGroupCells; ++c) {
            rounded[static_cast<size_t>(c) * head_dim + i] = step > 0.0 ? least + std::rint((exact[c] - least) / step) * step : least;
        }
    }
}

double SketchReference::logit(int cell, const float * q, float scale, float softcap) const {
    double logit = 0.0;
    for (int i = 0; i < head_dim; ++i) {
        logit += static_cast<double>(q[i]) * scale * rounded[static_cast<size_t>(cell) * head_dim + i];
    }
    return cap(logit, softcap);
}

}  // namespace edgekv
