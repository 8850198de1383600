// Generators for sketches on host and device: keys, queries and what tokens see, of one case; and the tolerance of a scan.
#pragma once

#include <cstdio>
#include <string>

#include "cell_rows.h"
#include "kernels/sketch/sketch_internal.h"

namespace test {

using edgekv::kGroupCells;
using edgekv::Sight;
using edgekv::SketchKeys;
using edgekv::SketchQuery;

constexpr uint16_t kUntouched = 0x7fc1;  // no share

enum class KeyData { normal, offset, outlier_channel, outlier_cell, constant, zero, tiny, huge, subnormal, negative_zero, far_apart, count };

struct SketchCase {
    int head_dim, n_head_kv, n_streams, n_groups, group, n_tokens;
    CellType type;
    KeyData data;
    float scale, softcap;
    bool partial;       // some cells and groups hold nothing; cells and heads have gaps
    bool partly_seen;   // tokens see some cells of a group
    bool arena;         // some pages lie there
    bool device;        // strides as the device's loads want them
    bool level = false; // queries have no outlier

    int n_queries() const { return n_tokens * group; }  // of a KV head and a stream
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "d%d kv %d streams %d groups %d group %d tokens %d k%d data %d scale %g softcap %g partial %d seen %d arena %d",
                      head_dim, n_head_kv, n_streams, n_groups, group, n_tokens, static_cast<int>(type), static_cast<int>(data), scale, softcap,
                      partial, partly_seen, arena);
        return s;
    }
};

// Cells without a key hold NaN.
struct SketchInstance {
    size_t key_bytes, stride_head, stride_cell, stride_stream, sight_stride;
    size_t q_stride_head, q_stride_token;  // bytes
    Bytes k;                      // [stream][cell][head]; ends where the last element does, and so does q
    AtEndVector<float> q;         // [stream][token][head]
    std::vector<uint64_t> valid;  // [stream][group]
    std::vector<Sight> sight;     // [stream][token][sight_stride]
    double largest_logit = 0.0;   // no logit can be larger, nor any of its terms' sums

    SketchInstance(const SketchCase & c, uint64_t seed) {
        Random rng(seed);
        const auto some = [&](uint64_t of) {  // of a set of cells all, none, those up to one, a half
            const uint64_t r = rng.next(), random = rng.next();
            return of & (r % 5 <= 1 ? ~uint64_t{0} : r % 5 == 2 ? 0 : r % 5 == 3 ? ~uint64_t{0} >> (random >> 58) : random >> 3 ^ random << 30);
        };
        for (int g = 0; g < c.n_streams * c.n_groups; ++g) {
            valid.push_back(c.partial ? some(~uint64_t{0}) : ~uint64_t{0});
        }
        sight_stride = static_cast<size_t>(c.n_groups) + 1;
        for (int t = 0; t < c.n_streams * c.n_tokens; ++t) {
            for (int g = 0; g <= c.n_groups; ++g) {
                const uint64_t all = g == c.n_groups ? ~uint64_t{0} : valid[t / c.n_tokens * c.n_groups + g];
                const uint64_t visible = c.partly_seen && g < c.n_groups ? some(all) : all;
                sight.push_back({visible, visible & rng.next()});
            }
        }
        const float largest_key = make_keys(c, rng);
        q_stride_head = (static_cast<size_t>(c.head_dim) + (!c.partial ? 0 : c.device ? 8 : 5)) * 4;
        q_stride_token = q_stride_head * c.n_head_kv * c.group;
        q.resize(q_stride_head / 4 * (c.n_streams * c.n_tokens * c.n_head_kv * c.group - 1) + c.head_dim);
        for (int t = 0; t < c.n_streams * c.n_tokens; ++t) {
            for (int g = 0; g < c.group; ++g) {
                double sum = 0.0;
                for (int i = 0; i < c.head_dim; ++i) {
                    // plain, one channel far above the others, and the fifth all zero or next to nothing; or the largest sums that there can be
                    const float x = c.data == KeyData::far_apart ? 2.0f
                                    : g % 5 != 4                 ? (g % 5 == 1 && i == 3 && !c.level ? 25.0f : 2.0f) * rng.normal()
                                                                 : t % 2 * 1e-33f * static_cast<float>(i % 3 - 1);
                    for (int h = 0; h < c.n_head_kv; ++h) {
                        q[(t * q_stride_token + (h * c.group + g) * q_stride_head) / 4 + i] = h % 2 == 0 ? x : -x;
                    }
                    sum += std::fabs(x * c.scale);
                }
                largest_logit = std::max(largest_logit, sum * largest_key);
            }
        }
    }

