// Attention problems for the device tests: values on the host for attend_reference(), and the same in device memory and pinned
// home, with pages spread over arena, ring and home. Wherever a page lies in a better place, the worse places hold NaN.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>

#include "attend_masks.h"
#include "cache_rows.h"
#include "cuda/kernels/attend_device.h"

namespace setup {

using namespace edgekv;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using cases::Mask;
enum class Select { all, lists, full_lists };  // no lists; random ones, some empty; lists of every row that the token sees

struct Case {
    int head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens;
    CellType k_type, v_type;
    Mask mask;
    float softcap;
    bool sinks, gaps, arena, ring;
    int observe;  // bit 0: mass_max, bit 1: mass_sum
    Select select;
    int n_parts;  // without lists
    int n_pages() const { return (n_cells + page_tokens - 1)/page_tokens; }
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "d%d group %d kv %d tokens %d cells %d page %d k%d v%d mask %d softcap %g sinks %d gaps %d "
                      "arena %d ring %d obs %d select %d parts %d", head_dim, group, n_head_kv, n_tokens, n_cells, page_tokens,
                      static_cast<int>(k_type), static_cast<int>(v_type), static_cast<int>(mask), softcap, sinks, gaps, arena,
                      ring, observe, static_cast<int>(select), n_parts);
        return s;
    }
};

