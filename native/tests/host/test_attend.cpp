// Checks the attention kernels against attend_reference().
//   test_attend [portable|avx2|avx512|avx512vnni]
//
// Tolerances. Rounding errors are taken as independent and uniform in [-u, u] relative to the result, u = 2^-24, so that a chain
// of n additions with partial sums up to A is off by at most 6 * sqrt(n / 3) * u * A (six standard deviations). A score is a
// chain of head_dim / 8 + 3 with A <= S = scale * |q| * |k|; softcap, bias and shift round it a few times more, at magnitude
// S + |bias| + softcap; the exponential adds 4 u:
//   logit error d = u * (3.5 * sqrt(head_dim / 8 + 3) * S + 2 * (S + |bias| + softcap) + 4)
// A weight is then off by a relative e = 2 * d + 3.5 * sqrt(n_cells) * u (its own logit and the sum), so that an output is off
// by at most 2 * e * max |v| (its own chain has n_cells additions again), and the mass of a page by 2 * e per query row. Lists of rows
// are the same, as their weights scale a sum and its terms alike. The estimated error of a row is a root of a sum of squares, each off by
// a relative 4 * e and what |v - o| is off by.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "at_end.h"
#include "attend_cases.h"
#include "kernels/attend/attend_internal.h"

using namespace edgekv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Mask { none, causal_f16, causal_f32, interleaved, biased, first_row_hidden, all_hidden, huge_bias, sparse, count };

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

// The additive mask as float, before it is stored in its type.
std::vector<float> mask_values(const Case & c, cases::Random & rng) {
    std::vector<float> m(static_cast<size_t>(c.n_tokens) * c.n_cells);
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int i = 0; i < c.n_cells; ++i) {
            const int position = c.n_cells * 3 / 4 - c.n_tokens + t;  // the last quarter is padding
            const bool causal = i <= std::max(position, 0);
            float x = 0.0f;
            switch (c.mask) {
                case Mask::none: break;
                case Mask::causal_f16:
                case Mask::causal_f32: x = causal ? 0.0f : -kInf; break;
                case Mask::interleaved: x = causal && i * 7 / 3 % 2 == t % 2 ? 0.0f : -kInf; break;
                case Mask::biased: x = rng.uniform() < 0.1f ? -kInf : rng.uniform() * 10.0f - 8.0f; break;
                case Mask::first_row_hidden: x = t == 0 ? -kInf : 0.0f; break;
                case Mask::all_hidden: x = -kInf; break;
                case Mask::huge_bias: x = t == 0 || i % 5 == 0 ? -1e30f : i % 7 == 0 ? -3e38f : 0.0f; break;
                case Mask::count: break;
                case Mask::sparse: x = i / 16 % 9 == 4 && (i + t) % 3 != 0 ? 0.0f : -kInf; break;
            }
            m[static_cast<size_t>(t) * c.n_cells + i] = x;
        }
    }
    return m;
}

// A problem with buffers that end where the last element does, so that any overrun faults.
struct Instance {
    AttendProblem p{};
    cases::Bytes q, k, v, mask;
    std::vector<float> sinks, bias;
    double tolerance = 0.0;
    double v_max = 0.0;
    int visible_rows = 0;  // tokens that see anything

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
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
        bias = mask_values(c, rng);
        const auto hidden = [&](int cell) {
            for (int t = 0; t < c.n_tokens; ++t) {
                if (bias[static_cast<size_t>(t) * c.n_cells + cell] != -kInf) {
                    return false;
                }
            }
            return true;
        };

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
        double k_norm = 0.0;
        const auto fill = [&](cases::Bytes & buffer, CellType type, size_t & stride_cell, size_t & stride_head,
                              double & largest, double & norm_max) {
            const size_t bytes = cases::row_bytes(type, c.head_dim);
            stride_head = bytes + (c.gaps ? 6 : 0);
            stride_cell = stride_head * c.n_head_kv + (c.gaps ? 10 : 0);
            buffer.resize(stride_cell * (c.n_cells - 1) + stride_head * (c.n_head_kv - 1) + bytes);
            std::vector<float> row(static_cast<size_t>(c.head_dim));
            for (int cell = 0; cell < c.n_cells; ++cell) {
                for (int h = 0; h < c.n_head_kv; ++h) {
                    char * dst = buffer.data() + cell * stride_cell + h * stride_head;
                    double norm = 0.0;
                    for (int i = 0; i < c.head_dim; ++i) {
                        float & x = row[static_cast<size_t>(i)];
                        x = rng.normal();
                        if (c.low && &buffer == &k) {
                            float of_query;
                            std::memcpy(&of_query, q.data() + h * c.group * p.q_stride_head + 4 * i, 4);
                            x -= 4.0f * of_query;
                        }
                        norm += x * x;
                        largest = std::max(largest, std::fabs(static_cast<double>(x)));
                    }
                    norm_max = std::max(norm_max, std::sqrt(norm));
                    cases::store_row(type, row, dst);
                    if (hidden(cell)) {  // must not matter: NaN for f16 and for the block scales
                        std::memset(dst, 0xff, bytes);
                    }
                }
            }
        };
        double ignored = 0.0;
        fill(k, c.k_type, p.k_stride_cell, p.k_stride_head, ignored, k_norm);
        fill(v, c.v_type, p.v_stride_cell, p.v_stride_head, v_max, ignored);

