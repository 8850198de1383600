// edgekv_try_kernel(): kernels of a device on random inputs, against the references that the processor's kernels are tested with.
#include "attention/cuda/trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "api/internal.h"
#include "attention/cuda/library.h"
#include "kernels/half.h"

namespace edgekv {
namespace trials {
namespace {

constexpr int kPageTokens = 16;
constexpr double kUnit    = 0x1p-24;  // half a unit in the last place of a float at 1

struct Numbers {
    std::mt19937_64 engine;
    float normal() {  // roughly; the same on every machine
        float sum = -2.0f;
        for (int i = 0; i < 4; ++i) {
            sum += static_cast<float>(engine() >> 40)*0x1p-24f;
        }
        return sum*1.7320508f;
    }
    std::vector<float> normals(size_t n) {
        std::vector<float> x(n);
        std::generate(x.begin(), x.end(), [&] { return normal(); });
        return x;
    }
    bool one_of(unsigned n) { return engine() % n == 0; }
};

// The largest distance that set_rows may leave between a number and its stored form: half a step, and one unit in the scale's last place, by which a
// card's division may be off.
double step_of(CellType type, const float * block, float x) {
    if (type == CellType::f16) {
        return std::fabs(x)*0x1p-11 + 0x1p-25;
    }
    const float most = *std::max_element(block, block + kQuantBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const double step = std::fabs(most)/(type == CellType::q8_0 ? 127.0 : 8.0);
    // of q4_0 the number that lies opposite to the largest is cut off by up to a whole step
    return step*(type == CellType::q8_0 ? 0.5 : most*x < 0 ? 1.0 : 0.5) + std::fabs(x)*0x1p-9 + step*0x1p-9;
}

double length(const float * x, int n) { return std::sqrt(std::inner_product(x, x + n, x, 0.0)); }

CellType type_of(int number) { return number == 8 ? CellType::q8_0 : number == 2 ? CellType::q4_0 : CellType::f16; }

// `worst` of errors in units of what is allowed; not a number is wrong
struct Worst {
    double error = 0;
    void of(double got, double want, double allowed) {
        const double e = got == want ? 0.0 : std::fabs(got - want)/allowed;
        error = e <= error ? error : std::isnan(e) ? HUGE_VAL : e;
    }
};

struct Rows {
    std::vector<char> bytes;
    double longest = 0, largest = 0;

    Rows(Numbers & numbers, CellType type, const edgekv_kernel_case & c) {
        const size_t n_bytes = bytes_of_row(type, c.head_dim), n = static_cast<size_t>(c.n_cells)*c.n_head_kv;
        bytes.resize(n*n_bytes);
        for (size_t i = 0; i < n; ++i) {
            store_row(type, numbers.normals(c.head_dim).data(), c.head_dim, bytes.data() + i*n_bytes);
            double squares = 0;
            for (int j = 0; j < c.head_dim; ++j) {
                const double x = channel(type, bytes.data() + i*n_bytes, j);
                squares += x*x;
                largest = std::max(largest, std::fabs(x));
            }
            longest = std::max(longest, std::sqrt(squares));
        }
    }
};

bool attend(const DeviceLibrary & library, int index, const edgekv_kernel_case & c, bool lists, edgekv_kernel_result & out) {
    Numbers numbers{ std::mt19937_64(c.seed) };
    const CellType k_type = type_of(c.type_k), v_type = type_of(c.type_v);
    const Rows k(numbers, k_type, c), v(numbers, v_type, c);
    std::vector<float> q = numbers.normals(static_cast<size_t>(c.n_tokens)*c.n_head*c.head_dim);
    for (size_t i = 0; i < q.size(); ++i) {  // the reference quantises queries of K in blocks, the card does not: these are the same for both
        q[i] = !in_blocks(k_type) ? q[i] : i%32 == 3 ? 127*0.03125f : std::rint(std::min(std::max(q[i]*32.0f, -127.0f), 127.0f))*0.03125f;
    }
    double longest = 0;
    for (size_t i = 0; i < q.size(); i += c.head_dim) {
        longest = std::max(longest, length(q.data() + i, c.head_dim));
    }

    AttendProblem p{};
    p.head_dim = c.head_dim, p.n_head = c.n_head, p.n_head_kv = c.n_head_kv;
    p.n_tokens = c.n_tokens, p.n_cells = c.n_cells, p.page_tokens = kPageTokens;
    p.q = reinterpret_cast<const char *>(q.data());
    p.q_stride_head = static_cast<size_t>(c.head_dim)*4, p.q_stride_token = p.q_stride_head*c.n_head;
    p.k_type = k_type, p.v_type = v_type;
    p.k = k.bytes.data(), p.v = v.bytes.data();
    p.k_stride_head = bytes_of_row(k_type, c.head_dim), p.k_stride_cell = p.k_stride_head*c.n_head_kv;
    p.v_stride_head = bytes_of_row(v_type, c.head_dim), p.v_stride_cell = p.v_stride_head*c.n_head_kv;
    p.scale = 1.0f/std::sqrt(static_cast<float>(c.head_dim));

    std::vector<uint16_t> mask(static_cast<size_t>(c.n_tokens)*c.n_cells);  // f16: the tokens are the newest of a view that they fill
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int i = 0; i < c.n_cells; ++i) {
            mask[static_cast<size_t>(t)*c.n_cells + i] = i <= c.n_cells - c.n_tokens + t ? 0 : 0xfc00;
        }
    }
    p.mask_type = MaskType::f16, p.mask = reinterpret_cast<const char *>(mask.data()), p.mask_stride_token = static_cast<size_t>(c.n_cells)*2;

