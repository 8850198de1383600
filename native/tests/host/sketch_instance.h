// What test_sketch.cpp scans: keys, queries and their sketches of one case, and what the kernels make of them.
#pragma once

#include <cstdio>
#include <limits>
#include <string>

#include "at_end.h"
#include "attend_cases.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kLn2 = 0.69314718055994531;
constexpr double kShareStep = kLn2 / 128;  // of a logit
constexpr uint16_t kUntouched = 0x7fc1;    // no share
constexpr uint16_t kOne = 0x3f80;

enum class Data { normal, offset, outlier_channel, outlier_cell, constant, zero, tiny, huge, count };

struct Case {
    int head_dim, n_head_kv, n_groups, n_tokens, group;
    CellType type;
    Data data;
    float scale, softcap;
    bool partial;
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "d%d kv %d groups %d tokens %d group %d k%d data %d scale %g softcap %g partial %d", head_dim,
                      n_head_kv, n_groups, n_tokens, group, static_cast<int>(type), static_cast<int>(data), scale, softcap, partial);
        return s;
    }
};

int failures = 0;
double worst = 0.0;                             // error in units of the worst case
double worst_rms = 0.0, worst_rms_true = 0.0;   // in units of sqrt(sum (q s)^2)

void fail(const Case & c, const char * kernels, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s: %s: got %.9g, want %.9g [%s]\n", kernels, what, got, want, c.name().c_str());
    }
}

// Bytes on a 64-byte border that end where the data does, so that a sanitizer sees any overrun.
struct Aligned {
    std::unique_ptr<char, void (*)(void *)> bytes;
    explicit Aligned(size_t n) : bytes(static_cast<char *>(std::aligned_alloc(64, (n + 63) / 64 * 64)), std::free) {
        std::memset(bytes.get(), 0x5a, n);
    }
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
        case Data::count: break;
    }
    return x;
}

// Keys, queries and what tokens see of them. Where cells hold no key lies NaN.
struct Instance {
    SketchKeys keys{};
    SketchQuery query{};
    cases::Bytes k, q;  // end where the last element does
    std::vector<uint64_t> valid;
    std::vector<Sight> sight;
    double largest_logit = 0.0;  // no logit can be larger, nor any of its terms' sums

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        const size_t bytes = cases::row_bytes(c.type, c.head_dim);
        const int n_cells = c.n_groups * kGroupCells;
        const auto some = [&](uint64_t of) {  // of a set of cells all, none, those up to one, a half
            const uint64_t r = rng.next(), random = rng.next();
            return of & (r % 5 <= 1 ? ~uint64_t{0} : r % 5 == 2 ? 0 : r % 5 == 3 ? ~uint64_t{0} >> (random >> 58) : random >> 3 ^ random << 30);
        };
        for (int g = 0; g < c.n_groups; ++g) {
            valid.push_back(c.partial ? some(~uint64_t{0}) : ~uint64_t{0});
        }
        query.sight_stride = static_cast<size_t>(c.n_groups) + 1;
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int g = 0; g <= c.n_groups; ++g) {
                const uint64_t visible = g == c.n_groups ? ~uint64_t{0} : c.partial ? some(valid[g]) : valid[g];
                sight.push_back({visible, visible & rng.next()});
            }
        }
        query.sight = sight.data();
        keys.type = c.type;
        keys.stride_head = bytes + (c.partial ? 6 : 0);
        keys.stride_cell = keys.stride_head * c.n_head_kv + (c.partial ? 10 : 0);
        k.resize(keys.stride_cell * (n_cells - 1) + keys.stride_head * (c.n_head_kv - 1) + bytes);
        keys.k = k.data();
        std::vector<float> row(static_cast<size_t>(c.head_dim));
        float largest_key = 0.0f;
        for (int cell = 0; cell < n_cells; ++cell) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                char * dst = k.data() + cell * keys.stride_cell + h * keys.stride_head;
                for (int i = 0; i < c.head_dim; ++i) {
                    row[i] = key_value(c.data, h, cell, i, rng);
                    largest_key = std::max(largest_key, std::fabs(row[i]));
                }
                if (valid[cell / kGroupCells] >> (cell % kGroupCells) & 1) {
                    cases::store_row(c.type, row, dst);
                } else {
                    std::memset(dst, 0xff, bytes);  // must not matter
                }
            }
        }
        query.stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.partial ? 20 : 0);
        query.stride_token = query.stride_head * c.group + (c.partial ? 12 : 0);
        query.n_tokens = c.n_tokens;
        query.group = c.group;
        query.scale = c.scale;
        query.softcap = c.softcap;
        q.resize(query.stride_token * (c.n_tokens - 1) + query.stride_head * (c.group - 1) + static_cast<size_t>(c.head_dim) * 4);
        query.q = q.data();
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int g = 0; g < c.group; ++g) {
                double sum = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    // every row different: plain, one channel far above the others, all zero (the fifth)
                    const float x = g % 5 == 4 ? 0.0f : (g % 5 == 1 && i == 3 ? 25.0f : 2.0f) * rng.normal();
                    std::memcpy(q.data() + t * query.stride_token + g * query.stride_head + 4 * i, &x, 4);
                    sum += std::fabs(x * c.scale);
                }
                largest_logit = std::max(largest_logit, sum * largest_key);
            }
        }
    }

    const char * key(int head, int group, int cell) const {
        return keys.k + (static_cast<size_t>(group) * kGroupCells + cell) * keys.stride_cell + head * keys.stride_head;
    }
    std::vector<float> query_row(const Case & c, int row) const {
        std::vector<float> x(static_cast<size_t>(c.head_dim));
        std::memcpy(x.data(), q.data() + row / c.group * query.stride_token + row % c.group * query.stride_head, x.size() * 4);
        return x;
    }
    uint64_t visible(int row, int group, const Case & c) const {
        return sight[row / c.group * query.sight_stride + static_cast<size_t>(group)].visible;
    }
};