        const bool f32 = c.mask == Mask::causal_f32 || c.mask == Mask::first_row_hidden || c.mask == Mask::huge_bias;
        p.mask_type = c.mask == Mask::none ? MaskType::none : f32 ? MaskType::f32 : MaskType::f16;
        const size_t size = f32 ? 4 : 2;
        p.mask_stride_token = (static_cast<size_t>(c.n_cells) + (c.gaps ? 5 : 0)) * size;
        if (c.mask != Mask::none) {
            mask.resize(p.mask_stride_token * (c.n_tokens - 1) + static_cast<size_t>(c.n_cells) * size);
        }
        for (int t = 0; t < c.n_tokens; ++t) {
            bool any = false;
            for (int i = 0; i < c.n_cells; ++i) {
                const float x = bias[static_cast<size_t>(t) * c.n_cells + i];
                any = any || x != -kInf;
                const uint16_t h = f32 ? 0 : cases::to_half(x);
                if (c.mask != Mask::none) {
                    std::memcpy(mask.data() + t * p.mask_stride_token + i * size, f32 ? static_cast<const void *>(&x) : &h, size);
                }
            }
            visible_rows += any ? 1 : 0;
        }
        for (int h = 0; c.sinks && h < n_head; ++h) {
            sinks.push_back(2.0f * rng.normal() + 3.0f);
        }
        p.q = q.data();
        p.k = k.data();
        p.v = v.data();
        p.mask = mask.data();
        p.sinks = c.sinks ? sinks.data() : nullptr;

        const double u = 0x1p-24;
        const double s = p.scale * q_norm * k_norm;  // bounds sum |q_i k_i|
        const double largest_bias = c.mask == Mask::biased ? 8.0 : 0.0;  // where huge ones count, all cells have them
        const double logit = u * (3.5 * std::sqrt(c.head_dim / 8 + 3) * s + 2 * (s + largest_bias + c.softcap) + 4);
        tolerance = 2 * (2 * logit + 3.5 * std::sqrt(c.n_cells) * u);
    }

    bool sees(int token, int cell) const { return bias[static_cast<size_t>(token) * p.n_cells + cell] != -kInf; }
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
                    if (!instance.sees(t, cell) || (c.select == 1 && rng.next() % 4 >= share)) {
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

// Where a run writes, with gaps and margins that must keep their filling.
struct Results {
    static constexpr float kFill = 12345.0f;
    static constexpr float kMassBase = 0.5f;
    std::vector<float> out, mass_max, mass_sum;

    Results(const Case & c, AttendProblem & p, float out_fill) {
        const size_t gap = c.gaps ? 3 : 0;
        const size_t pages = (static_cast<size_t>(c.n_cells) + c.page_tokens - 1) / c.page_tokens;
        p.out_stride_head = (static_cast<size_t>(c.head_dim) + gap) * 4;
        p.out_stride_token = p.out_stride_head * p.n_head + gap * 4;
        p.mass_stride = pages + 2;
        out.assign(p.out_stride_token / 4 * c.n_tokens + 1, kFill);
        mass_max.assign(p.mass_stride * c.n_head_kv, kFill);
        mass_sum.assign(p.mass_stride * c.n_head_kv, kFill);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                float * row = out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4;
                std::fill(row, row + c.head_dim, out_fill);
            }
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            std::fill_n(mass_max.data() + h * p.mass_stride, pages, kMassBase);
            std::fill_n(mass_sum.data() + h * p.mass_stride, pages, kMassBase);
        }
        p.out = reinterpret_cast<char *>(out.data());
        p.mass_max = c.observe & 1 ? mass_max.data() : nullptr;
        p.mass_sum = c.observe & 2 ? mass_sum.data() : nullptr;
    }
};

