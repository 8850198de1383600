// Generators for attention on host and device, in decode and prompts: one case's queries, K, V and mask; lists of rows; and pages spread
// over arena, ring and home.
#pragma once

#include <cstdio>
#include <string>

#include "attend_masks.h"
#include "kernels/decode/attend.h"

namespace test {

using edgekv::AttendHits;
using edgekv::AttendProblem;

enum class Select { all, some, every };  // no lists; random ones, some empty; lists of every row that the token sees

struct AttendCase {
    int head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens;
    CellType k_type, v_type;
    Mask mask;
    bool wide_mask;  // f32
    float softcap;
    bool sinks, gaps;
    int observe;  // bit 0: mass_max, bit 1: mass_sum
    Select select;
    bool arena, ring;  // pages lie there too
    int n_parts;       // of the pages, each with a ring; with lists there is one
    bool low;          // the logits of the first query head of each KV head are far below 0
    bool rising;       // later cells have larger logits, so that the maxima keep moving
    bool large;        // queries are
    bool dropped;      // some KV heads do not attend to some pages
    bool device;       // strides as the device's loads want them
    int v_in_k;        // as in AttendProblem

    int v_dim() const { return v_in_k != 0 ? v_in_k : head_dim; }
    int n_pages() const { return (n_cells + page_tokens - 1) / page_tokens; }
    double work() const { return 1.0 * group * n_head_kv * n_tokens * n_cells * head_dim; }
    MaskType mask_type() const { return mask == Mask::none ? MaskType::none : wide_mask ? MaskType::f32 : MaskType::f16; }
    std::string name() const {
        char s[320];
        std::snprintf(s, sizeof(s),
                      "d%d group %d kv %d tokens %d cells %d page %d k%d v%d mask %d wide %d softcap %g sinks %d gaps %d obs %d select %d arena %d "
                      "ring %d parts %d low %d rising %d large %d dropped %d v in k %d",
                      head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens, static_cast<int>(k_type), static_cast<int>(v_type),
                      static_cast<int>(mask), wide_mask, softcap, sinks, gaps, observe, static_cast<int>(select), arena, ring, n_parts, low, rising,
                      large, dropped, v_in_k);
        return s;
    }
};

// A problem with buffers that end where the last element does, so that any overrun faults. Cells that no token sees hold NaN.
struct AttendInstance {
    AttendProblem p{};  // without results
    Bytes q, k, v, mask;
    std::vector<float> sinks;
    std::vector<uint8_t> dropped;  // [n_head_kv][page]
    Random rng;
    MaskValues bias;
    double score = 0.0;         // bounds sum |q_i k_i|, scaled
    double largest_bias = 0.0;  // that is added to logits of which some decide
    double v_max = 0.0;

    AttendInstance(const AttendCase & c, uint64_t seed) : rng(seed), bias(c.mask, c.n_tokens, c.n_cells, rng) {
        p.head_dim = c.head_dim;
        p.v_in_k = c.v_in_k;
        p.n_head = c.group * c.n_head_kv;
        p.n_head_kv = c.n_head_kv;
        p.n_tokens = c.n_tokens;
        p.n_cells = c.n_cells;
        p.page_tokens = c.page_tokens;
        p.k_type = c.k_type;
        p.v_type = c.v_type;
        p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
        p.softcap = c.softcap;
        p.max_bias = c.mask == Mask::distance && !c.device ? 8.0f : 0.0f;  // ALiBi is the host's
        const double longest_query = make_queries(c);
        const auto of_key = [&](int cell, int h, int channel) {
            float x = rng.normal() + (c.rising ? 2.0f * static_cast<float>(cell) / static_cast<float>(c.n_cells) : 0.0f);
            if (c.low) {
                float of_query;
                std::memcpy(&of_query, q.data() + h * c.group * p.q_stride_head + 4 * channel, 4);
                x -= 4.0f * of_query;
            }
            return x;
        };
        CacheRows keys = make_rows(c, c.k_type, of_key);
        k = std::move(keys.bytes);
        p.k_stride_cell = keys.stride_cell;
        p.k_stride_head = keys.stride_head;
        v_max = keys.largest;
        if (c.v_in_k == 0) {
            CacheRows values = make_rows(c, c.v_type, [&](int, int, int) { return rng.normal(); });
            v = std::move(values.bytes);
            p.v_stride_cell = values.stride_cell;
            p.v_stride_head = values.stride_head;
            v_max = values.largest;
        }
        score = p.scale * longest_query * keys.longest;

        p.mask_type = c.mask_type();
        mask = stored_mask(bias, p.mask_type, c.gaps ? 5 : 0, p.mask_stride_token);
        // huge ones in f32 leave nothing of a score, and where they count, all cells have them
        largest_bias = c.mask == Mask::biased ? 8.0 : c.mask == Mask::huge_bias && !c.wide_mask ? 65504.0 : c.mask == Mask::distance ? c.n_cells : 0.0;
        for (int h = 0; c.sinks && h < p.n_head; ++h) {
            sinks.push_back(h == 0 && c.rising ? 20.0f : 2.0f * rng.normal() + 3.0f);
        }
        for (int i = 0; c.dropped && i < c.n_pages() * c.n_head_kv; ++i) {
            dropped.push_back(rng.uniform() < 0.4f);
        }
        p.q = q.data();
        p.k = k.data();
        p.v = c.v_in_k != 0 ? nullptr : v.data();
        p.mask = mask.data();
        p.sinks = c.sinks ? sinks.data() : nullptr;
    }
    AttendInstance(const AttendInstance &) = delete;