    std::vector<int32_t> cells, n_rows;
    std::vector<float> weights;
    if (lists) {
        cells.assign(static_cast<size_t>(c.n_tokens)*c.n_head_kv*c.n_cells, 0);
        weights.assign(cells.size(), 0.0f);
        for (int list = 0; list < c.n_tokens*c.n_head_kv; ++list) {
            int n = 0;
            for (int i = 0; i <= c.n_cells - c.n_tokens + list/c.n_head_kv; ++i) {
                if (numbers.one_of(8)) {
                    cells[static_cast<size_t>(list)*c.n_cells + n]     = i;
                    weights[static_cast<size_t>(list)*c.n_cells + n++] = 1.0f + std::fabs(numbers.normal());
                }
            }
            n_rows.push_back(n);
        }
        p.rows = { cells.data(), weights.data(), n_rows.data(), static_cast<size_t>(c.n_cells) };
    }

    // every third page of a head lies in the arena, and home has NaN in its place
    const int n_pages = (c.n_cells + kPageTokens - 1)/kPageTokens;
    std::vector<char> home_k = k.bytes, home_v = v.bytes, arena;
    std::vector<int32_t> slots(static_cast<size_t>(c.n_head_kv)*n_pages, -1);
    p.arena.v_offset = kPageTokens*p.k_stride_head, p.arena.slot_bytes = (p.arena.v_offset + kPageTokens*p.v_stride_head + 63)/64*64;
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int page = h%3; page < n_pages; page += 3) {
            slots[static_cast<size_t>(h)*n_pages + page] = static_cast<int32_t>(arena.size()/p.arena.slot_bytes);
            arena.resize(arena.size() + p.arena.slot_bytes, '\xff');
            char * slot = arena.data() + arena.size() - p.arena.slot_bytes;
            for (int i = 0; i < std::min(kPageTokens, c.n_cells - page*kPageTokens); ++i) {
                const size_t cell = static_cast<size_t>(page)*kPageTokens + i, at_k = cell*p.k_stride_cell + h*p.k_stride_head,
                             at_v = cell*p.v_stride_cell + h*p.v_stride_head;
                std::copy_n(p.k + at_k, p.k_stride_head, slot + i*p.k_stride_head);
                std::copy_n(p.v + at_v, p.v_stride_head, slot + p.arena.v_offset + i*p.v_stride_head);
                std::fill_n(home_k.data() + at_k, p.k_stride_head, '\xff');
                std::fill_n(home_v.data() + at_v, p.v_stride_head, '\xff');
            }
        }
    }
    p.arena.data = arena.data(), p.arena.slots = slots.data(), p.arena.slots_stride = n_pages;

