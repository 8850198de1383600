// Masked means untouched: rows of K and V that hold infinities and NaN reach the outputs of those tokens alone that see them.
#pragma once

#include "attend_results.h"

namespace test {

struct Spoilt {
    int cell, channel;  // an infinity or a NaN at this channel, in blocks in all of its block
};

// Up to three cells that some token sees and another one does not.
inline std::vector<Spoilt> cells_to_spoil(const AttendCase & c, const MaskValues & bias, uint64_t seed) {
    std::vector<int> mixed;
    for (int cell = 0; cell < c.n_cells; ++cell) {
        int n = 0;
        for (int t = 0; t < c.n_tokens; ++t) {
            n += bias.sees(t, cell);
        }
        if (n > 0 && n < c.n_tokens) {
            mixed.push_back(cell);
        }
    }
    std::vector<Spoilt> cells;
    Random rng(seed);
    for (int i = 0; i < 3 && !mixed.empty(); ++i) {
        const int cell = mixed[rng.next() % mixed.size()];
        cells.push_back({cell, rng.below(c.head_dim)});
    }
    return cells;
}

inline void spoil(CellType type, char * row, int channel, int turn) {
    const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0xfe00};
    std::memcpy(type == CellType::f16 ? row + 2 * channel : row + channel / 32 * edgekv::block_bytes(type), &halves[turn % 4], 2);
}

// The sentence of the first fault; empty: none. `want`: the outputs with rows that are not spoilt, laid out like those that attend() returns.
template <class Attend>
std::string spoilt_fault(const AttendCase & c, AttendInstance & instance, const AttendProblem & p, const std::vector<Spoilt> & cells, bool keys,
                         const std::vector<float> & want, double bound, const Attend & attend) {
    const CellType type = keys ? c.k_type : c.v_type;
    const size_t stride_cell = keys ? p.k_stride_cell : p.v_stride_cell, stride_head = keys ? p.k_stride_head : p.v_stride_head;
    Bytes & all = keys ? instance.k : instance.v;
    const Bytes kept = all;
    int turn = 0;
    for (const Spoilt & s : cells) {
        for (int h = 0; h < c.n_head_kv; ++h) {
            spoil(type, all.data() + static_cast<size_t>(s.cell) * stride_cell + static_cast<size_t>(h) * stride_head, s.channel, ++turn);
        }
    }
    const std::vector<float> got = attend();
    std::copy(kept.begin(), kept.end(), all.begin());

    for (int t = 0; t < c.n_tokens; ++t) {
        for (int h = 0; h < p.n_head; ++h) {
            std::vector<bool> reached(static_cast<size_t>(c.head_dim));
            bool sees = false;
            for (const Spoilt & s : cells) {
                if (!instance.bias.sees(t, s.cell) || instance.drops(c, h / c.group, s.cell)) {
                    continue;
                }
                sees = true;
                const int first = type == CellType::f16 ? s.channel : s.channel / 32 * 32;
                std::fill_n(reached.begin() + first, type == CellType::f16 ? 1 : 32, true);
            }
            const size_t at = (static_cast<size_t>(t) * p.out_stride_token + static_cast<size_t>(h) * p.out_stride_head) / 4;
            for (int i = 0; i < c.v_dim(); ++i) {
                const float x = got[at + i], y = want[at + i];
                const bool may_be_off = keys ? sees : reached[static_cast<size_t>(i)];
                const auto where = [&] {
                    return std::string(keys ? "K" : "V") + ": token " + std::to_string(t) + " head " + std::to_string(h) + " channel " +
                           std::to_string(i) + ": " + std::to_string(x) + " for " + std::to_string(y);
                };
                if (!may_be_off && !(std::fabs(static_cast<double>(x) - static_cast<double>(y)) <= bound)) {
                    return "what a token does not see reaches it, " + where();
                }
                if (!keys && may_be_off && std::isfinite(x)) {
                    return "what a token sees does not reach it, " + where();
                }
            }
        }
    }
    return "";
}

// attend(): the outputs with the rows that the instance has at that time. `bound`: what an output may be off by.
template <class Attend>
void check_spoilt(const AttendRun & run, AttendInstance & instance, const AttendProblem & p, uint64_t seed, const std::vector<float> & want,
                  double bound, const Attend & attend) {
    const std::vector<Spoilt> cells = cells_to_spoil(run.c, instance.bias, seed);
    for (const bool keys : {false, true}) {
        if (!keys && run.c.v_in_k != 0) {
            continue;  // a row of K is spoilt as a whole
        }
        const std::string fault = spoilt_fault(run.c, instance, p, cells, keys, want, bound, attend);
        expect(fault.empty(), run, fault.c_str());
    }
}

}  // namespace test
