// Checks the sketch kernels against sketch_reference() and the true logits.
//   test_sketch [portable|avx2|avx512|avx512vnni]
//
// Tolerances, with s, S, L, fine and coarse as in sketch_reference.cpp, and summed over channels: a key that is off by
// s + S + L / 2 changes a logit by |q| times that; rounding the factors by at most (levels - 1) * 0.504 * fine * 2^15 * S;
// rounding the query by coarse / 2 times |low| (and float arithmetic by 2^-20 of everything). A log-sum-exp moves by no more
// than its largest logit does, and the exponential and logarithm add 0.031. These are worst cases, all errors at once: as they
// are independent, the root of the mean square is checked too, against 0.15 of the root of the sum of squares of |q| * s.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "attend_cases.h"
#include "sketch_internal.h"

using namespace edgekv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr const char * kKinds[] = {"none", "box", "b1", "b2"};

enum class Data { normal, offset, outlier_channel, outlier_cell, constant, zero, tiny, huge, count };

struct Case {
    SketchKind kind;
    int head_dim, n_head_kv, n_strips, group;
    CellType type;
    Data data;
    float scale, softcap;
    bool partial;
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "%s d%d kv %d strips %d group %d k%d data %d scale %g softcap %g partial %d",
                      kKinds[static_cast<int>(kind)], head_dim, n_head_kv, n_strips, group, static_cast<int>(type),
                      static_cast<int>(data), scale, softcap, partial);
        return s;
    }
};

int failures = 0;
double worst = 0.0;                // error in units of the worst case
double worst_rms[4] = {};          // by kind, in units of sqrt(sum (q s)^2)

void fail(const Case & c, const char * kernels, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s: %s: got %.9g, want %.9g [%s]\n", kernels, what, got, want, c.name().c_str());
    }
}

// Bytes on a 64-byte border that end where the data does, so that a sanitizer sees any overrun.
struct Aligned {
    std::unique_ptr<char, void (*)(void *)> bytes;
    size_t size;
    explicit Aligned(size_t n) : bytes(static_cast<char *>(std::aligned_alloc(64, (n + 63) / 64 * 64)), std::free), size(n) {
        std::memset(bytes.get(), 0, n);
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

struct Instance {
    SketchKeys keys{};
    SketchQuery query{};
    std::vector<char> k, q;
    std::vector<uint32_t> valid;
    double largest_logit = 0.0;  // no logit can be larger, nor any of its terms' sums

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        const size_t bytes = cases::row_bytes(c.type, c.head_dim);
        const int n_cells = c.n_strips * kSketchStripCells;
        for (int s = 0; s < c.n_strips; ++s) {
            const uint64_t r = rng.next();
            valid.push_back(!c.partial || r % 4 == 0 ? 0xffffu : r % 4 == 1 ? 0u : static_cast<uint32_t>(r >> 20) & 0xffffu);
        }
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
                if (valid[cell / kSketchStripCells] >> (cell % kSketchStripCells) & 1) {
                    cases::store_row(c.type, row, dst);
                } else {
                    std::memset(dst, 0xff, bytes);  // must not matter: NaN for f16 and for the block scales
                }
            }
        }
        query.stride_head = static_cast<size_t>(c.head_dim) * 4 + (c.partial ? 20 : 0);
        query.group = c.group;
        query.scale = c.scale;
        query.softcap = c.softcap;
        q.resize(query.stride_head * (c.group - 1) + static_cast<size_t>(c.head_dim) * 4);
        query.q = q.data();
        for (int g = 0; g < c.group; ++g) {
            double sum = 0.0;
            for (int i = 0; i < c.head_dim; ++i) {
                // every row different: plain, one channel far above the others, all zero (the fifth)
                const float x = g % 5 == 4 ? 0.0f : (g % 5 == 1 && i == 3 ? 25.0f : 2.0f) * rng.normal();
                std::memcpy(q.data() + g * query.stride_head + 4 * i, &x, 4);
                sum += std::fabs(x * c.scale);
            }
            largest_logit = std::max(largest_logit, sum * largest_key);
        }
    }
};

