// What test_attend.cpp attends: one case's queries, K, V and mask, and lists of rows with an arena.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "at_end.h"
#include "attend_masks.h"
#include "cache_rows.h"
#include "kernels/attend/attend.h"

namespace edgekv {
namespace {

using cases::Mask;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
    int head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens;
    CellType k_type, v_type;
    Mask mask;
    float softcap;
    bool sinks, gaps, low;  // low: the logits of the first query head of each KV head are far below 0
    int observe;  // bit 0: mass_max, bit 1: mass_sum
    int select;   // 0: no lists, 1: random rows with weights, 2: every visible cell, 3: the same without weights; from 1 on with an arena
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s),
                      "d%d group %d kv %d tokens %d cells %d page %d k%d v%d mask %d softcap %g sinks %d gaps %d low %d obs %d select %d",
                      head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens, static_cast<int>(k_type),
                      static_cast<int>(v_type), static_cast<int>(mask), softcap, sinks, gaps, low, observe, select);
        return s;
    }
};

// A problem with buffers that end where the last element does, so that any overrun faults.
struct Instance {
    AttendProblem p{};
    cases::Bytes q, k, v, mask;
    std::vector<float> sinks;
    cases::Random rng;
    cases::MaskValues bias;
    double tolerance = 0.0;
    double v_max = 0.0;
    int visible_rows = 0;  // tokens that see anything

    Instance(const Case & c, uint64_t seed) : rng(seed), bias(c.mask, c.n_tokens, c.n_cells, rng) {
        const int n_head = c.group * c.n_head_kv;
        p.head_dim = c.head_dim;
        p.n_head = n_head;
        p.n_head_kv = c.n_head_kv;
        p.n_tokens = c.n_tokens;
        p.n_cells = c.n_cells;
        p.page_tokens = c.page_tokens;
        p.k_type = c.k_type;
        p.v_type = c.v_type;
        p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
        p.softcap = c.softcap;
        p.q_stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.gaps ? 20 : 0);
        p.q_stride_token = p.q_stride_head * n_head + (c.gaps ? 12 : 0);
        q.resize(p.q_stride_token * (c.n_tokens - 1) + p.q_stride_head * (n_head - 1) + static_cast<size_t>(c.head_dim) * 4);
        double q_norm = 0.0;
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < n_head; ++h) {
                double norm = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    const float x = (h == 1 && i < 32) ? 0.0f : 2.0f * rng.normal();  // a block of zeros to quantise
                    std::memcpy(q.data() + t * p.q_stride_token + h * p.q_stride_head + 4 * i, &x, 4);
                    norm += x * x;
                }
                q_norm = std::max(q_norm, std::sqrt(norm));
            }
        }
        const auto rows_of = [&](CellType type) {
            return cases::RowsShape{type, c.head_dim, c.n_head_kv, c.n_cells, c.gaps ? size_t{6} : 0, c.gaps ? size_t{10} : 0};
        };
        // What no token sees must not matter: NaN for f16 and for the block scales.
        const auto spoil_in = [&](CellType type) {
            return [&, bytes = cases::row_bytes(type, c.head_dim)](int cell, char * row) {
                if (bias.hidden(cell)) {
                    std::memset(row, 0xff, bytes);
                }
            };
        };
        const auto of_key = [&](int, int h, int channel) {
            float x = rng.normal();
            if (c.low) {
                float of_query;
                std::memcpy(&of_query, q.data() + h * c.group * p.q_stride_head + 4 * channel, 4);
                x -= 4.0f * of_query;
            }
            return x;
        };
        const auto of_value = [&](int, int, int) { return rng.normal(); };
        const auto keys = cases::cache_rows<cases::Bytes>(rows_of(c.k_type), of_key, spoil_in(c.k_type));
        const auto values = cases::cache_rows<cases::Bytes>(rows_of(c.v_type), of_value, spoil_in(c.v_type));
        k = keys.bytes;
        v = values.bytes;
        p.k_stride_cell = keys.stride_cell;
        p.k_stride_head = keys.stride_head;
        p.v_stride_cell = values.stride_cell;
        p.v_stride_head = values.stride_head;
        v_max = values.largest;

        p.mask_type = cases::mask_type(c.mask);
        mask = cases::stored_mask<cases::Bytes>(bias, p.mask_type, c.gaps ? 5 : 0, p.mask_stride_token);
        visible_rows = bias.seeing_tokens();
        for (int h = 0; c.sinks && h < n_head; ++h) {
            sinks.push_back(2.0f * rng.normal() + 3.0f);
        }
        p.q = q.data();
        p.k = k.data();
        p.v = v.data();
        p.mask = mask.data();
        p.sinks = c.sinks ? sinks.data() : nullptr;

        const double u = 0x1p-24;
        const double s = p.scale * q_norm * keys.longest;  // bounds sum |q_i k_i|
        const double largest_bias = c.mask == Mask::biased ? 8.0 : 0.0;  // where huge ones count, all cells have them
        const double logit = u * (3.5 * std::sqrt(c.head_dim / 8 + 3) * s + 2 * (s + largest_bias + c.softcap) + 4);
        tolerance = 2 * (2 * logit + 3.5 * std::sqrt(c.n_cells) * u);
    }
};

