// Generators for sampling on host and device: the shares that a scan could have left, and who may see what. Lists of rows are compared with
// the specification's chances.
#pragma once

#include <cstdio>
#include <string>

#include "cell_rows.h"
#include "checks.h"
#include "kernels/select/sample.h"

namespace test {

using edgekv::kGroupCells;
using edgekv::SampleProblem;
using edgekv::Sight;

constexpr int kOne = 1 << edgekv::kChanceBits;

// How a group's logits lie. even: 16 cells share all, so that floats are exact where all is seen.
enum class Logits { flat, normal, peaked, far_apart, even, count };

struct SampleCase {
    int n_streams, n_tokens, n_head_kv;
    int n_groups, group;
    float resolution;
    Logits logits;
    bool sinks, hidden;
    int certain;  // 0: none, 1: some, 2: all that is visible
    bool own = false;  // heads but the first have resolutions of their own
    int exact_tokens = 0;

    float resolution_of(int head) const { return own ? resolution * static_cast<float>(1 + head) : resolution; }
    int n_cells() const { return n_groups * kGroupCells; }
    int n_queries() const { return n_streams * n_tokens; }
    int n_lists() const { return n_queries() * n_head_kv; }
    std::string name() const {
        char s[256];
        std::snprintf(s, sizeof(s), "streams %d tokens %d kv %d groups %d heads %d resolution %g logits %d sinks %d hidden %d certain %d own %d exact %d", n_streams,
                      n_tokens, n_head_kv, n_groups, group, resolution, static_cast<int>(logits), sinks, hidden, certain, own, exact_tokens);
        return s;
    }
};

// Shares as a scan leaves them, with NaN where it leaves cells as they are, and room behind that must not be read or written.
struct SampleInstance {
    size_t cell_stride, group_stride, sight_stride;
    std::vector<uint16_t> shares;     // [list][group][cell_stride]
    std::vector<float> tops, sums;    // [list][group][group_stride]
    std::vector<float> sinks;         // [n_head_kv][group]
    std::vector<Sight> sight;         // [query][sight_stride]
    std::vector<int32_t> positions;   // [cell_stride]
    Random rng;

    SampleInstance(const SampleCase & c, uint64_t seed) : rng(seed) {
        cell_stride = (static_cast<size_t>(c.n_groups) + seed % 2) * kGroupCells;
        group_stride = static_cast<size_t>(c.n_groups) + seed % 3;
        sight_stride = static_cast<size_t>(c.n_groups) + seed % 2;
        shares.assign(cell_stride * c.group * c.n_lists(), 0x7fc1);
        tops.assign(group_stride * c.group * c.n_lists(), kNan);
        sums = tops;
        sight.assign(sight_stride * c.n_queries(), Sight{~uint64_t{0}, ~uint64_t{0}});
        for (size_t cell = 0; cell < cell_stride; ++cell) {  // in any order, some of them empty
            positions.push_back(rng.one_of(8) ? -1 : rng.below(200000));
        }
        for (int query = 0; query < c.n_queries(); ++query) {
            Sight * of = sight.data() + query * sight_stride;
            for (int i = 0; i < c.n_groups; ++i) {
                const uint64_t r = rng.next(), half = rng.next();
                const uint64_t visible = !c.hidden || r % 4 == 0 ? ~uint64_t{0} : r % 4 == 1 ? 0 : r % 4 == 2 ? ~uint64_t{0} >> (half >> 58) : half;
                of[i] = {visible, c.certain == 2 ? visible : c.certain == 1 && rng.next() % 3 == 0 ? visible & rng.next() : 0};
            }
            if (c.certain == 1) {
                of[c.n_groups - 1].certain = of[c.n_groups - 1].visible;  // as an open group has it
            }
        }
        for (int i = 0; i < c.n_head_kv * c.group; ++i) {
            sinks.push_back(3.0f * rng.normal());
        }
        for (int list = 0; list < c.n_lists(); ++list) {
            for (int g = 0; g < c.group; ++g) {
                for (int i = 0; i < c.n_groups; ++i) {
                    make_group(c, list, g, i);
                }
            }
        }
    }

    // Of list = query * n_head_kv + head, without a turn and without results.
    SampleProblem problem(const SampleCase & c, int list = 0) const {
        SampleProblem p{};
        p.n_groups = c.n_groups;
        p.group = c.group;
        p.shares = shares.data() + list * c.group * cell_stride;
        p.tops = tops.data() + list * c.group * group_stride;
        p.sums = sums.data() + list * c.group * group_stride;
        p.cell_stride = cell_stride;
        p.group_stride = group_stride;
        p.sinks = c.sinks ? sinks.data() + list % c.n_head_kv * c.group : nullptr;
        p.sight = sight.data() + list / c.n_head_kv * sight_stride;
        p.resolution = c.resolution_of(list % c.n_head_kv);
        p.exact_tokens = c.exact_tokens;
        p.positions = positions.data();
        return p;
    }

private:
    void make_group(const SampleCase & c, int list, int g, int group) {
        const uint64_t visible = sight[list / c.n_head_kv * sight_stride + group].visible;
        const size_t query = static_cast<size_t>(list) * c.group + g, at = query * group_stride + group;
        tops[at] = -kInf;
        sums[at] = 0.0f;
        if (visible == 0) {
            return;
        }
        float spread = 1.0f, top = rng.normal();
        switch (c.logits) {
            case Logits::flat: spread = 0.0f; top = 1.0f; break;
            case Logits::normal: break;
            case Logits::peaked: spread = 4.0f; top = 3.0f * rng.normal() + (group % 7 == 3 ? 8.0f : 0.0f); break;
            case Logits::far_apart: spread = 30.0f; top = 70.0f * rng.normal(); break;
            case Logits::even: top = 3.0f; break;
            case Logits::count: break;
        }
        tops[at] = top;
        bool first = true;
        for (int cell = 0; cell < kGroupCells; ++cell) {
            float share = 0.0f;
            if (visible >> cell & 1) {
                share = first ? 1.0f : c.logits == Logits::even ? (cell % 4 == 0 ? 1.0f : 0.0f) : std::exp(-spread * std::fabs(rng.normal()));
                first = false;
            }
            shares[query * cell_stride + static_cast<size_t>(group * kGroupCells + cell)] = upper_half(share);
            sums[at] += share;
        }
    }
};

// ---- lists -------------------------------------------------------------------------------------------------------------------

inline bool may_be_read(const SampleProblem & p, int cell) { return p.sight[cell / kGroupCells].visible >> cell % kGroupCells & 1; }
inline bool is_certain(const SampleProblem & p, int cell) {
    return may_be_read(p, cell) && (p.sight[cell / kGroupCells].certain >> cell % kGroupCells & 1);
}

// The specification's list, with its chances in steps of 2^-20.
struct SampledRows {
    std::vector<int32_t> cells, chances, by_share;
    std::vector<float> weights;
    edgekv::SampleResult result;

