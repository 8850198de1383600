// The cases that decoding is tested with.
#pragma once

#include "attend_instance.h"

namespace test {

// Rows of K whose first channels are V.
struct LatentRow {
    int head_dim, v_in_k;
};

struct AttendWalk {
    std::vector<int> dims, groups, tokens, cells;
    int n_each;   // cases of a head_dim and two types
    double work;  // of a case at most, where fewer tokens and KV heads can do it: the reference is slow
    bool device;
    std::vector<LatentRow> latent = {};  // rows of K that hold V too; these have few KV heads, and many query heads
};

// A case's own bound on work, where V lies in K.
constexpr double kLatentWork = 1e7;

// Walks lists of different lengths side by side; `rng` decides what the lengths do not decorrelate. Calls check(case, n); returns their number.
template <class Check>
uint64_t walk_attend_cases(const AttendWalk & of, const Check & check) {
    const float softcaps[] = {0.0f, 0.0f, 30.0f, 2.0f};
    const int pages[] = {16, 32, 48};
    Random rng(7);
    uint64_t n = 0;
    std::vector<LatentRow> rows;
    for (int dim : of.dims) {
        rows.push_back({dim, 0});
    }
    rows.insert(rows.end(), of.latent.begin(), of.latent.end());
    const int many[] = {16, 20, 64, 128, 7, 3};
    for (const auto [dim, v_in_k] : rows) {
        for (int types = 0; types < (dim % 32 == 0 ? kTypePairs : 1); ++types) {
            const CellType k_type = k_type_of(types), v_type = v_type_of(types);
            if (v_in_k != 0 && k_type != v_type) {
                continue;  // one row has one type
            }
            for (int i = 0; i < of.n_each; ++i, ++n) {
                AttendCase c{};
                c.device = of.device;
                c.head_dim = dim;
                c.k_type = k_type;
                c.v_type = v_type;
                c.group = of.groups[n % of.groups.size()];
                c.n_cells = of.cells[n % of.cells.size()];
                c.n_tokens = of.tokens[rng.next() % of.tokens.size()];
                c.mask = static_cast<Mask>(n / 2 % static_cast<uint64_t>(Mask::count));
                c.wide_mask = rng.one_of(3);
                c.n_head_kv = 1 + rng.below(3);
                c.page_tokens = rng.pick(pages);
                c.softcap = rng.pick(softcaps);
                c.sinks = rng.one_of(3);
                c.gaps = rng.one_of(2);
                c.low = rng.one_of(4) && !of.device;
                c.select = static_cast<Select>(n / 3 % 5 % 3);
                c.arena = of.device ? !rng.one_of(4) : c.select != Select::all && n % 4 != 0;  // lists of an index lie at home
                c.ring = rng.one_of(2) && of.device && c.select == Select::all;  // rows of lists lie in slots or at home
                if (v_in_k != 0) {
                    c.v_in_k = v_in_k;
                    c.group = rng.pick(many);
                    c.n_head_kv = rng.one_of(4) ? 2 : 1;
                }
                c.n_parts = of.device ? 1 + rng.below(3) : 1;
                c.observe = rng.one_of(2) ? 3 : rng.below(4);
                while (c.work() > of.work && (c.n_head_kv > 1 || c.n_tokens > 1)) {
                    (c.n_head_kv > 1 ? c.n_head_kv : c.n_tokens) -= 1;
                }
                for (size_t shorter = of.cells.size(); of.device && shorter > 0 && c.work() > 4 * of.work; --shorter) {
                    c.n_cells = std::min(c.n_cells, of.cells[shorter - 1]);
                }
                for (size_t shorter = of.cells.size(); v_in_k != 0 && shorter > 0 && c.work() > kLatentWork; --shorter) {
                    c.n_cells = std::min(c.n_cells, of.cells[shorter - 1]);
                }
                check(c, n);
            }
        }
    }
    return n;
}

}  // namespace test