// Lists, slots and an arena for an instance; the home rows of pages that have a slot are spoilt in a copy.
struct Lists {
    std::vector<int32_t> cells, n_rows, slots;
    std::vector<float> weights;
    cases::Bytes k, v;
    std::vector<char> arena;
    std::vector<AttendHits> hits, want_hits;
    std::vector<int> n_listed;  // lists that have a row, by KV head

    Lists(const Case & c, Instance & instance, AttendProblem & p, uint64_t seed) {
        cases::Random rng(seed + 77);
        const int n = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
        const size_t k_row = cases::row_bytes(c.k_type, c.head_dim), v_row = cases::row_bytes(c.v_type, c.head_dim);
        const size_t stride = static_cast<size_t>(c.n_cells) + seed % 3;
        cells.assign(stride * c.n_tokens * c.n_head_kv, -7);
        weights.assign(cells.size(), kNan);
        n_rows.assign(static_cast<size_t>(c.n_tokens) * c.n_head_kv, 0);
        slots.assign(static_cast<size_t>(n) * c.n_head_kv, -1);
        hits.assign(static_cast<size_t>(c.n_head_kv), AttendHits{});
        want_hits = hits;
        n_listed.assign(hits.size(), 0);

        k = instance.k;
        v = instance.v;
        p.arena.slot_bytes = (k_row + v_row) * static_cast<size_t>(c.page_tokens);
        p.arena.v_offset = k_row * static_cast<size_t>(c.page_tokens);
        int n_slots = 0;
        for (int h = 0; h < c.n_head_kv; ++h) {
            for (int page = 0; page < n; ++page) {
                if (rng.next() % 3 != 0) {
                    continue;
                }
                slots[static_cast<size_t>(h * n + page)] = n_slots++;
                arena.resize(p.arena.slot_bytes * static_cast<size_t>(n_slots));
                char * slot = arena.data() + p.arena.slot_bytes * static_cast<size_t>(n_slots - 1);
                for (int i = 0; i < c.page_tokens && page * c.page_tokens + i < c.n_cells; ++i) {
                    const size_t cell = static_cast<size_t>(page * c.page_tokens + i);
                    char * from_k = k.data() + cell * p.k_stride_cell + static_cast<size_t>(h) * p.k_stride_head;
                    char * from_v = v.data() + cell * p.v_stride_cell + static_cast<size_t>(h) * p.v_stride_head;
                    std::memcpy(slot + static_cast<size_t>(i) * k_row, from_k, k_row);
                    std::memcpy(slot + p.arena.v_offset + static_cast<size_t>(i) * v_row, from_v, v_row);
                    std::memset(from_k, 0xff, k_row);
                    std::memset(from_v, 0xff, v_row);
                }
            }
        }
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                const size_t list = static_cast<size_t>(t * c.n_head_kv + h);
                const uint64_t share = rng.next() % 5;  // some lists are empty
                for (int cell = 0; cell < c.n_cells; ++cell) {
                    if (!instance.bias.sees(t, cell) || (c.select == 1 && rng.next() % 4 >= share)) {
                        continue;
                    }
                    const size_t at = list * stride + static_cast<size_t>(n_rows[list]++);
                    cells[at] = cell;
                    weights[at] = c.select == 1 && rng.next() % 3 != 0 ? 1.0f / (rng.uniform() + 0.001f) : 1.0f;
                    weights[at] = std::max(weights[at], 1.0f);
                    want_hits[static_cast<size_t>(h)].n_read += 1;
                    want_hits[static_cast<size_t>(h)].n_hits += slots[static_cast<size_t>(h * n + cell / c.page_tokens)] >= 0 ? 1 : 0;
                }
                n_listed[static_cast<size_t>(h)] += n_rows[list] > 0 ? 1 : 0;
            }
        }
        p.rows = {cells.data(), c.select == 3 ? nullptr : weights.data(), n_rows.data(), stride};
        p.arena.slots_stride = static_cast<size_t>(n);
        p.error_every = static_cast<int>(seed % 4);  // 0: never
        p.error_turn = static_cast<int>(seed / 4 % 5);
    }

    void use(AttendProblem & p) {
        p.k = k.data();
        p.v = v.data();
        p.arena.data = arena.data();
        p.arena.slots = slots.data();
        p.hits = hits.data();
    }
};

}  // namespace
}  // namespace edgekv