    bool drops(const AttendCase & c, int head, int cell) const {
        return c.dropped && dropped[static_cast<size_t>(head * c.n_pages() + cell / c.page_tokens)] != 0;
    }

private:
    // Returns the length of the longest. For K in blocks the specification quantises the query and the device does not: queries that are int8
    // already are one and the same for both.
    double make_queries(const AttendCase & c) {
        const size_t unit = c.device ? 16 : 4;
        p.q_stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.gaps ? 5 * unit : 0);
        p.q_stride_token = p.q_stride_head * p.n_head + (c.gaps ? 3 * unit : 0);
        q.resize(p.q_stride_token * (c.n_tokens - 1) + p.q_stride_head * (p.n_head - 1) + static_cast<size_t>(c.head_dim) * 4);
        double longest = 0.0;
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                double norm = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    // a block of zeros to quantise
                    float x = h == 1 && i < 32 ? 0.0f : (2.0f * rng.normal() + (c.rising ? 1.0f : 0.0f)) * (c.large ? 20.0f : 1.0f);
                    if (c.device && c.k_type != CellType::f16 && x != 0.0f) {
                        x = i % 32 == 3 ? 127 * 0.0625f : std::rint(std::min(std::max(x * 16.0f, -127.0f), 127.0f)) * 0.0625f;
                    }
                    std::memcpy(q.data() + t * p.q_stride_token + h * p.q_stride_head + 4 * i, &x, 4);
                    norm += x * x;
                }
                longest = std::max(longest, std::sqrt(norm));
            }
        }
        return longest;
    }

    template <class Value>
    CacheRows make_rows(const AttendCase & c, CellType type, const Value & value) const {
        const size_t unit = c.device && type == CellType::f16 ? 16 : 2;
        return cache_rows({type, c.head_dim, c.n_head_kv, c.n_cells, c.gaps ? 3 * unit : 0, c.gaps ? 5 * unit : 0}, value,
                          [&](int cell) { return bias.hidden(cell); });
    }
};

// Lists of rows for an instance, and their weights.
struct RowLists {
    std::vector<int32_t> cells, n_rows;
    std::vector<float> weights;
    size_t stride;
    bool weighted;

    RowLists(const AttendCase & c, const AttendInstance & instance, uint64_t seed) : weighted(seed % 4 != 0) {
        Random rng(seed + 77);
        stride = static_cast<size_t>(c.n_cells) + seed % 3;
        cells.assign(stride * c.n_tokens * c.n_head_kv, -7);
        weights.assign(cells.size(), kNan);
        n_rows.assign(static_cast<size_t>(c.n_tokens) * c.n_head_kv, 0);
        for (size_t list = 0; list < n_rows.size(); ++list) {
            const int share = rng.below(5);  // some lists are empty
            for (int cell = 0; cell < c.n_cells; ++cell) {
                const bool dense = (cell / c.page_tokens + static_cast<int>(list)) % 3 == 0;
                if (!instance.bias.sees(static_cast<int>(list) / c.n_head_kv, cell) ||
                    (c.select == Select::some && rng.below(dense ? 4 : 32) >= share)) {
                    continue;
                }
                const size_t at = list * stride + static_cast<size_t>(n_rows[list]++);
                cells[at] = cell;
                weights[at] = !weighted || rng.one_of(3) ? 1.0f : std::max(1.0f, 1.0f / (rng.uniform() + 0.001f));
            }
        }
    }