// What the tolerances are made of, of one group of one head.
struct Spans {
    std::vector<double> step, low;  // exact
    double step_scale = 0.0, low_scale = 0.0;

    Spans(const Case & c, const Instance & in, int head, int group) {
        double top_step = 0.0, top_low = 0.0;
        for (int i = 0; i < c.head_dim; ++i) {
            double least = kInf, most = -kInf;
            for (int cell = 0; cell < kGroupCells; ++cell) {
                if (in.valid[group] >> cell & 1) {
                    const double x = cases::element(c.type, in.key(head, group, cell), i);
                    least = std::fmin(least, x);
                    most = std::fmax(most, x);
                }
            }
            step.push_back((most - least) / 7);
            low.push_back(least);
            top_step = std::fmax(top_step, step.back());
            top_low = std::fmax(top_low, std::fabs(least));
        }
        step_scale = top_step / 255 * 1.0001 + 1e-32;
        low_scale = top_low / 127 * 1.0001 + 1e-32;
    }
};

// All heads' shares; what no scan should write is marked.
struct Scanned {
    size_t n_rows, cell_stride, group_stride;
    std::vector<uint16_t> cells;
    std::vector<float> tops, sums;

    explicit Scanned(const Case & c) : n_rows(static_cast<size_t>(c.n_tokens) * c.group), cell_stride(c.n_groups * kGroupCells + 5),
        group_stride(static_cast<size_t>(c.n_groups) + 3), cells(cell_stride * n_rows * c.n_head_kv, kUntouched),
        tops(group_stride * n_rows * c.n_head_kv, kNan), sums(tops) {}

    Shares of_head(int head) {
        const size_t row = n_rows * head;
        return {cells.data() + row * cell_stride, tops.data() + row * group_stride, sums.data() + row * group_stride, cell_stride, group_stride};
    }
    uint16_t share(int head, int row, int group, int cell) const {
        return cells[(n_rows * head + row) * cell_stride + static_cast<size_t>(group) * kGroupCells + cell];
    }
    size_t at(int head, int row, int group) const { return (n_rows * head + row) * group_stride + group; }
};

// The least logit that a share can stand for; the most is kShareStep above.
double logit_of(uint16_t share, double top) { return top + (share / 128.0 - 127.0) * kLn2; }

double value_of(uint16_t share) {
    const uint32_t bits = static_cast<uint32_t>(share) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return share < 0x80 ? 0.0 : x;  // subnormals count as zero
}

void build_all(const Case & c, const Instance & in, const SketchKernels & kernels, const Sketch & sketch, bool backwards) {
    const SketchLayout layout = sketch_layout(c.head_dim, c.n_groups);
    const int n = c.n_groups * c.n_head_kv;
    for (int i = 0; i < n; ++i) {
        const int j = backwards ? n - 1 - i : i;
        const int group = j / c.n_head_kv, head = j % c.n_head_kv, other = (group + 1) % c.n_groups;
        if (backwards && j % 3 == 0) {  // something else was there before
            kernels.build(sketch, layout, in.keys, head, other, in.valid[other]);
            kernels.build(sketch, layout, in.keys, head, group, 0);
        }
        kernels.build(sketch, layout, in.keys, head, group, in.valid[group]);
    }
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = 0; g < c.n_groups; ++g) {
            const char * codes = sketch.data + h * layout.head_bytes + static_cast<size_t>(g) * layout.code_bytes;
            const char * params = sketch.data + h * layout.head_bytes + layout.params_offset + static_cast<size_t>(g) * layout.param_bytes;
            bool zero = std::all_of(codes, codes + layout.code_bytes, [](char x) { return x == 0; });
            zero = zero && std::all_of(params, params + layout.param_bytes, [](char x) { return x == 0; });
            if (in.valid[g] == 0 && !zero) {
                fail(c, "", "bytes of an empty group", 1, 0);
            }
        }
    }
}

// Groups in two pieces.
Scanned scan_all(const Case & c, const Instance & in, const SketchKernels & kernels, const Sketch & sketch) {
    const SubnormalsAreZero fast;  // as sketch.cpp has it
    const SketchLayout layout = sketch_layout(c.head_dim, c.n_groups);
    Scanned out(c);
    const size_t bytes = sketch_query_bytes(c.head_dim, c.n_tokens * c.group);
    std::vector<char> prepared(bytes + 64, 0x77);
    kernels.prepare(c.head_dim, layout.padded, in.query, prepared.data());
    for (int h = 0; h < c.n_head_kv; ++h) {
        const int first = c.n_groups / 3;
        kernels.scan(sketch, layout, in.query, prepared.data(), h, first, c.n_groups - first, out.of_head(h));
        kernels.scan(sketch, layout, in.query, prepared.data(), h, 0, first, out.of_head(h));
    }
    if (!std::all_of(prepared.begin() + bytes, prepared.end(), [](char x) { return x == 0x77; })) {
        fail(c, "", "write past the prepared query", 0, 0x77);
    }
    return out;
}

Scanned scan_keys(const Case & c, const Instance & in, const SketchKernels & kernels) {
    const SubnormalsAreZero fast;
    Scanned out(c);
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = c.n_groups - 1; g >= 0; --g) {
            kernels.scan_keys(in.keys, c.head_dim, in.query, h, g, out.of_head(h));
        }
    }
    return out;
}

}  // namespace
}  // namespace edgekv