// What the tolerances are made of, of one strip of one head.
struct Spans {
    std::vector<double> step, low;  // exact
    std::vector<std::vector<double>> key;
    double step_scale = 0.0, low_scale = 0.0, box_scale = 0.0, reach = 0.0;  // reach: sum of the largest |key|

    Spans(const Case & c, const Instance & in, int head, int strip) {
        double top_step = 0.0, top_low = 0.0, top = 0.0;
        std::vector<int> cells;
        for (int j = 0; j < kSketchStripCells; ++j) {
            if (in.valid[strip] >> j & 1) {
                cells.push_back(j);
            }
        }
        const std::vector<int> given = cells;
        for (size_t i = 0; cells.size() < kSketchStripCells; ++i) {
            cells.push_back(given[i % given.size()]);
        }
        for (int j : cells) {
            key.emplace_back();
            const char * row = in.keys.k + (static_cast<size_t>(strip) * kSketchStripCells + j) * in.keys.stride_cell +
                               head * in.keys.stride_head;
            for (int i = 0; i < c.head_dim; ++i) {
                key.back().push_back(element(c.type, row, i));
            }
        }
        for (int i = 0; i < c.head_dim; ++i) {
            double least = kInf, most = -kInf, mean = 0.0, residual = 0.0;
            for (const auto & row : key) {
                least = std::fmin(least, row[i]);
                most = std::fmax(most, row[i]);
                mean += row[i] / kSketchStripCells;
            }
            for (const auto & row : key) {
                residual += std::fabs(row[i] - mean) / kSketchStripCells;
            }
            step.push_back(c.kind == SketchKind::b2 ? (most - least) / 3 : 2 * residual);
            low.push_back(c.kind == SketchKind::b2 ? least : mean - residual);
            top_step = std::fmax(top_step, step.back());
            top_low = std::fmax(top_low, std::fabs(low.back()));
            top = std::fmax(top, std::fmax(-least, most));
            reach += std::fmax(-least, most);
        }
        step_scale = top_step / 255 * 1.0001;
        low_scale = (top_low + top_step / 100) / 127;
        box_scale = top / 127;
        reach += c.head_dim * box_scale;
    }

    static double element(CellType type, const char * row, int i) {
        uint16_t half;
        std::memcpy(&half, type == CellType::f16 ? row + 2 * i : row + i / 32 * 34, 2);
        const int exponent = half >> 10 & 31;
        const double x = exponent == 0 ? std::ldexp(half & 1023, -24) : std::ldexp((half & 1023) + 1024, exponent - 25);
        const double value = half & 0x8000 ? -x : x;
        return type == CellType::f16 ? value : value * static_cast<int8_t>(row[i / 32 * 34 + 2 + i % 32]);
    }
};

void build_all(const Case & c, const Instance & in, const SketchKernels & kernels, const Sketch & sketch, bool backwards) {
    const SketchLayout layout = sketch_layout(c.kind, c.head_dim, c.n_strips);
    const int n = c.n_strips * c.n_head_kv;
    for (int i = 0; i < n; ++i) {
        const int j = backwards ? n - 1 - i : i;
        const int strip = j / c.n_head_kv, head = j % c.n_head_kv;
        if (backwards && j % 3 == 0) {  // something else was there before
            kernels.build(sketch, layout, in.keys, head, (strip + 1) % c.n_strips, in.valid[(strip + 1) % c.n_strips]);
            kernels.build(sketch, layout, in.keys, head, strip, 0);
        }
        kernels.build(sketch, layout, in.keys, head, strip, in.valid[strip]);
    }
}