    SketchKeys keys(const SketchCase & c, int stream) const { return {c.type, k.data() + stream * stride_stream, stride_cell, stride_head}; }
    const char * key(int stream, int head, int group, int cell) const {
        return k.data() + stream * stride_stream + (static_cast<size_t>(group) * kGroupCells + cell) * stride_cell + head * stride_head;
    }
    uint64_t valid_of(const SketchCase & c, int stream, int group) const { return valid[stream * c.n_groups + group]; }
    // `index` is token * group + head of the group.
    const float * query_row(const SketchCase & c, int stream, int head, int index) const {
        const size_t token = static_cast<size_t>(stream) * c.n_tokens + index / c.group;
        return q.data() + (token * q_stride_token + (head * c.group + index % c.group) * q_stride_head) / 4;
    }
    uint64_t visible(const SketchCase & c, int stream, int group, int index) const {
        return sight[(stream * c.n_tokens + index / c.group) * sight_stride + group].visible;
    }
    // Those of `n` tokens.
    SketchQuery query(const SketchCase & c, int stream, int head, int token, int n) const {
        return {reinterpret_cast<const char *>(query_row(c, stream, head, token * c.group)), q_stride_token, q_stride_head, n, c.group, c.scale,
                c.softcap, sight.data() + (stream * c.n_tokens + token) * sight_stride, sight_stride};
    }

private:
    // Returns the largest value.
    float make_keys(const SketchCase & c, Random & rng) {
        const int n_cells = c.n_groups * kGroupCells;
        key_bytes = row_bytes(c.type, c.head_dim);
        stride_head = key_bytes + (c.partial ? 6 : 0);
        stride_cell = stride_head * c.n_head_kv + (c.partial ? 10 : 0);
        stride_stream = stride_cell * n_cells;
        const auto value = [&](int cell, int head, int channel) { return key_value(c.data, head, cell, channel, rng); };
        CacheRows rows = cache_rows({c.type, c.head_dim, c.n_head_kv, c.n_streams * n_cells, stride_head - key_bytes, c.partial ? size_t{10} : 0},
                                    value, [&](int cell) { return !(valid[cell / kGroupCells] >> (cell % kGroupCells) & 1); });
        k = std::move(rows.bytes);
        return static_cast<float>(rows.largest);
    }

    static float key_value(KeyData data, int head, int cell, int channel, Random & rng) {
        const float x = rng.normal();
        switch (data) {
            case KeyData::normal: break;
            case KeyData::offset: return x + 3.0f * static_cast<float>((channel * 37 + head) % 7 - 3);
            case KeyData::outlier_channel: return channel == 5 ? 200.0f + 30.0f * x : x;
            case KeyData::outlier_cell: return cell % 61 == 7 ? 300.0f * x : x;
            case KeyData::constant: return static_cast<float>(channel % 11) - 4.0f;
            case KeyData::far_apart: return cell % 2 == 0 ? 1.0f : -1.0f;
            case KeyData::zero: return 0.0f;
            case KeyData::tiny: return x * 1e-6f;
            case KeyData::huge: return std::fmax(std::fmin(x * 20000.0f, 60000.0f), -60000.0f);
            case KeyData::subnormal: return x * 2e-7f;
            case KeyData::negative_zero: return (channel + cell) % 3 == 0 ? -0.0f : (channel + cell) % 3 == 1 ? 0.0f : -std::fabs(x);
            case KeyData::count: break;
        }
        return x;
    }
};

// How far a logit from the sketch of a group may be off the specification: the worst case that sketch_reference.cpp states.
struct SketchSpans {
    std::vector<double> step, low;  // exact, by channel
    double step_scale = 0.0, low_scale = 0.0;

    SketchSpans(const SketchCase & c, const SketchInstance & in, int stream, int head, int group) {
        double top_step = 0.0, top_low = 0.0;
        for (int i = 0; i < c.head_dim; ++i) {
            double least = kInf, most = -kInf;
            for (int cell = 0; cell < kGroupCells; ++cell) {
                if (in.valid_of(c, stream, group) >> cell & 1) {
                    const double x = channel(c.type, in.key(stream, head, group, cell), i);
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

    // `variance`, where asked for: of what codes that round evenly would add.
    double tolerance(const SketchCase & c, const float * q, double * variance = nullptr) const {
        double amax = 0.0, sum = 0.0, total = 0.0, squares = 0.0;
        for (int i = 0; i < c.head_dim; ++i) {
            amax = std::fmax(amax, std::fabs(static_cast<double>(q[i]) * c.scale));
        }
        const double fine = amax / edgekv::kFineMax, coarse = amax / edgekv::kCoarseMax;
        for (int i = 0; i < c.head_dim; ++i) {
            const double x = std::fabs(static_cast<double>(q[i]) * c.scale);
            sum += x * (step[i] + 3.5 * step_scale + low_scale / 2);
            sum += 7 * 0.504 * fine * 32768 * step_scale;
            sum += coarse * 0.501 * (std::fabs(low[i]) + low_scale);
            squares += std::pow(x * step[i], 2);
            total += x * (std::fabs(low[i]) + 7 * step[i]);
        }
        if (variance != nullptr) {
            *variance = squares;
        }
        // a query that cannot be told from zero is taken for it
        return sum + (amax > 1e-30 ? 0x1p-20 : 1.0) * total + c.softcap * 0x1p-16;
    }
};

}  // namespace test