// Memory of exactly the size asked for, so that the emulated device finds what lies behind it.
class Memory {
public:
    Memory() = default;
    Memory(const void * data, size_t n_bytes, bool pinned = false) : pinned_(pinned), bytes_(n_bytes) {
        const size_t n = n_bytes > 0 ? n_bytes : 1;
        if (!(pinned ? gpu::alloc_pinned(&p_, n) : gpu::alloc(&p_, n))) {
            std::printf("FAIL: %s\n", gpu::last_error());
            std::exit(1);
        }
        write(data);
    }
    template <class T>
    explicit Memory(const std::vector<T> & data, bool pinned = false) : Memory(data.data(), data.size()*sizeof(T), pinned) {}
    Memory(Memory && other) noexcept { *this = std::move(other); }
    Memory & operator=(Memory && other) noexcept {
        std::swap(p_, other.p_);
        std::swap(pinned_, other.pinned_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory() {
        if (p_ != nullptr) {
            pinned_ ? gpu::free_pinned(p_) : gpu::free_device(p_);
        }
    }
    void write(const void * data) {
        if (data != nullptr && bytes_ > 0 && !gpu::copy(p_, data, bytes_)) {
            std::printf("FAIL: %s\n", gpu::last_error());
            std::exit(1);
        }
    }
    template <class T>
    void read(std::vector<T> & out) const {
        if (!out.empty() && !gpu::copy(out.data(), p_, out.size()*sizeof(T))) {
            std::printf("FAIL: %s\n", gpu::last_error());
            std::exit(1);
        }
    }
    template <class T>
    T * as() const { return static_cast<T *>(p_); }

private:
    void * p_ = nullptr;
    bool pinned_ = false;
    size_t bytes_ = 0;
};

// Values on the host; `p` is the reference's problem, without results.
struct Values {
    AttendProblem p{};
    std::vector<char> q, k, v, mask;
    std::vector<float> sinks;
    double q_norm = 0.0, k_norm = 0.0, v_max = 0.0;
    int visible_tokens = 0;

    Values(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        p.head_dim    = c.head_dim;
        p.n_head      = c.group*c.n_head_kv;
        p.n_head_kv   = c.n_head_kv;
        p.n_tokens    = c.n_tokens;
        p.n_cells     = c.n_cells;
        p.page_tokens = c.page_tokens;
        p.k_type      = c.k_type;
        p.v_type      = c.v_type;
        p.scale       = 1.0f/std::sqrt(static_cast<float>(c.head_dim));
        p.softcap     = c.softcap;
        const cases::MaskValues bias(c.mask, c.n_tokens, c.n_cells, rng);

        make_queries(c, rng);
        auto keys   = make_rows(c, c.k_type, bias, rng);
        auto values = make_rows(c, c.v_type, bias, rng);
        k = std::move(keys.bytes);
        v = std::move(values.bytes);
        p.k_stride_cell = keys.stride_cell;
        p.k_stride_head = keys.stride_head;
        p.v_stride_cell = values.stride_cell;
        p.v_stride_head = values.stride_head;
        k_norm          = keys.longest;
        v_max           = values.largest;
        p.mask_type     = cases::mask_type(c.mask);
        mask            = cases::stored_mask<std::vector<char>>(bias, p.mask_type, c.gaps ? 5 : 0, p.mask_stride_token);
        visible_tokens  = bias.seeing_tokens();
        for (int h = 0; c.sinks && h < p.n_head; ++h) {
            sinks.push_back(2.0f*rng.normal() + 3.0f);
        }
        p.q     = q.data();
        p.k     = k.data();
        p.v     = v.data();
        p.mask  = mask.data();
        p.sinks = c.sinks ? sinks.data() : nullptr;
    }

private:
    // For K in q8_0 the specification quantises the query and the device does not: queries that are int8 already are one and the
    // same for both.
    void make_queries(const Case & c, cases::Random & rng) {
        p.q_stride_head  = static_cast<size_t>(c.head_dim)*4 + (c.gaps ? 16 : 0);
        p.q_stride_token = p.q_stride_head*p.n_head + (c.gaps ? 48 : 0);
        q.resize(p.q_stride_token*(c.n_tokens - 1) + p.q_stride_head*(p.n_head - 1) + static_cast<size_t>(c.head_dim)*4);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                double norm = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    float x = h == 1 && i < 32 ? 0.0f : 2.0f*rng.normal();
                    if (c.k_type == CellType::q8_0 && x != 0.0f) {
                        x = i % 32 == 3 ? 127*0.0625f : std::rint(std::min(std::max(x*16.0f, -127.0f), 127.0f))*0.0625f;
                    }
                    std::memcpy(q.data() + t*p.q_stride_token + h*p.q_stride_head + 4*i, &x, 4);
                    norm += x*x;
                }
                q_norm = std::max(q_norm, std::sqrt(norm));
            }
        }
    }

    static cases::CacheRows<std::vector<char>> make_rows(const Case & c, CellType type, const cases::MaskValues & bias, cases::Random & rng) {
        const size_t unit = type == CellType::f16 ? 16 : 2, bytes = cases::row_bytes(type, c.head_dim);
        const cases::RowsShape shape = {type, c.head_dim, c.n_head_kv, c.n_cells, c.gaps ? 3*unit : 0, c.gaps ? 5*unit : 0};
        const auto value = [&](int, int, int) { return rng.normal(); };
        const auto spoil = [&](int cell, char * row) {
            if (bias.hidden(cell)) {  // must not matter
                std::memset(row, 0xff, bytes);
            }
        };
        return cases::cache_rows<std::vector<char>>(shape, value, spoil);
    }
};

// Lists of rows and their weights, on the host.
struct Lists {
    std::vector<int32_t> cells, n_rows;
    std::vector<float> weights;
    size_t stride;
    bool weighted;

    Lists(const Case & c, uint64_t seed) : weighted(seed % 4 != 0) {
        cases::Random rng(seed + 77), of_mask(seed);
        const cases::MaskValues bias(c.mask, c.n_tokens, c.n_cells, of_mask);
        stride = static_cast<size_t>(c.n_cells) + 1;
        cells.assign(stride*c.n_tokens*c.n_head_kv, -7);
        weights.assign(cells.size(), kNan);
        n_rows.assign(static_cast<size_t>(c.n_tokens)*c.n_head_kv, 0);
        for (size_t list = 0; list < n_rows.size(); ++list) {
            const uint64_t share = rng.next() % 4;  // some lists are empty
            for (int cell = 0; cell < c.n_cells; ++cell) {
                const bool dense = (cell/c.page_tokens + static_cast<int>(list)) % 3 == 0;
                if (bias.sees(static_cast<int>(list)/c.n_head_kv, cell) &&
                    (c.select == Select::full_lists || (dense ? rng.next() % 4 < share : rng.next() % 32 < share))) {
                    const size_t at = list*stride + static_cast<size_t>(n_rows[list]++);
                    cells[at] = cell;
                    weights[at] = !weighted || rng.next() % 3 == 0 ? 1.0f : 1.0f + 30.0f*rng.uniform()*rng.uniform();
                }
            }
        }
    }
    AttendRows use() const { return {cells.data(), weighted ? weights.data() : nullptr, n_rows.data(), stride}; }
};