    std::vector<float> sinks = numbers.normals(c.n_head);
    std::for_each(sinks.begin(), sinks.end(), [&](float & sink) { sink += std::log(static_cast<float>(c.n_cells)); });  // about as much as all cells
    p.sinks = c.seed % 2 == 0 ? sinks.data() : nullptr;
    p.softcap = c.seed % 3 == 0 ? 30.0f : 0.0f;
    p.out_stride_head = p.q_stride_head, p.out_stride_token = p.q_stride_token, p.mass_stride = n_pages;
    const auto results = [&](std::vector<float> & o, std::vector<float> & top, std::vector<float> & sum) {
        o.resize(q.size()), top.resize(slots.size()), sum.resize(slots.size());
        AttendProblem with = p;
        with.out = reinterpret_cast<char *>(o.data()), with.mass_max = top.data(), with.mass_sum = sum.data();
        return with;
    };
    std::vector<float> want, want_top, want_sum, got, got_top, got_sum;
    attend_reference(results(want, want_top, want_sum));
    AttendTrial trial{ results(got, got_top, got_sum), home_k.data(), home_v.data(), arena.size()/p.arena.slot_bytes, mask.size()*2 };
    TrialRuns runs;
    if (!library.try_attend(index, trial, runs)) {
        return false;
    }

    // as in native/tests/device/test_attend_device.cpp
    const double score = p.scale*longest*k.longest, logit = kUnit*(3.5*std::sqrt(13.0)*score + 2*(score + p.softcap) + 8);
    const double allowed = 2*(2*logit + 3.5*std::sqrt(c.n_cells)*kUnit), mass_allowed = allowed*c.n_head/c.n_head_kv*c.n_tokens + kUnit*c.n_tokens*8;
    Worst worst;
    for (size_t i = 0; i < want.size(); ++i) {
        worst.of(got[i], want[i], allowed*v.largest);
    }
    for (size_t i = 0; i < want_sum.size(); ++i) {
        worst.of(got_top[i], want_top[i], mass_allowed);
        worst.of(got_sum[i], want_sum[i], mass_allowed);
    }
    out = { worst.error, runs.same, runs.inside };
    return true;
}

