// Sketches of some layers, the shares of one KV head's query, and the rows drawn from them, for benchmarks.
#pragma once

#include "dense_problem.h"
#include "kernels/select/sample.h"
#include "kernels/sketch/sketch_internal.h"
#include "kernels/simd/subnormals.h"

namespace test {

struct BenchScan {
    int head_dim, n_head_kv, n_groups;
    edgekv::SketchLayout layout;
    std::vector<char> raw, prepared, scratch;
    std::vector<uint16_t> cells;
    std::vector<float> tops, sums, weights;
    std::vector<int32_t> rows;
    std::vector<edgekv::Sight> sight;
    std::vector<edgekv::Sketch> layers;
    edgekv::Shares shares;
    edgekv::SketchQuery query{};
    edgekv::SampleProblem sampling{};

    BenchScan(int head_dim, int group, int n_head_kv, int n_groups, int n_layers, const std::vector<float> & q, edgekv::Sight of_group)
        : head_dim(head_dim), n_head_kv(n_head_kv), n_groups(n_groups), layout(edgekv::sketch_layout(head_dim, n_groups)),
          raw(bytes() * n_layers + 64), prepared(edgekv::sketch_query_bytes(head_dim, group)),
          scratch(edgekv::sample_scratch_bytes(n_groups, group) + 64), cells(static_cast<size_t>(edgekv::kGroupCells) * n_groups * group),
          tops(static_cast<size_t>(n_groups) * group), sums(tops), weights(cells.size() / group), rows(weights.size()), sight(n_groups, of_group),
          shares{cells.data(), tops.data(), sums.data(), rows.size(), sight.size()} {
        for (int i = 0; i < n_layers; ++i) {
            layers.push_back({edgekv::SketchKind::b3, head_dim, n_head_kv, n_groups, aligned(raw) + i * bytes()});
        }
        query = {reinterpret_cast<const char *>(q.data()), 0, static_cast<size_t>(head_dim) * 4, 1, group,
                 1.0f / std::sqrt(static_cast<float>(head_dim)), 0.0f, sight.data(), sight.size()};
        sampling.n_groups = n_groups;
        sampling.group = group;
        sampling.shares = cells.data();
        sampling.tops = tops.data();
        sampling.sums = sums.data();
        sampling.cell_stride = shares.cell_stride;
        sampling.group_stride = shares.group_stride;
        sampling.sight = sight.data();
        sampling.rows = rows.data();
        sampling.weights = weights.data();
        sampling.scratch = aligned(scratch);
    }
    BenchScan(const BenchScan &) = delete;

    size_t bytes() const { return edgekv::sketch_bytes(edgekv::SketchKind::b3, head_dim, n_head_kv, n_groups); }
    void build(const edgekv::SketchKernels & kernels, int layer, int head, const edgekv::SketchKeys & keys) {
        for (int group = 0; group < n_groups; ++group) {
            kernels.build(layers[layer], layout, keys, head, group, ~uint64_t{0});
        }
    }
    void scan(const edgekv::SketchKernels & kernels, const edgekv::Sketch & sketch, int head) {
        const edgekv::SubnormalsAreZero fast;  // as sketch.cpp has it
        kernels.prepare(head_dim, layout.padded, query, prepared.data());
        kernels.scan(sketch, layout, query, prepared.data(), head, 0, n_groups, shares);
    }
    void scan_keys(const edgekv::SketchKernels & kernels, const edgekv::SketchKeys & keys) {
        const edgekv::SubnormalsAreZero fast;
        for (int group = 0; group < n_groups; ++group) {
            kernels.scan_keys(keys, head_dim, query, 0, group, shares);
        }
    }
};

}  // namespace test