int failures = 0;
double worst = 0.0, worst_error = 0.0;  // in units of the tolerance; of estimated errors

void fail(const Case & c, const char * kernels, int n_threads, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s x%d: %s: got %g, want %g [%s]\n", kernels, n_threads, what, got, want, c.name().c_str());
    }
}

void compare(const Case & c, const char * kernels, int n_threads, const char * what, const std::vector<float> & got,
             const std::vector<float> & want, double tolerance) {
    for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
        if (!(error <= tolerance)) {
            return fail(c, kernels, n_threads, what, got[i], want[i]);
        }
        worst = std::max(worst, error / tolerance);
    }
}

// Every share once; nothing waits inside a call, so the shares may also come one after the other, from any first one.
template <typename Share>
void in_shares(int n_threads, bool threads, const Share & share) {
    if (!threads) {
        for (int i = 0; i < n_threads; ++i) {
            share((i + 1) % n_threads);
        }
        return;
    }
    std::vector<std::thread> pool;
    for (int i = 0; i < n_threads; ++i) {
        pool.emplace_back([&, i] { share(i); });
    }
    for (std::thread & t : pool) {
        t.join();
    }
}

void run(const char * kernels, const AttendProblem & p, char * workspace, int n_threads, bool threads) {
    const AttendKernels & table = *attend_kernels(kernels);
    in_shares(n_threads, threads, [&](int i) { attend_run_with(table, p, workspace, i, n_threads); });
    if (p.mass_max != nullptr || p.mass_sum != nullptr) {
        in_shares(n_threads, threads, [&](int i) { attend_observe_with(table, p, workspace, i, n_threads); });
    }
}

// What no number of threads may change, with lists: every bit of it.
struct Bits {
    std::vector<float> out, mass_max, mass_sum;
    std::vector<AttendHits> hits;

    bool operator==(const Bits & other) const {
        const auto same = [](const auto & a, const auto & b) {
            return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
        };
        return same(out, other.out) && same(mass_max, other.mass_max) && same(mass_sum, other.mass_sum) && same(hits, other.hits);
    }
};

void check_hits(const Case & c, const char * kernels, int n_threads, const Lists & lists, const Results & want, const AttendProblem & p,
                double mass_tolerance, double error_tolerance) {
    const int pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    for (int h = 0; h < c.n_head_kv; ++h) {
        const AttendHits &hits = lists.hits[static_cast<size_t>(h)], &wanted = lists.want_hits[static_cast<size_t>(h)];
        if (hits.n_read != wanted.n_read) {
            fail(c, kernels, n_threads, "n_read", hits.n_read, wanted.n_read);
        }
        if (hits.n_hits != wanted.n_hits) {
            fail(c, kernels, n_threads, "n_hits", hits.n_hits, wanted.n_hits);
        }
        double mass = 0.0, mass_hits = 0.0;
        for (int i = 0; i < pages; ++i) {
            const double of_page = want.mass_sum[h * p.mass_stride + i] - Results::kMassBase;
            mass += of_page;
            mass_hits += lists.slots[static_cast<size_t>(h * pages + i)] >= 0 ? of_page : 0.0;
        }
        const double allowed = mass_tolerance + 0x1p-22 * pages * c.n_tokens;
        if ((c.observe & 2) != 0 && !(std::fabs(hits.mass - mass) <= allowed)) {
            fail(c, kernels, n_threads, "mass", hits.mass, mass);
        }
        if ((c.observe & 2) != 0 && !(std::fabs(hits.mass_hits - mass_hits) <= allowed)) {
            fail(c, kernels, n_threads, "mass in the arena", hits.mass_hits, mass_hits);
        }
        if (hits.n_errors != wanted.n_errors) {
            fail(c, kernels, n_threads, "n_errors", hits.n_errors, wanted.n_errors);
        }
        if (c.low && c.sinks) {
            continue;  // beside the sink the squares of the outputs are below what a float holds
        }
        const double error = std::fabs(hits.error - wanted.error);
        if (!(error <= (wanted.error + wanted.n_errors) * error_tolerance)) {
            fail(c, kernels, n_threads, "estimated error", hits.error, wanted.error);
        }
        worst_error = wanted.n_errors > 0 ? std::max(worst_error, error / (wanted.error + wanted.n_errors) / error_tolerance) : worst_error;
    }
}

