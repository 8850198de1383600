// Keys, queries and sketches for test_sketch_device.cpp, on both sides.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "attend_cases.h"
#include "cuda/kernels/sketch_device.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
enum class Data { normal, offset, outlier_channel, outlier_cell, constant, zero, tiny, huge, subnormal, negative_zero, count };

struct Case {
    int head_dim, n_head_kv, n_streams, n_groups, group, n_tokens;
    CellType type;
    Data data;
    float scale, softcap;
    bool partial;  // some cells and groups hold nothing; rows and heads have gaps
    bool arena;
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "d%d kv %d streams %d groups %d group %d tokens %d k%d data %d scale %g softcap %g partial %d arena %d",
                      head_dim, n_head_kv, n_streams, n_groups, group, n_tokens, static_cast<int>(type), static_cast<int>(data), scale, softcap,
                      partial, arena);
        return s;
    }
};

template <class T>
struct DeviceArray {
    T * data = nullptr;
    size_t size;
    explicit DeviceArray(const std::vector<T> & content) : size(content.size()) {
        if (!gpu::alloc(reinterpret_cast<void **>(&data), std::max<size_t>(size, 1) * sizeof(T)) ||
            !gpu::copy(data, content.data(), size * sizeof(T))) {
            std::printf("no memory: %s\n", gpu::last_error());
            std::exit(1);
        }
    }
    std::vector<T> read() const {
        std::vector<T> content(size);
        if (!gpu::copy(content.data(), data, size * sizeof(T))) {
            std::printf("copy failed: %s\n", gpu::last_error());
            std::exit(1);
        }
        return content;
    }
    DeviceArray(const DeviceArray &) = delete;
    ~DeviceArray() { gpu::free_device(data); }
};

struct Pinned {
    char * data = nullptr;
    explicit Pinned(size_t n) {
        if (!gpu::alloc_pinned(reinterpret_cast<void **>(&data), n)) {
            std::printf("no memory: %s\n", gpu::last_error());
            std::exit(1);
        }
    }
    Pinned(const Pinned &) = delete;
    ~Pinned() { gpu::free_pinned(data); }
};

float key_value(Data data, int head, int cell, int channel, cases::Random & rng) {
    const float x = rng.normal();
    switch (data) {
        case Data::normal: break;
        case Data::offset: return x + 3.0f * static_cast<float>((channel * 37 + head) % 7 - 3);
        case Data::outlier_channel: return channel == 5 ? 200.0f + 30.0f * x : x;
        case Data::outlier_cell: return cell % 61 == 7 ? 300.0f * x : x;
        case Data::constant: return static_cast<float>(channel % 11) - 4.0f;
        case Data::zero: return 0.0f;
        case Data::tiny: return x * 1e-6f;
        case Data::huge: return std::fmax(std::fmin(x * 20000.0f, 60000.0f), -60000.0f);
        case Data::subnormal: return x * 2e-7f;
        case Data::negative_zero: return (channel + cell) % 3 == 0 ? -0.0f : (channel + cell) % 3 == 1 ? 0.0f : -std::fabs(x);
        case Data::count: break;
    }
    return x;
}