    explicit SampledRows(SampleProblem p) : cells(static_cast<size_t>(p.n_groups) * kGroupCells + 4, -9), chances(cells.size() - 4), by_share(chances),
        weights(cells.size(), -9.0f) {
        p.rows = cells.data();
        p.weights = weights.data();
        result = sample_reference(p, chances.data(), by_share.data());
    }
};

// What the chance of a cell that is not certain may be off by, in steps: `relative` of itself, and one, or `at_ends` where it is 0 or all.
struct ChanceTolerance {
    double relative, at_ends;
    double first;  // what a page's running sum may be off by from the start
    double operator()(int32_t chance) const { return relative * chance + (chance == 0 || chance == kOne ? at_ends : 1.0); }
};

inline bool begins_page(int cell) { return cell % edgekv::kWalkCells == 0; }

// Where the walk of a cell's page begins; 0 if the token sees none of the page.
inline int32_t page_begin(const SampleProblem & p, int cell) {
    const int first = cell / edgekv::kWalkCells * edgekv::kWalkCells;
    const bool seen = (p.sight[first / kGroupCells].visible >> first % kGroupCells & ((1u << edgekv::kWalkCells) - 1)) != 0;
    return seen ? edgekv::walk_offset(p.turn, p.positions[first]) : 0;
}

// A list that need not be the specification's: each row stands where the running sum of its page may pass its mark, with the weight of its
// chance. `worst` keeps the largest error of a chance, in units of what is allowed. Returns what the sums of all pages may be off by.
template <class Of>
double check_list(const Of & of, const SampleProblem & p, const SampledRows & want, const int32_t * rows, const float * weights, int n,
                  const ChanceTolerance & tolerance, double * worst = nullptr) {
    const std::vector<int32_t> & chances = want.chances;
    const int n_cells = static_cast<int>(chances.size());
    std::vector<double> upto, slack;  // of each page, through each cell
    for (int i = 0; i < n_cells; ++i) {
        upto.push_back((begins_page(i) ? page_begin(p, i) : upto.back()) + chances[i]);
        slack.push_back((begins_page(i) ? tolerance.first : slack.back()) + (!may_be_read(p, i) || is_certain(p, i) ? 0.0 : tolerance(chances[i])));
    }
    std::vector<bool> is_read(chances.size());
    std::vector<int> n_read(chances.size() / edgekv::kWalkCells);
    int last = -1;
    for (int i = 0; i < n; ++i) {
        const int cell = rows[i];
        if (!expect(cell > last && cell < n_cells && may_be_read(p, cell), of, "rows ascend and are visible", cell, last)) {
            return 0.0;
        }
        last = cell;
        is_read[cell] = true;
        const double chance = kOne / static_cast<double>(weights[i]), step = std::rint(chance);
        expect(weights[i] >= 1.0f && std::fabs(chance - step) <= 1e-6 * chance, of, "a weight is 2^20 / chance", weights[i], 1);
        expect(!is_certain(p, cell) || step == kOne, of, "weight of a certain cell", weights[i], 1);
        expect_near(of, "chance", step, chances[cell], tolerance(chances[cell]), worst);
        // the mark that it stands on: the page's rows before passed all earlier ones, and this one is in the cell
        const double mark = (n_read[cell / edgekv::kWalkCells]++ + 1.0) * kOne, before = upto[cell] - chances[cell];
        expect(before <= mark + slack[cell] && upto[cell] >= mark - slack[cell], of, "a row stands where the sum passes its mark", before, mark);
    }
    double all = 0.0;
    for (int cell = 0; cell < n_cells; ++cell) {
        expect(is_read[cell] || !is_certain(p, cell), of, "every certain cell is read", cell, cell);
        if (begins_page(cell + 1)) {
            const int page = cell / edgekv::kWalkCells;
            expect(n_read[page] >= std::floor((upto[cell] - slack[cell]) / kOne) && n_read[page] <= std::floor((upto[cell] + slack[cell]) / kOne), of,
                   "rows of a page", n_read[page], upto[cell] / kOne);
            all += slack[cell];
        }
    }
    return all;
}

// The shares of the cells that are not read.
inline double missed_shares(const SampledRows & want, const int32_t * rows, int n) {
    double missed = 0.0;
    for (int cell = 0; cell < static_cast<int>(want.by_share.size()); ++cell) {
        missed += std::binary_search(rows, rows + n, cell) ? 0.0 : want.by_share[cell] / static_cast<double>(kOne);
    }
    return missed;
}

}  // namespace test