// The least length of an output that is not zero.
double shortest_output(const Case & c, const AttendProblem & p, const Results & want) {
    double shortest = kInf;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int h = 0; h < p.n_head; ++h) {
            const float * row = want.out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4;
            double square = 0.0;
            for (int i = 0; i < c.head_dim; ++i) {
                square += static_cast<double>(row[i]) * row[i];
            }
            shortest = square > 0.0 ? std::min(shortest, std::sqrt(square)) : shortest;
        }
    }
    return shortest;
}

void check_case(const Case & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    Instance instance(c, seed);
    AttendProblem p = instance.p;
    std::unique_ptr<Lists> lists;
    if (c.select != 0) {
        lists = std::make_unique<Lists>(c, instance, p, seed);
        p.hits = lists->want_hits.data();
    }
    Results want(c, p, 0.0f);
    attend_reference(p);
    if (lists) {
        lists->use(p);
    }

    const int pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    const double mass_tolerance = instance.tolerance * c.group * c.n_tokens;
    // |v - o| is off by what o is, in channels that err apart from each other, and is divided by |o|
    const double error_tolerance =
        2 * instance.tolerance * (1 + instance.v_max / shortest_output(c, p, want)) + 0x1p-22 * std::sqrt(c.n_cells);
    const int thread_counts[] = {1, 2, 3, 5};
    for (const char * kernels : all_kernels) {
        std::unique_ptr<Bits> first;
        for (size_t variant = 0; variant < 2; ++variant) {
            const int n_threads = thread_counts[(seed + 2 * variant + seed / 4) % 4];
            Results got(c, p, kNan);
            const size_t bytes = attend_workspace_bytes(p, n_threads);
            std::vector<float> raw(bytes / 4 + 64, kNan);
            char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
            std::memset(workspace, 0, kAttendHeaderBytes);
            const auto attend = [&](bool threads, const Results & into) {
                if (lists) {
                    std::fill(lists->hits.begin(), lists->hits.end(), AttendHits{});
                }
                run(kernels, p, workspace, n_threads, threads);
                if (lists) {
                    Bits bits{into.out, into.mass_max, into.mass_sum, lists->hits};
                    if (first && !(bits == *first)) {
                        fail(c, kernels, n_threads, "the number of threads changes the bits", n_threads, 0);
                    }
                    first = std::make_unique<Bits>(std::move(bits));
                }
            };
            attend(seed % 2 == 0, got);
            if (lists) {
                check_hits(c, kernels, n_threads, *lists, want, p, mass_tolerance, error_tolerance);
            }

            compare(c, kernels, n_threads, "out", got.out, want.out, instance.tolerance * instance.v_max);
            compare(c, kernels, n_threads, "mass_max", got.mass_max, want.mass_max, mass_tolerance);
            compare(c, kernels, n_threads, "mass_sum", got.mass_sum, want.mass_sum, mass_tolerance);
            for (int h = 0; c.observe == 3 && h < c.n_head_kv; ++h) {
                double total = 0.0;
                for (int i = 0; i < pages; ++i) {
                    const float top = got.mass_max[h * p.mass_stride + i] - Results::kMassBase;
                    const float sum = got.mass_sum[h * p.mass_stride + i] - Results::kMassBase;
                    total += sum;
                    if (!(top <= sum + 0x1p-20f)) {
                        fail(c, kernels, n_threads, "mass_max <= mass_sum", top, sum);
                    }
                }
                // base + mass is rounded to 2^-24 per page, token and array
                const double allowed = mass_tolerance + 0x1p-24 * pages * c.n_tokens * 4;
                const int n_outputs = c.group * (lists ? lists->n_listed[static_cast<size_t>(h)] : instance.visible_rows);
                if (!c.sinks && !(std::fabs(total - n_outputs) <= allowed)) {
                    fail(c, kernels, n_threads, "total mass", total, n_outputs);
                }
            }
            for (size_t i = 0; i < kAttendHeaderBytes; ++i) {
                if (workspace[i] != 0) {
                    return fail(c, kernels, n_threads, "workspace header left zero", workspace[i], 0);
                }
            }
            for (float * x = reinterpret_cast<float *>(workspace + bytes); x < raw.data() + raw.size(); ++x) {
                if (!std::isnan(*x)) {
                    return fail(c, kernels, n_threads, "write past the workspace", *x, kNan);
                }
            }
            Results again(c, p, kNan);  // with what the first run left in the workspace
            attend(false, again);
            compare(c, kernels, n_threads, "out of a second run", again.out, want.out, instance.tolerance * instance.v_max);
            compare(c, kernels, n_threads, "mass_sum of a second run", again.mass_sum, want.mass_sum, mass_tolerance);
        }
    }
}

