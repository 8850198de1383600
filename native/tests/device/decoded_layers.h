// Layers of a model that decodes one token in mode sparse, as the engine enqueues them (native/cuda/README.md): buffers in the shape of a real
// model, and each layer's launches by name. A layer has keys' sketches of its own; all layers share one home and one scratch.
#pragma once

#include <functional>
#include <numeric>

#include "cuda/kernels/attend_device.h"
#include "cuda/kernels/sample_device.h"
#include "cuda/kernels/sight_device.h"
#include "cuda/kernels/sketch_device.h"
#include "cuda/kernels/store_device.h"
#include "dense_problem.h"
#include "device_array.h"

namespace test {

enum class RowsOf {
    vram,  // home lies on the device: as if the arena had every row
    home,
    kept,  // home, with room for copies of all rows that are listed
};

struct LayersShape {
    int head_dim, n_head_kv, group;
    int n_layers, n_cells;
    edgekv::CellType type;
    RowsOf rows;
    float resolution;
};

class DecodedLayers {
public:
    struct Launch {
        const char * name;
        std::function<void(int layer, edgekv::gpu::Stream)> run;
    };

    DecodedLayers(const LayersShape & shape, int n_sm)
        : shape(shape), n_groups((shape.n_cells + kGroup - 1) / kGroup), row(row_bytes(shape.type, shape.head_dim)), n_head(shape.n_head_kv * shape.group),
          stride(static_cast<size_t>(n_groups) * kGroup), k(home_rows(1)), v(home_rows(2)), q(normal(3, n_head * shape.head_dim)),
          arriving(normal(4, shape.n_head_kv * shape.head_dim)), own_cell(std::vector<int64_t>{shape.n_cells - 1}), out(n_head * shape.head_dim),
          open(static_cast<size_t>(n_groups)), pins(static_cast<size_t>(n_groups) * 2), sight(static_cast<size_t>(n_groups)),
          share_cells(n_head * stride), tops(static_cast<size_t>(n_head) * n_groups), sums(static_cast<size_t>(n_head) * n_groups),
          rows(shape.n_head_kv * stride), n_rows(static_cast<size_t>(shape.n_head_kv)), weights(shape.n_head_kv * stride),
          totals(static_cast<size_t>(shape.n_head_kv)), hits(static_cast<size_t>(shape.n_head_kv)),
          sample_words(edgekv::gpu::sample_words(static_cast<size_t>(shape.n_head_kv), n_groups, shape.group).n), n_stale(1), n_ubatch(1),
          tickets(static_cast<size_t>(shape.n_head_kv)), n_sets(shape.rows == RowsOf::kept ? shape.n_layers * shape.n_head_kv * kSetsOfHead : 0),
          entries(static_cast<size_t>(n_sets) * edgekv::gpu::kHotRowWays), copies(n_sets * edgekv::gpu::kHotRowWays * copy_stride()),
          copy_slots(n_sets > 0 ? shape.n_head_kv * stride : 0) {
        std::vector<int32_t> of_cells(static_cast<size_t>(shape.n_cells));
        std::iota(of_cells.begin(), of_cells.end(), 0);
        positions = DeviceArray<int32_t>(of_cells);
        for (int layer = 0; layer < shape.n_layers; ++layer) {
            sketches.emplace_back(sketch_stride());
        }
        const AttendProblem p = problem(0);
        constexpr int kListed = 1024;  // rows of a list that splits are cut for
        n_splits = edgekv::gpu::attend_device_splits(p, kListed / p.page_tokens, n_sm);
        workspace = DeviceArray<char>(edgekv::gpu::attend_device_workspace_bytes(p, n_splits, true));
        build_sketches();
    }

    // Those of a layer, in order.
    std::vector<Launch> launches() const {
        using edgekv::gpu::Stream;
        return {
            {"store and scan", [this](int layer, Stream s) { edgekv::gpu::launch_store_scan(store(layer), scan(layer), 0, s); }},
            {"sample", [this](int layer, Stream s) { edgekv::gpu::launch_sample(sample(layer), s); }},
            {"attend", [this](int layer, Stream s) { edgekv::gpu::launch_attend(problem(layer), part(), workspace.data(), n_splits, s); }},
            {"merge", [this](int layer, Stream s) { edgekv::gpu::launch_attend_merge(problem(layer), part(), workspace.data(), n_splits, s); }},
        };
    }

    // Once for a step, before the layers.
    void find_sight(edgekv::gpu::Stream stream) const {
        edgekv::gpu::SightProblem p = {};
        p.n_streams = p.n_tokens = 1;
        p.n_cells = p.n_cells_stream = shape.n_cells;
        p.mask_type = edgekv::MaskType::none;
        p.positions = positions.data();
        p.open = open.data();
        p.pins = pins.data();
        p.groups_per_stream = n_groups;
        p.k_idxs = own_cell.data();
        p.sink_tokens = 16, p.recent_tokens = 64, p.page_tokens = kPage;
        p.sight = sight.data();
        p.stride = static_cast<size_t>(n_groups);
        edgekv::gpu::launch_sight(p, stream);
    }

