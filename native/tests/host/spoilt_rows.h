// Masked means untouched: rows of K and V that hold infinities and NaN reach the outputs of those tokens alone that see them.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cache_rows.h"
#include "kernels/attend/attend.h"

namespace cases {

inline bool mask_shows(const edgekv::AttendProblem & p, int token, int cell) {
    const char * row = p.mask + static_cast<size_t>(token) * p.mask_stride_token;
    if (p.mask_type == edgekv::MaskType::f16) {
        uint16_t half;
        std::memcpy(&half, row + 2 * static_cast<size_t>(cell), 2);
        return half != 0xfc00;
    }
    if (p.mask_type == edgekv::MaskType::f32) {
        float x;
        std::memcpy(&x, row + 4 * static_cast<size_t>(cell), 4);
        return x != -INFINITY;
    }
    return true;
}

struct Spoilt {
    int cell, channel;  // an infinity or a NaN at this channel, with q8_0 in all of its block
};

// What is asked of a run whose rows are spoilt. The problem's K and V may be changed and come back as they were.
struct SpoiltRun {
    const edgekv::AttendProblem & p;  // writes to p.out
    char *k, *v;
    std::function<bool(int head, int cell)> dropped;
    std::function<void()> attend;
    double bound;  // of what an output may be off by
};

// Up to three cells that some token sees and another one does not.
inline std::vector<Spoilt> cells_to_spoil(const edgekv::AttendProblem & p, uint64_t seed) {
    std::vector<int> mixed;
    for (int c = 0; c < p.n_cells; ++c) {
        int n = 0;
        for (int t = 0; t < p.n_tokens; ++t) {
            n += mask_shows(p, t, c);
        }
        if (n > 0 && n < p.n_tokens) {
            mixed.push_back(c);
        }
    }
    std::vector<Spoilt> cells;
    Random rng(seed);
    for (int i = 0; i < 3 && !mixed.empty(); ++i) {
        const int cell = mixed[rng.next() % mixed.size()];
        cells.push_back({cell, static_cast<int>(rng.next() % static_cast<uint64_t>(p.head_dim))});
    }
    return cells;
}

inline void spoil(edgekv::CellType type, char * row, int channel, int turn) {
    const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0xfe00};
    std::memcpy(type == edgekv::CellType::f16 ? row + 2 * channel : row + channel / 32 * 34, &halves[turn % 4], 2);
}

// The sentence of the first fault; empty: none. `want`: the outputs with rows that are not spoilt, laid out like p.out.
inline std::string spoilt_fault(const SpoiltRun & run, const std::vector<Spoilt> & cells, const char * want, bool keys) {
    const edgekv::AttendProblem & p = run.p;
    const edgekv::CellType type = keys ? p.k_type : p.v_type;
    const size_t stride_cell = keys ? p.k_stride_cell : p.v_stride_cell, stride_head = keys ? p.k_stride_head : p.v_stride_head;
    const size_t bytes = row_bytes(type, p.head_dim);
    std::vector<std::vector<char>> kept;
    const auto row = [&](const Spoilt & s, int h) {
        return (keys ? run.k : run.v) + static_cast<size_t>(s.cell) * stride_cell + static_cast<size_t>(h) * stride_head;
    };
    for (const Spoilt & s : cells) {
        for (int h = 0; h < p.n_head_kv; ++h) {
            kept.emplace_back(row(s, h), row(s, h) + bytes);
            spoil(type, row(s, h), s.channel, static_cast<int>(kept.size()));
        }
    }
    run.attend();
    for (size_t i = cells.size() * static_cast<size_t>(p.n_head_kv); i-- > 0;) {  // backwards: a cell may come twice
        std::memcpy(row(cells[i / static_cast<size_t>(p.n_head_kv)], static_cast<int>(i) % p.n_head_kv), kept[i].data(), bytes);
    }

    for (int t = 0; t < p.n_tokens; ++t) {
        for (int h = 0; h < p.n_head; ++h) {
            std::vector<bool> reached(static_cast<size_t>(p.head_dim));
            bool sees = false;
            for (const Spoilt & s : cells) {
                if (!mask_shows(p, t, s.cell) || run.dropped(h / (p.n_head / p.n_head_kv), s.cell)) {
                    continue;
                }
                sees = true;
                const int first = type == edgekv::CellType::f16 ? s.channel : s.channel / 32 * 32;
                for (int i = first; i < (type == edgekv::CellType::f16 ? first + 1 : first + 32); ++i) {
                    reached[static_cast<size_t>(i)] = true;
                }
            }
            const size_t at = static_cast<size_t>(t) * p.out_stride_token + static_cast<size_t>(h) * p.out_stride_head;
            for (int i = 0; i < p.head_dim; ++i) {
                float got, wanted;
                std::memcpy(&got, p.out + at + 4 * static_cast<size_t>(i), 4);
                std::memcpy(&wanted, want + at + 4 * static_cast<size_t>(i), 4);
                const bool may_be_off = keys ? sees : reached[static_cast<size_t>(i)];
                const std::string where = std::string(keys ? "K" : "V") + ": token " + std::to_string(t) + " head " + std::to_string(h) +
                                          " channel " + std::to_string(i) + ": " + std::to_string(got) + " for " + std::to_string(wanted);
                if (!may_be_off && !(std::fabs(static_cast<double>(got) - static_cast<double>(wanted)) <= run.bound)) {
                    return "what a token does not see reaches it, " + where;
                }
                if (!keys && may_be_off && std::isfinite(got)) {
                    return "what a token sees does not reach it, " + where;
                }
            }
        }
    }
    return "";
}

}  // namespace cases