// Walks lists of different lengths side by side; `random` decides what the lengths do not decorrelate.
void check_all(const std::vector<const char *> & kernels) {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192, 512};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8};
    const int tokens[] = {1, 2, 3, 5, 16};
    const int cells[] = {1, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 2047};
    const float softcaps[] = {0.0f, 0.0f, 30.0f, 2.0f};
    const int pages[] = {16, 32, 48};
    cases::Random rng(7);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int types = 0; types < 4; ++types) {
            Case c{};
            c.head_dim = dim;
            c.k_type = types & 1 ? CellType::q8_0 : CellType::f16;
            c.v_type = types & 2 ? CellType::q8_0 : CellType::f16;
            const bool served = types == 0 || dim % 32 == 0;
            if (attend_supports(dim, c.k_type, c.v_type) != served) {
                std::printf("attend_supports() of %s is not %d\n", c.name().c_str(), served);
                failures += 1;
            }
            if (!served) {
                continue;
            }
            for (int i = 0; i < 77; ++i, ++n) {
                c.group = groups[i % 7];
                c.n_cells = cells[i % 11];
                c.n_tokens = tokens[rng.next() % 5];
                c.mask = static_cast<Mask>(n % static_cast<uint64_t>(Mask::count));
                c.n_head_kv = 1 + static_cast<int>(rng.next() % 3);
                c.page_tokens = pages[rng.next() % 3];
                c.softcap = softcaps[rng.next() % 4];
                c.sinks = rng.next() % 3 == 0;
                c.gaps = rng.next() % 2 == 0;
                c.low = rng.next() % 4 == 0;
                c.select = static_cast<int>(n / 2 % 5) % 4;
                c.observe = rng.next() % 2 == 0 ? 3 : static_cast<int>(rng.next() % 4);
                // the reference is slow: bound its work
                while (static_cast<double>(c.group) * c.n_head_kv * c.n_tokens * c.n_cells * dim > 4e5 &&
                       (c.n_head_kv > 1 || c.n_tokens > 1)) {
                    (c.n_head_kv > 1 ? c.n_head_kv : c.n_tokens) -= 1;
                }
                check_case(c, n, kernels);
            }
        }
    }
    std::printf("%llu cases, largest error %.3f of the tolerance, of an estimated error %.2g\n", static_cast<unsigned long long>(n), worst,
                worst_error);
}