// Keys of all streams as they lie in home, and copies of some pages in an arena; home then holds NaN for those.
struct Instance {
    static constexpr int kPageTokens = 32;
    size_t row_bytes, stride_head, stride_cell, stride_stream;
    std::vector<char> home, true_home, arena;
    std::vector<int32_t> slots;
    size_t slot_bytes;
    int pages_per_stream;
    std::vector<uint64_t> valid;  // [stream][group]
    std::vector<int32_t> open;    // [stream][group]
    std::vector<Sight> sight;     // [stream][token][group]
    std::vector<float> q;         // [stream][token][head][head_dim + pad]
    size_t q_pad;
    double largest_logit = 0.0;

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        row_bytes = cases::row_bytes(c.type, c.head_dim);
        stride_head = row_bytes + (c.partial ? 6 : 0);
        stride_cell = stride_head * c.n_head_kv + (c.partial ? 10 : 0);
        const int n_cells = c.n_groups * kGroupCells;
        stride_stream = stride_cell * n_cells;
        for (int s = 0; s < c.n_streams * c.n_groups; ++s) {
            const uint64_t r = rng.next();
            valid.push_back(!c.partial || r % 4 == 0 ? ~uint64_t{0} : r % 4 == 1 ? 0 : rng.next() | (r % 8 == 3 ? rng.next() : 0));
            open.push_back(rng.next() % 5 == 0 ? 1 : 0);
        }
        for (int query = 0; query < c.n_streams * c.n_tokens; ++query) {
            for (int group = 0; group < c.n_groups; ++group) {
                const uint64_t r = rng.next(), seen = r % 3 == 0 ? ~uint64_t{0} : r % 3 == 1 ? rng.next() : r % 5 == 0 ? 0 : ~uint64_t{0} >> 21;
                sight.push_back({valid[query / c.n_tokens * c.n_groups + group] & seen, 0});
            }
        }
        true_home.assign(stride_stream * c.n_streams, 0);
        std::vector<float> row(static_cast<size_t>(c.head_dim));
        float largest_key = 0.0f;
        for (int cell = 0; cell < c.n_streams * n_cells; ++cell) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                char * dst = true_home.data() + cell * stride_cell + h * stride_head;
                for (int i = 0; i < c.head_dim; ++i) {
                    row[i] = key_value(c.data, h, cell, i, rng);
                    largest_key = std::max(largest_key, std::fabs(row[i]));
                }
                if (valid[cell / kGroupCells] >> (cell % kGroupCells) & 1) {
                    store_row(c.type, row, dst);
                } else {
                    std::memset(dst, 0xff, row_bytes);  // must not matter: NaN for f16 and for the block scales
                }
            }
        }

        home = true_home;
        slot_bytes = kPageTokens * row_bytes * 2 + (c.partial ? 2 : 0);
        pages_per_stream = (n_cells + kPageTokens - 1) / kPageTokens;
        slots.assign(static_cast<size_t>(c.n_head_kv) * c.n_streams * pages_per_stream, -1);
        for (size_t i = 0; c.arena && i < slots.size(); i += 2 + i % 3) {
            const int slot = slots[i] = static_cast<int>(arena.size() / slot_bytes);
            arena.resize(arena.size() + slot_bytes, 0x77);
            const int page = static_cast<int>(i % (c.n_streams * pages_per_stream)), stream = page / pages_per_stream;
            const size_t head = i / (c.n_streams * pages_per_stream);
            for (int t = 0; t < kPageTokens && page % pages_per_stream * kPageTokens + t < n_cells; ++t) {
                const size_t cell = static_cast<size_t>(page) % pages_per_stream * kPageTokens + t;
                const size_t at = stream * stride_stream + cell * stride_cell + head * stride_head;
                std::copy_n(true_home.data() + at, row_bytes, arena.data() + slot * slot_bytes + t * row_bytes);
                std::fill_n(home.data() + at, row_bytes, static_cast<char>(0xff));
            }
        }

        q_pad = c.partial ? 8 : 0;
        const int n_rows = c.n_streams * c.n_tokens * c.n_head_kv * c.group;
        q.assign((c.head_dim + q_pad) * n_rows, 0.0f);
        for (int r = 0; r < n_rows; ++r) {
            double sum = 0.0;
            for (int i = 0; i < c.head_dim; ++i) {
                // plain, one channel far above the others, all zero, next to nothing
                const float x = (r % 7 == 4 ? 0.0f : r % 7 == 6 ? 1e-33f : r % 5 == 1 && i == 3 ? 25.0f : 2.0f) * rng.normal();
                q[(c.head_dim + q_pad) * r + i] = x;
                sum += std::fabs(x * c.scale);
            }
            largest_logit = std::max(largest_logit, sum * largest_key);
        }
    }

    // as cases::store_row(), and for blocks of zeros too
    static void store_row(CellType type, const std::vector<float> & x, char * row) {
        cases::store_row(type, x, row);
        for (size_t b = 0; type == CellType::q8_0 && b < x.size() / 32; ++b) {
            if (std::all_of(x.begin() + 32 * b, x.begin() + 32 * b + 32, [](float v) { return v == 0.0f; })) {
                std::memset(row + 34 * b, 0, 34);
            }
        }
    }

    SketchKeys keys(const Case & c, int stream) const {
        return {c.type, true_home.data() + stream * stride_stream, stride_cell, stride_head};
    }
    const float * query(const Case & c, int stream, int token, int head) const {
        const size_t row = (static_cast<size_t>(stream) * c.n_tokens + token) * c.n_head_kv * c.group + head;
        return q.data() + (c.head_dim + q_pad) * row;
    }
};

}  // namespace
}  // namespace edgekv