    // Every row that is listed next has to be brought.
    void forget_copies(edgekv::gpu::Stream stream) const {
        must(edgekv::gpu::zero_async(entries.data(), n_sets * edgekv::gpu::kHotRowSetBytes, stream));
    }

    std::vector<float> outputs() const { return out.get(); }

    // What every layer gives that reads all rows.
    std::vector<float> reference() const {
        const std::vector<char> keys = k.get(), values = v.get();
        const std::vector<float> queries = q.get();
        std::vector<float> result(queries.size());
        AttendProblem p = dense_problem(shape.head_dim, n_head, shape.n_head_kv, 1, shape.n_cells, shape.type);
        p.k = keys.data(), p.v = values.data();
        p.q = reinterpret_cast<const char *>(queries.data()), p.out = reinterpret_cast<char *>(result.data());
        edgekv::attend_reference(p);
        return result;
    }

    std::vector<int32_t> list_lengths() const { return n_rows.get(); }

private:
    using AttendProblem = edgekv::AttendProblem;
    static constexpr int kGroup = edgekv::kGroupCells, kPage = 16;  // of dense_problem()
    static constexpr int kSetsOfHead = 256;                         // for some 500 rows: hardly a set has more than it holds

    static std::vector<float> normal(uint64_t seed, int n) {
        Random rng(seed);
        std::vector<float> out(static_cast<size_t>(n));
        std::generate(out.begin(), out.end(), [&] { return rng.normal(); });
        return out;
    }

    // Rows of K or V, drawn from a few: a cache of random numbers would take longer to make than to measure.
    DeviceArray<char> home_rows(uint64_t seed) const {
        constexpr int kFew = 1009;
        Random rng(seed);
        const CacheRows few = cache_rows({shape.type, shape.head_dim, 1, kFew, 0, 0}, [&](int, int, int) { return rng.normal(); },
                                         [](int) { return false; });
        std::vector<char> all(row * shape.n_head_kv * shape.n_cells);
        for (size_t at = 0; at < all.size(); at += row) {
            std::memcpy(all.data() + at, few.bytes.data() + static_cast<size_t>(rng.below(kFew)) * few.stride_cell, row);
        }
        return DeviceArray<char>(all, shape.rows != RowsOf::vram);
    }

    size_t sketch_stride() const {
        return (edgekv::sketch_bytes(edgekv::SketchKind::b3, shape.head_dim, shape.n_head_kv, n_groups) + 63) / 64 * 64;
    }

    edgekv::gpu::SketchArray sketch_array(int layer) const {
        return {shape.head_dim, shape.n_head_kv, n_groups, sketches[static_cast<size_t>(layer)].data(), sketch_stride()};
    }

    edgekv::gpu::HeadRows head_rows(const DeviceArray<float> & of, int n_heads) const {
        const size_t bytes = shape.head_dim * sizeof(float);
        return {reinterpret_cast<const char *>(of.data()), bytes * n_heads, bytes};
    }

    edgekv::gpu::SketchHome sketch_home() const {
        return {shape.type, home_of(k), 0, shape.rows == RowsOf::vram, {}};
    }

    edgekv::gpu::CellRows home_of(const DeviceArray<char> & rows_of) const { return {rows_of.data(), row * shape.n_head_kv, row}; }

    size_t copy_stride() const { return 2 * ((row + 15) / 16 * 16); }

    edgekv::gpu::HotRows hot_rows(int layer) const {
        if (n_sets == 0) {
            return {};
        }
        const uint64_t n_rows = static_cast<uint64_t>(shape.n_head_kv) * shape.n_cells;
        return {entries.data(), static_cast<uint32_t>(n_sets), copies.data(), copy_stride(), copy_stride() / 2, layer * n_rows, 1, shape.n_cells};
    }

    // Sketches as for most tokens: no group has filled up.
    edgekv::gpu::StoreArgs store(int layer) const {
        edgekv::gpu::StoreArgs a = {};
        a.head_dim = shape.head_dim, a.n_head_kv = shape.n_head_kv, a.n_tokens = 1, a.cells_per_stream = shape.n_cells;
        const auto rows_of = [&](const DeviceArray<char> & home) {
            edgekv::gpu::StoreRows r = {};
            r.src = head_rows(arriving, shape.n_head_kv);
            r.rows = own_cell.data();
            r.type = shape.type, r.home = home_of(home);
            return r;
        };
        a.k = rows_of(k), a.v = rows_of(v);
        a.build = {sketch_array(layer), sketch_home(), stale.data(), n_stale.data(), 1, hot_rows(layer)};
        return a;
    }

