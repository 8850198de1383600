// The specification of the sketches' estimates, in double precision and from the keys themselves.
//
// The kernels differ from it by what their bytes round. Per channel, with s the channel's exact step (b2: a third of its range,
// b1: twice the mean |residual|), S the step scale (the strip's largest step / 255) and L the low scale (largest |low| / 127), a
// kernel's key differs by at most s + S + L / 2: both are within half a step of the key or, for b1, on either side of the mean.
// Query times step is rounded to i8, which adds at most 0.504 * fine * 2^15 * S per channel and code, where fine = the query's
// largest channel / 16256; times low the query is rounded to coarse = its largest channel / 127; and the exponential and
// logarithm are off by 0.031. For the sums see tests/test_sketch.cpp, which checks them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "sketch.h"

namespace edgekv {
namespace {

double half_to_double(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const double mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

double element(CellType type, const char * row, int i) {
    uint16_t half;
    if (type == CellType::f16) {
        std::memcpy(&half, row + 2 * i, 2);
        return half_to_double(half);
    }
    const char * block = row + i / 32 * 34;
    std::memcpy(&half, block, 2);
    return half_to_double(half) * static_cast<int8_t>(block[2 + i % 32]);
}

double cap(double x, double softcap) { return softcap != 0.0 ? softcap * std::tanh(x / softcap) : x; }

}  // namespace

double sketch_reference(SketchKind kind, const SketchKeys & keys, int head_dim, int head, int strip, uint32_t valid,
                        const float * q, float scale, float softcap) {
    std::vector<int> cells;
    for (int c = 0; c < kSketchStripCells; ++c) {
        if (valid >> c & 1) {
            cells.push_back(c);
        }
    }
    if (cells.empty()) {
        return -INFINITY;
    }
    const double share = static_cast<double>(cells.size()) / kSketchStripCells;
    const std::vector<int> given = cells;
    for (size_t i = 0; cells.size() < kSketchStripCells; ++i) {  // the others are replaced by these in turn
        cells.push_back(given[i % given.size()]);
    }

    double bound = 0.0;
    double logit[kSketchStripCells] = {};
    for (int i = 0; i < head_dim; ++i) {
        const double factor = static_cast<double>(q[i]) * scale;
        double key[kSketchStripCells];
        for (int c = 0; c < kSketchStripCells; ++c) {
            const size_t cell = static_cast<size_t>(strip) * kSketchStripCells + static_cast<size_t>(cells[c]);
            key[c] = element(keys.type, keys.k + cell * keys.stride_cell + static_cast<size_t>(head) * keys.stride_head, i);
        }
        const double least = *std::min_element(key, key + kSketchStripCells);
        const double most = *std::max_element(key, key + kSketchStripCells);
        bound += std::fmax(factor * least, factor * most);
        double mean = 0.0, residual = 0.0;
        for (double k : key) {
            mean += k / kSketchStripCells;
        }
        for (double k : key) {
            residual += std::fabs(k - mean) / kSketchStripCells;
        }
        for (int c = 0; c < kSketchStripCells; ++c) {
            double k = key[c] >= mean ? mean + residual : mean - residual;
            if (kind == SketchKind::b2) {
                const double step = (most - least) / 3.0;
                k = step > 0.0 ? least + std::rint((key[c] - least) / step) * step : least;
            }
            logit[c] += factor * k;
        }
    }
    if (kind == SketchKind::box) {
        return cap(bound, softcap);
    }
    double top = -INFINITY, sum = 0.0;
    for (double & x : logit) {
        x = cap(x, softcap);
        top = std::fmax(top, x);
    }
    for (double x : logit) {
        sum += std::exp(x - top);
    }
    return top + std::log(sum * share);
}

}  // namespace edgekv