// Pages in the arena, in rings (one for each part) and at home.
struct Placed {
    std::vector<char> k, v, arena;
    std::vector<int32_t> slots;
    struct HostRing {
        int first_page, end_page;
        std::vector<char> data;
        std::vector<uint8_t> held;
    };
    std::vector<HostRing> rings;
    size_t slot_bytes, v_offset;

    Placed(const Case & c, const Values & values, uint64_t seed) : k(values.k), v(values.v) {
        cases::Random rng(seed + 177);
        const AttendProblem & p = values.p;
        const size_t k_row = cases::row_bytes(c.k_type, c.head_dim), v_row = cases::row_bytes(c.v_type, c.head_dim);
        v_offset   = k_row*static_cast<size_t>(c.page_tokens);
        slot_bytes = v_offset + v_row*static_cast<size_t>(c.page_tokens);
        const int n = c.n_pages();
        slots.assign(static_cast<size_t>(n)*c.n_head_kv, -1);
        const int n_parts = c.select == Select::all ? c.n_parts : 1;
        for (int i = 0; i < n_parts; ++i) {
            HostRing ring;
            ring.first_page = n*i/n_parts;
            ring.end_page   = n*(i + 1)/n_parts;
            const size_t n_held = static_cast<size_t>(ring.end_page - ring.first_page)*c.n_head_kv;
            ring.held.assign(n_held, 0);
            ring.data.assign(c.ring ? n_held*slot_bytes : 0, static_cast<char>(0xff));
            rings.push_back(std::move(ring));
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            for (int page = 0; page < n; ++page) {
                const bool in_arena = c.arena && rng.next() % 3 == 0, in_ring = c.ring && rng.next() % 2 == 0;
                size_t at = 0;
                HostRing * ring = nullptr;
                for (HostRing & r : rings) {
                    if (page >= r.first_page && page < r.end_page) {
                        ring = &r;
                        at = static_cast<size_t>(h)*(r.end_page - r.first_page) + (page - r.first_page);
                    }
                }
                char * slot = nullptr;
                if (in_ring) {
                    ring->held[at] = 1;
                    slot = ring->data.data() + at*slot_bytes;
                }
                if (in_arena) {  // also where the ring says it has the page: what the ring has is NaN then
                    slots[static_cast<size_t>(h)*n + page] = static_cast<int32_t>(arena.size()/slot_bytes);
                    arena.resize(arena.size() + slot_bytes, static_cast<char>(0xff));
                    slot = arena.data() + arena.size() - slot_bytes;
                }
                for (int i = 0; slot != nullptr && i < c.page_tokens && page*c.page_tokens + i < c.n_cells; ++i) {
                    const size_t cell = static_cast<size_t>(page)*c.page_tokens + i;
                    char * from_k = k.data() + cell*p.k_stride_cell + h*p.k_stride_head;
                    char * from_v = v.data() + cell*p.v_stride_cell + h*p.v_stride_head;
                    std::memcpy(slot + i*k_row, from_k, k_row);
                    std::memcpy(slot + v_offset + i*v_row, from_v, v_row);
                    std::memset(from_k, 0xff, k_row);
                    std::memset(from_v, 0xff, v_row);
                }
            }
        }
    }
};

}  // namespace setup