// One workspace serves runs of all kinds in turn, as layers and modes take turns.
void check_turns(const std::vector<const char *> & kernels) {
    const Case every{64, 2, 1, 1, 577, 16, CellType::f16, CellType::f16, Mask::none, 0.0f, false, false, false, 3, 0};
    Case lists = every;
    lists.n_head_kv = 3;
    lists.select = 1;
    Instance of_every(every, 1), of_lists(lists, 3);
    AttendProblem p[2] = {of_every.p, of_lists.p};
    Lists rows(lists, of_lists, p[1], 3);
    Results want_every(every, p[0], 0.0f);
    attend_reference(p[0]);
    Results want_lists(lists, p[1], 0.0f);
    attend_reference(p[1]);
    rows.use(p[1]);
    for (const char * name : kernels) {
        const size_t bytes = std::max(attend_workspace_bytes(p[0], 2), attend_workspace_bytes(p[1], 2));
        std::vector<float> raw(bytes / 4 + 16, kNan);
        char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
        std::memset(workspace, 0, kAttendHeaderBytes);
        for (int turn = 0; turn < 3; ++turn) {
            Results got_every(every, p[0], kNan);
            run(name, p[0], workspace, 2, false);
            compare(every, name, 2, "out, in turns", got_every.out, want_every.out, of_every.tolerance * of_every.v_max);
            Results got_lists(lists, p[1], kNan);
            run(name, p[1], workspace, 2, false);
            compare(lists, name, 2, "out, in turns", got_lists.out, want_lists.out, of_lists.tolerance * of_lists.v_max);
        }
    }
}

// One visible cell: what comes out is its V, each finite f16 as it is, those below the normal range too.
void check_halves(const std::vector<const char *> & kernels) {
    constexpr int kDim = 64;
    std::vector<uint16_t> k(kDim), v(kDim);
    std::vector<float> q(kDim, 1.0f), out(kDim);
    AttendProblem p{};
    p.head_dim = kDim;
    p.n_head = p.n_head_kv = p.n_tokens = p.n_cells = 1;
    p.page_tokens = 16;
    p.q = reinterpret_cast<const char *>(q.data());
    p.k_type = p.v_type = CellType::f16;
    p.k = reinterpret_cast<const char *>(k.data());
    p.v = reinterpret_cast<const char *>(v.data());
    p.k_stride_cell = p.k_stride_head = p.v_stride_cell = p.v_stride_head = kDim * 2;
    p.scale = 1.0f;
    p.out = reinterpret_cast<char *>(out.data());
    std::vector<float> raw(attend_workspace_bytes(p, 1) / 4 + 16);
    char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
    for (const char * name : kernels) {
        for (uint32_t first = 0; first < 0x10000; first += kDim) {
            if ((first & 0x7c00) == 0x7c00) {
                continue;  // infinities and NaN
            }
            for (int i = 0; i < kDim; ++i) {
                v[i] = static_cast<uint16_t>(first + i);
            }
            run(name, p, workspace, 1, false);
            for (int i = 0; i < kDim; ++i) {
                const int exponent = v[i] >> 10 & 0x1f, fraction = v[i] & 0x3ff;
                const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                                 : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
                if (out[i] != (v[i] & 0x8000 ? -size : size)) {
                    std::printf("%s: the half %04x became %a\n", name, v[i], out[i]);
                    failures += 1;
                    return;
                }
            }
        }
    }
}

// A kernel computes without subnormal floats, and leaves the thread as it was.
void check_thread(const std::vector<const char *> & kernels) {
    volatile float least = std::numeric_limits<float>::denorm_min();
    for (size_t i = 0; i <= kernels.size(); ++i) {
        if (!(least * 2.0f > 0.0f)) {
            std::printf("subnormal floats are zero on this thread after a run\n");
            failures += 1;
            return;
        }
        if (i < kernels.size()) {
            check_halves({kernels[i]});
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<const char *> kernels;
    for (const char * name : {"portable", "avx2", "avx512", "avx512vnni"}) {
        if ((argc < 2 || std::strcmp(argv[1], name) == 0) && attend_kernels(name) != nullptr) {
            kernels.push_back(name);
        }
    }
    if (kernels.empty()) {
        std::printf("no such kernels on this machine\n");
        return 77;
    }
    for (const char * name : kernels) {
        std::printf("%s ", name);
    }
    std::printf("(attend_run: %s)\n", isa_name(isa_best()));
    check_all(kernels);
    check_turns(kernels);
    check_thread(kernels);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