    edgekv::AttendRows rows() const { return {cells.data(), weighted ? weights.data() : nullptr, n_rows.data(), stride}; }
};

// Pages in the arena, in rings (one for each part) and at home. Wherever a page lies in a better place, the worse ones hold NaN.
struct PlacedPages {
    struct Ring {
        int first_page, end_page;
        std::vector<char> data;
        std::vector<uint8_t> held;
    };
    Bytes k, v;
    std::vector<char> arena;
    std::vector<int32_t> slots;
    std::vector<Ring> rings;
    size_t slot_bytes, v_offset;

    PlacedPages(const AttendCase & c, const AttendInstance & instance, uint64_t seed) : k(instance.k), v(instance.v) {
        Random rng(seed + 177);
        const AttendProblem & p = instance.p;
        const size_t k_bytes = row_bytes(c.k_type, c.head_dim), v_bytes = c.v_in_k != 0 ? 0 : row_bytes(c.v_type, c.head_dim);
        v_offset = k_bytes * static_cast<size_t>(c.page_tokens);
        slot_bytes = v_offset + v_bytes * static_cast<size_t>(c.page_tokens);
        const int n = c.n_pages(), n_parts = c.select == Select::all ? c.n_parts : 1;
        slots.assign(static_cast<size_t>(n) * c.n_head_kv, -1);
        for (int i = 0; i < n_parts; ++i) {
            Ring ring{n * i / n_parts, n * (i + 1) / n_parts, {}, {}};
            ring.held.assign(static_cast<size_t>(ring.end_page - ring.first_page) * c.n_head_kv, 0);
            ring.data.assign(c.ring ? ring.held.size() * slot_bytes : 0, static_cast<char>(0xff));
            rings.push_back(std::move(ring));
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            for (int page = 0; page < n; ++page) {
                const bool in_arena = c.arena && rng.one_of(3), in_ring = c.ring && rng.one_of(2);
                char * slot = nullptr;
                for (Ring & ring : rings) {
                    if (in_ring && page >= ring.first_page && page < ring.end_page) {
                        const size_t at = static_cast<size_t>(h) * (ring.end_page - ring.first_page) + (page - ring.first_page);
                        ring.held[at] = 1;
                        slot = ring.data.data() + at * slot_bytes;
                    }
                }
                if (in_arena) {  // also where the ring says it has the page: what the ring has is NaN then
                    slots[static_cast<size_t>(h) * n + page] = static_cast<int32_t>(arena.size() / slot_bytes);
                    arena.resize(arena.size() + slot_bytes, static_cast<char>(0xff));
                    slot = arena.data() + arena.size() - slot_bytes;
                }
                for (int i = 0; slot != nullptr && i < c.page_tokens && page * c.page_tokens + i < c.n_cells; ++i) {
                    const size_t cell = static_cast<size_t>(page) * c.page_tokens + i;
                    take(k.data() + cell * p.k_stride_cell + h * p.k_stride_head, slot + i * k_bytes, k_bytes);
                    if (v_bytes > 0) {
                        take(v.data() + cell * p.v_stride_cell + h * p.v_stride_head, slot + v_offset + i * v_bytes, v_bytes);
                    }
                }
            }
        }
    }

    bool in_arena(const AttendCase & c, int head, int cell) const {
        return c.arena && slots[static_cast<size_t>(head * c.n_pages() + cell / c.page_tokens)] >= 0;
    }
    edgekv::AttendArena in(const AttendCase & c, const char * data, const int32_t * table) const {
        return {c.arena ? data : nullptr, slot_bytes, v_offset, table, static_cast<size_t>(c.n_pages())};
    }

private:
    static void take(char * from, char * to, size_t n) {
        std::memcpy(to, from, n);
        std::memset(from, 0xff, n);
    }
};

}  // namespace test
