// What test_sample.cpp samples: the shares that a scan could have left, and who may see what.
#pragma once

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "attend_cases.h"
#include "kernels/select/sample.h"

namespace edgekv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kOne = 1 << kChanceBits;

// How a group's logits lie.
enum class Logits { flat, normal, peaked, far_apart, count };

struct Case {
    int n_groups, group;
    float resolution;
    Logits logits;
    bool sinks, hidden;
    int certain;  // 0: none, 1: some, 2: all that is visible
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "groups %d heads %d resolution %g logits %d sinks %d hidden %d certain %d", n_groups, group, resolution,
                      static_cast<int>(logits), sinks, hidden, certain);
        return s;
    }
};

uint16_t upper_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(x));
    return static_cast<uint16_t>(bits >> 16);
}
float of_upper_half(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// Shares as a scan leaves them, with NaN where it leaves cells as they are, and room behind that must not be read or written.
struct Instance {
    std::vector<uint16_t> shares;
    std::vector<float> tops, sums, sinks;
    std::vector<Sight> sight;
    std::vector<char> scratch;
    SampleProblem p{};

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        const int n_cells = c.n_groups * kGroupCells;
        p.n_groups = c.n_groups;
        p.group = c.group;
        p.cell_stride = static_cast<size_t>(n_cells) + 7;
        p.group_stride = static_cast<size_t>(c.n_groups) + 3;
        shares.assign(p.cell_stride * c.group, 0x7fc1);
        tops.assign(p.group_stride * c.group, std::numeric_limits<float>::quiet_NaN());
        sums = tops;
        for (int i = 0; i < c.n_groups; ++i) {
            const uint64_t r = rng.next(), half = rng.next();
            const uint64_t visible = !c.hidden || r % 4 == 0 ? ~uint64_t{0} : r % 4 == 1 ? 0 : r % 4 == 2 ? ~uint64_t{0} >> (half >> 58) : half;
            sight.push_back({visible, c.certain == 2 ? visible : c.certain == 1 && rng.next() % 3 == 0 ? visible & rng.next() : 0});
        }
        if (c.certain == 1) {
            sight.back().certain = sight.back().visible;  // as an open group has it
        }
        for (int g = 0; g < c.group; ++g) {
            for (int i = 0; i < c.n_groups; ++i) {
                const uint64_t visible = sight[i].visible;
                const size_t at = g * p.group_stride + static_cast<size_t>(i);
                tops[at] = -kInf;
                sums[at] = 0.0f;
                if (visible == 0) {
                    continue;
                }
                float spread = 1.0f, top = rng.normal();
                switch (c.logits) {
                    case Logits::flat: spread = 0.0f; top = 1.0f; break;
                    case Logits::normal: break;
                    case Logits::peaked: spread = 4.0f; top = 3.0f * rng.normal() + (i % 7 == 3 ? 8.0f : 0.0f); break;
                    case Logits::far_apart: spread = 30.0f; top = 70.0f * rng.normal(); break;
                    case Logits::count: break;
                }
                tops[at] = top;
                bool first = true;
                for (int cell = 0; cell < kGroupCells; ++cell) {
                    float share = 0.0f;
                    if (visible >> cell & 1) {
                        share = first ? 1.0f : std::exp(-spread * std::fabs(rng.normal()));
                        first = false;
                    }
                    shares[g * p.cell_stride + static_cast<size_t>(i * kGroupCells + cell)] = upper_half(share);
                    sums[at] += share;
                }
            }
            sinks.push_back(3.0f * rng.normal());
        }
        p.shares = shares.data();
        p.tops = tops.data();
        p.sums = sums.data();
        p.sinks = c.sinks ? sinks.data() : nullptr;
        p.sight = sight.data();
        p.resolution = c.resolution;
        p.offset = static_cast<int32_t>(seed % 3 == 0 ? 0 : rng.next() % kOne);
    }
};

bool may_be_read(const Instance & in, int cell) { return in.sight[cell / kGroupCells].visible >> cell % kGroupCells & 1; }
bool is_certain(const Instance & in, int cell) { return may_be_read(in, cell) && (in.sight[cell / kGroupCells].certain >> cell % kGroupCells & 1); }

}  // namespace
}  // namespace edgekv