void check_estimate(const Case & c, const Instance & in, const char * name, const Spans & spans, int head, int strip, int g,
                    double got, double & square, double & expected) {
    std::vector<float> q(static_cast<size_t>(c.head_dim));
    std::memcpy(q.data(), in.query.q + g * in.query.stride_head, q.size() * 4);
    const double want = sketch_reference(c.kind, in.keys, c.head_dim, head, strip, in.valid[strip], q.data(), c.scale, c.softcap);
    double amax = 0.0, tolerance = 0.0, total = 0.0, variance = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
        amax = std::fmax(amax, std::fabs(q[i] * c.scale));
    }
    const double fine = amax / kFineMax, coarse = amax / kCoarseMax;
    for (int i = 0; i < c.head_dim; ++i) {
        const double x = std::fabs(static_cast<double>(q[i]) * c.scale);
        if (c.kind == SketchKind::box) {
            tolerance += x * spans.box_scale * 1.001;
        } else {
            tolerance += x * (spans.step[i] + spans.step_scale + spans.low_scale / 2);
            tolerance += (c.kind == SketchKind::b2 ? 3 : 1) * 0.504 * fine * 32768 * spans.step_scale;
            tolerance += coarse * 0.501 * (std::fabs(spans.low[i]) + spans.low_scale);
            variance += std::pow(x * spans.step[i], 2);
        }
        total += x * (std::fabs(spans.low[i]) + 3 * spans.step[i]);
    }
    tolerance += 0x1p-20 * (total + std::fabs(want)) + (c.kind == SketchKind::box ? 1.1 * fine * spans.reach : 0.031);
    tolerance += c.softcap * 0x1p-16;
    if (c.kind == SketchKind::box) {
        double top = -kInf;
        for (const auto & row : spans.key) {
            double logit = 0.0;
            for (int i = 0; i < c.head_dim; ++i) {
                logit += static_cast<double>(q[i]) * c.scale * row[i];
            }
            top = std::fmax(top, c.softcap != 0.0f ? c.softcap * std::tanh(logit / c.softcap) : logit);
        }
        if (!(got >= top)) {
            fail(c, name, "bound is below the largest logit", got, top);
        }
    }
    const double error = std::fabs(got - want);
    if (!(error <= tolerance)) {
        fail(c, name, "estimate", got, want);
    }
    worst = std::max(worst, error / tolerance);
    square += error * error;
    expected += variance;
}

// Scans all heads; blocks in two pieces.
std::vector<float> scan_all(const Case & c, const Instance & in, const SketchKernels & kernels, const Sketch & sketch) {
    const SketchLayout layout = sketch_layout(c.kind, c.head_dim, c.n_strips);
    const size_t width = static_cast<size_t>(layout.n_blocks) * kSketchBlockStrips, stride = width + 3;
    std::vector<float> estimates(stride * c.group * c.n_head_kv, kNan);
    std::vector<char> prepared(sketch_query_bytes(c.kind, c.head_dim, c.group));
    kernels.prepare(sketch, in.query, prepared.data());
    for (int h = 0; h < c.n_head_kv; ++h) {
        float * out = estimates.data() + stride * c.group * h;
        const int first = layout.n_blocks / 3;
        kernels.scan(sketch, layout, in.query, prepared.data(), h, first, layout.n_blocks - first,
                     out + first * kSketchBlockStrips, stride);
        kernels.scan(sketch, layout, in.query, prepared.data(), h, 0, first, out, stride);
    }
    return estimates;
}