    void build_sketches() {
        std::vector<edgekv::gpu::StaleGroup> all;
        for (int group = 0; group < n_groups; ++group) {
            const int n = std::min(kGroup, shape.n_cells - kGroup * group);
            all.push_back({0, group, n == kGroup ? ~uint64_t{0} : (uint64_t{1} << n) - 1});
        }
        stale.set(all);
        n_stale.set({n_groups});
        const TestStream stream;
        for (int layer = 0; layer < shape.n_layers; ++layer) {
            edgekv::gpu::StoreArgs args = store(layer);
            args.n_tokens = 0;
            args.build.n_expected = n_groups;
            edgekv::gpu::launch_store(args, stream);
        }
        must(edgekv::gpu::stream_sync(stream) && edgekv::gpu::check());
        n_stale.set({0});
    }

    edgekv::gpu::SketchScanArgs scan(int layer) const {
        edgekv::gpu::SketchScanArgs a = {};
        a.sketches = sketch_array(layer);
        a.home = sketch_home();
        a.open = open.data();
        a.n_streams = a.n_tokens = 1;
        a.group = shape.group, a.n_groups = n_groups;
        a.q = head_rows(q, n_head);
        a.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        a.sight = sight.data(), a.sight_stride = static_cast<size_t>(n_groups);
        a.out = shares();
        return a;
    }

    edgekv::Shares shares() const { return {share_cells.data(), tops.data(), sums.data(), stride, static_cast<size_t>(n_groups)}; }

    edgekv::gpu::SampleBatch sample(int layer) const {
        edgekv::gpu::SampleBatch b = {};
        b.n_streams = b.n_tokens = 1;
        b.n_head_kv = shape.n_head_kv;
        b.sight = sight.data(), b.sight_stride = static_cast<size_t>(n_groups);
        b.rows = rows.data(), b.stride = stride, b.n_rows = n_rows.data(), b.totals = totals.data(), b.words = sample_words.data();
        b.group = shape.group, b.n_groups = n_groups;
        b.shares = shares();
        b.resolution = shape.resolution;
        b.layer = layer;
        b.k_idxs = own_cell.data(), b.positions = positions.data(), b.n_cells_stream = shape.n_cells;
        b.weights = weights.data();
        if (n_sets > 0) {
            b.kept.hot = hot_rows(layer);
            b.kept.k = {home_of(k), 0, static_cast<int>(row)}, b.kept.v = {home_of(v), 0, static_cast<int>(row)};
            b.kept.open = open.data(), b.kept.n_groups = n_groups;
            b.kept.slots = copy_slots.data();
        }
        return b;
    }

    AttendProblem problem(int layer) const {
        AttendProblem p = dense_problem(shape.head_dim, n_head, shape.n_head_kv, 1, shape.n_cells, shape.type);
        p.k = k.data(), p.v = v.data();
        p.q = reinterpret_cast<const char *>(q.data()), p.out = reinterpret_cast<char *>(out.data());
        p.rows = {rows.data(), weights.data(), n_rows.data(), stride};
        const edgekv::gpu::HotRows hot = hot_rows(layer);
        p.copies = {hot.data, hot.stride, hot.v_offset, copy_slots.data()};
        p.hits = hits.data();
        p.error_every = 64, p.error_turn = layer;
        return p;
    }

    edgekv::gpu::AttendPart part() const {
        edgekv::gpu::AttendPart a = {};
        a.brought = shape.rows == RowsOf::vram;
        a.n_splits = n_splits;
        a.tickets = tickets.data(), a.n_ubatch = n_ubatch.data();
        return a;
    }

    const LayersShape shape;
    const int n_groups;
    const size_t row;
    const int n_head;
    const size_t stride;  // of lists and shares
    DeviceArray<char> k, v;
    DeviceArray<float> q, arriving;
    DeviceArray<int64_t> own_cell;
    DeviceArray<float> out;
    DeviceArray<int32_t> open;
    DeviceArray<uint32_t> pins;
    DeviceArray<edgekv::Sight> sight;
    DeviceArray<uint16_t> share_cells;
    DeviceArray<float> tops, sums;
    DeviceArray<int32_t> rows, n_rows;
    DeviceArray<float> weights;
    DeviceArray<edgekv::gpu::SampleTotals> totals;
    DeviceArray<edgekv::AttendHits> hits;
    DeviceArray<unsigned long long> sample_words;
    DeviceArray<int32_t> n_stale;
    DeviceArray<uint32_t> n_ubatch, tickets;
    const int n_sets;  // of copies of rows
    DeviceArray<unsigned long long> entries;
    DeviceArray<char> copies;
    DeviceArray<int32_t> copy_slots;
    DeviceArray<edgekv::gpu::StaleGroup> stale{static_cast<size_t>(n_groups)};
    DeviceArray<int32_t> positions;
    std::vector<DeviceArray<char>> sketches;
    DeviceArray<char> workspace;
    int n_splits = 1;
};

}  // namespace test