bool store(const DeviceLibrary & library, int index, const edgekv_kernel_case & c, bool scan, edgekv_kernel_result & out) {
    Numbers numbers{ std::mt19937_64(c.seed) };
    StoreTrial t{};
    t.head_dim = c.head_dim, t.n_head = c.n_head, t.n_head_kv = c.n_head_kv, t.n_cells = (c.n_cells + kGroupCells - 1)/kGroupCells*kGroupCells;
    t.k_type = type_of(c.type_k), t.v_type = type_of(c.type_v);
    const int n_groups = t.n_cells/kGroupCells;
    const size_t n = static_cast<size_t>(t.n_cells)*t.n_head_kv, k_bytes = bytes_of_row(t.k_type, t.head_dim), v_bytes = bytes_of_row(t.v_type, t.head_dim);
    const std::vector<float> k = numbers.normals(n*t.head_dim), v = numbers.normals(n*t.head_dim), q = numbers.normals(static_cast<size_t>(t.n_head)*t.head_dim);
    std::vector<int64_t> cells(t.n_cells);
    std::iota(cells.begin(), cells.end(), 0);
    std::shuffle(cells.begin(), cells.end(), numbers.engine);
    const std::vector<Sight> sight(n_groups, { ~uint64_t{0}, 0 });
    t.k = k.data(), t.v = v.data(), t.cells = cells.data(), t.q = q.data(), t.sight = sight.data();
    t.scale = 1.0f/std::sqrt(static_cast<float>(t.head_dim));
    t.home_k.assign(n*k_bytes, '\xff'), t.home_v.assign(n*v_bytes, '\xff');
    t.sketches.assign((sketch_bytes(t.head_dim, t.n_head_kv, n_groups) + 63)/64*64, '\x5c');
    t.shares.assign(static_cast<size_t>(t.n_head)*t.n_cells, 0);
    t.tops.assign(static_cast<size_t>(t.n_head)*n_groups, 0.0f), t.sums = t.tops;
    const std::vector<char> before = t.sketches;
    TrialRuns runs;
    if (!library.try_store(index, t, runs)) {
        return false;
    }

    Worst worst;
    double longest = 0;
    for (int token = 0; token < t.n_cells; ++token) {
        for (int h = 0; h < t.n_head_kv; ++h) {
            const size_t from = (static_cast<size_t>(token)*t.n_head_kv + h)*t.head_dim, to = static_cast<size_t>(cells[token])*t.n_head_kv + h;
            longest = std::max(longest, length(&k[from], t.head_dim));
            for (int i = 0; i < t.head_dim && !scan; ++i) {
                const size_t block = from + i/kQuantBlock*kQuantBlock;
                worst.of(channel(t.k_type, &t.home_k[to*k_bytes], i), k[from + i], step_of(t.k_type, &k[block], k[from + i]));
                worst.of(channel(t.v_type, &t.home_v[to*v_bytes], i), v[from + i], step_of(t.v_type, &v[block], v[from + i]));
            }
        }
    }
    // the processor's sketches of the same rows, and its scan of the card's
    const SketchKeys keys = { t.k_type, t.home_k.data(), k_bytes*t.n_head_kv, k_bytes };
    std::vector<char> want = before;
    const Sketch built = { t.head_dim, t.n_head_kv, n_groups, want.data() }, given = { t.head_dim, t.n_head_kv, n_groups, t.sketches.data() };
    double longest_query = 0;
    for (int h = 0; h < t.n_head; ++h) {
        longest_query = std::max(longest_query, length(&q[static_cast<size_t>(h)*t.head_dim], t.head_dim));
    }
    const double limit = 2e-4 + 0x1p-20*t.scale*longest*longest_query;  // as in native/tests/device/test_sketch_device.cpp
    const int group = t.n_head/t.n_head_kv;
    for (int h = 0; h < t.n_head_kv; ++h) {
        for (int g = 0; g < n_groups && !scan; ++g) {
            sketch_build(built, keys, h, g, ~uint64_t{0}, Isa::portable);
        }
        if (scan) {
            std::vector<uint16_t> shares(static_cast<size_t>(group)*t.n_cells);
            std::vector<float> tops(static_cast<size_t>(group)*n_groups), sums = tops;
            const Shares result = { shares.data(), tops.data(), sums.data(), static_cast<size_t>(t.n_cells), static_cast<size_t>(n_groups) };
            const size_t row = static_cast<size_t>(t.head_dim)*4;
            const SketchQuery query = { reinterpret_cast<const char *>(q.data()) + h*group*row, row*t.n_head, row, 1, group, t.scale, 0.0f, sight.data(),
                                        static_cast<size_t>(n_groups) };
            std::vector<char> prepared(sketch_query_bytes(t.head_dim, group));
            sketch_query_prepare(given, query, prepared.data(), Isa::portable);
            sketch_scan(given, query, prepared.data(), h, 0, n_groups, result, Isa::portable);
            for (size_t i = 0; i < tops.size(); ++i) {
                worst.of(t.tops[h*tops.size() + i], tops[i], limit);
                worst.of(t.sums[h*tops.size() + i], sums[i], (0x1p-7 + 2*limit)*sums[i]);
            }
            for (size_t i = 0; i < shares.size(); ++i) {
                const auto value = [](uint16_t half) {
                    const uint32_t bits = static_cast<uint32_t>(half) << 16;
                    float x;
                    std::memcpy(&x, &bits, sizeof(x));
                    return x;
                };
                const double share = value(shares[i]);
                worst.of(value(t.shares[h*shares.size() + i]), share, (0x1p-7 + 2*limit)*share + 1e-30);
            }
        }
    }
    worst.of(!scan && want != t.sketches, 0, 1e-9);
    out = { worst.error, runs.same, runs.inside };
    return true;
}

}  // namespace
}  // namespace trials
}  // namespace edgekv

using namespace edgekv;

edgekv_status edgekv_try_kernel(edgekv_device_kind kind, int index, edgekv_kernel kernel, const edgekv_kernel_case * c, edgekv_kernel_result * out) {
    const DeviceLibrary * library = open_device_library(kind);
    if (library == nullptr || index < 0 || index >= library->count()) {
        return fail(EDGEKV_UNSUPPORTED, "there is no such device");
    }
    const bool attends = kernel == EDGEKV_KERNEL_ATTEND || kernel == EDGEKV_KERNEL_ATTEND_LISTS;
    if (c->head_dim < 1 || c->n_head_kv < 1 || c->n_head % c->n_head_kv != 0 || c->n_tokens < 1 || c->n_tokens > kMaxQueryTokens || c->n_cells < c->n_tokens ||
        !attend_supports(c->head_dim, trials::type_of(c->type_k), trials::type_of(c->type_v))) {
        return fail(EDGEKV_INVALID, "no kernel serves such heads");
    }
    const bool done = attends ? trials::attend(*library, index, *c, kernel == EDGEKV_KERNEL_ATTEND_LISTS, *out)
                              : trials::store(*library, index, *c, kernel == EDGEKV_KERNEL_SCAN, *out);
    return done ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, library->last_error());
}