void check_case(const Case & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    const Instance in(c, seed);
    const SketchLayout layout = sketch_layout(c.kind, c.head_dim, c.n_strips);
    const size_t bytes = sketch_bytes(c.kind, c.head_dim, c.n_head_kv, c.n_strips);
    const int width = layout.n_blocks * kSketchBlockStrips, stride = width + 3;
    Aligned first(bytes);
    std::vector<float> first_estimates;
    for (size_t n = 0; n < all_kernels.size(); ++n) {
        const SketchKernels & kernels = *sketch_kernels(all_kernels[n]);
        Aligned data(bytes), again(bytes);
        const Sketch sketch{c.kind, c.head_dim, c.n_head_kv, c.n_strips, data.bytes.get()};
        build_all(c, in, kernels, sketch, false);
        build_all(c, in, kernels, {c.kind, c.head_dim, c.n_head_kv, c.n_strips, again.bytes.get()}, true);
        if (std::memcmp(data.bytes.get(), again.bytes.get(), bytes) != 0) {
            fail(c, all_kernels[n], "bytes depend on the order of building", 0, 0);
        }
        const std::vector<float> estimates = scan_all(c, in, kernels, sketch);
        if (n == 0) {
            std::memcpy(first.bytes.get(), data.bytes.get(), bytes);
            first_estimates = estimates;
        } else if (std::memcmp(data.bytes.get(), first.bytes.get(), bytes) != 0) {
            fail(c, all_kernels[n], "bytes differ from the first instruction set's", 0, 0);
        }
        double square = 0.0, expected = 0.0;
        for (int h = 0; h < c.n_head_kv; ++h) {
            for (int s = 0; s < width; ++s) {
                const bool empty = s >= c.n_strips || in.valid[s] == 0;
                const bool sampled = n == 0 && (s < 40 || s % 7 == 0);  // the reference is slow
                const std::unique_ptr<Spans> spans(empty || !sampled ? nullptr : new Spans(c, in, h, s));
                for (int g = 0; g < c.group; ++g) {
                    const size_t at = static_cast<size_t>((h * c.group + g) * stride + s);
                    const double got = estimates[at], other = first_estimates[at];
                    if (empty ? got != -kInf : !(std::fabs(got) < kInf)) {
                        fail(c, all_kernels[n], "empty strips are -inf and only they", got, -kInf);
                    } else if (!empty && !(std::fabs(got - other) <= 2e-4 + 0x1p-21 * in.largest_logit)) {
                        fail(c, all_kernels[n], "estimate differs from the first instruction set's", got, other);
                    } else if (!empty && sampled) {
                        check_estimate(c, in, all_kernels[n], *spans, h, s, g, got, square, expected);
                    }
                }
            }
            for (int g = 0; g < c.group; ++g) {
                for (int s = width; s < stride; ++s) {
                    if (!std::isnan(estimates[static_cast<size_t>((h * c.group + g) * stride + s)])) {
                        fail(c, all_kernels[n], "write past the blocks", 0, kNan);
                    }
                }
            }
        }
        if (n == 0 && c.kind != SketchKind::box && c.data == Data::normal && c.n_strips >= 15 && expected > 0.0) {
            const double rms = std::sqrt(square / expected);
            worst_rms[static_cast<int>(c.kind)] = std::max(worst_rms[static_cast<int>(c.kind)], rms);
            if (rms > 0.15) {
                fail(c, all_kernels[n], "root mean square error", rms, 0.15);
            }
        }
    }
}

void check_all(const std::vector<const char *> & kernels) {
    const int dims[] = {64, 80, 96, 128, 256};
    const int groups[] = {1, 2, 3, 4, 5, 9};
    const int strips[] = {1, 15, 16, 17, 27, 61, 113, 482};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    cases::Random rng(11);
    uint64_t n = 0;
    for (int kind = 1; kind <= 3; ++kind) {
        for (int dim : dims) {
            for (int type = 0; type < 2; ++type) {
                if (!attend_supports(dim, static_cast<CellType>(type), CellType::f16)) {
                    continue;
                }
                for (int i = 0; i < 24; ++i, ++n) {
                    Case c{};
                    c.kind = static_cast<SketchKind>(kind);
                    c.head_dim = dim;
                    c.type = static_cast<CellType>(type);
                    c.n_strips = strips[i % 8];
                    c.group = groups[(i + i / 6) % 6];
                    c.data = static_cast<Data>((i + i / 8) % static_cast<int>(Data::count));
                    c.n_head_kv = c.n_strips > 100 ? 1 : 1 + static_cast<int>(rng.next() % 3);
                    c.scale = (rng.next() % 5 == 0 ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
                    c.softcap = softcaps[rng.next() % 5];
                    c.partial = rng.next() % 2 == 0;
                    check_case(c, n, kernels);
                }
            }
        }
    }
    std::printf("%llu cases, largest error %.3f of the worst case, rms %.3f (b1) %.3f (b2) of |q| step\n",
                static_cast<unsigned long long>(n), worst, worst_rms[2], worst_rms[3]);
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<const char *> kernels;
    for (const char * name : {"portable", "avx2", "avx512", "avx512vnni"}) {
        // the portable bytes and estimates are what the others must agree with
        const bool wanted = argc < 2 || std::strcmp(argv[1], name) == 0 || std::strcmp(name, "portable") == 0;
        if (wanted && sketch_kernels(name) != nullptr) {
            kernels.push_back(name);
        }
    }
    if (argc > 1 && std::strcmp(kernels.back(), argv[1]) != 0) {
        std::printf("no such kernels on this machine\n");
        return 77;
    }
    for (const char * name : kernels) {
        std::printf("%s ", name);
    }
    std::printf("\n");
    check_all(kernels);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
