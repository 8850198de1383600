// The decoder of test_engine.cpp: home, tensors as a graph has them, and the engine, which is told each step or replays a recording.
#pragma once

#include "cuda/engine/gpu_engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "dense_problem.h"
#include "device_array.h"
#include "graph.h"

namespace edgekv {

using test::DeviceArray;
using test::Recording;

constexpr int kLayers = 3, kHeads = 2, kGroup = 2, kDim = 64, kCells = 640, kViewStep = 128, kPage = 16, kPages = kCells / kPage;
constexpr size_t kRowBytes = kDim * 2, kCellBytes = kHeads * kRowBytes, kQuery = size_t{kHeads} * kGroup * kDim;

enum class Card { middling = 1, largest = 2 };  // 28 and 132 multiprocessors, where it is emulated

// From here on blocks, threads and streams run in another order on the emulated device, which `number` draws.
inline void draw_order([[maybe_unused]] Card card, [[maybe_unused]] int number) {
#if !defined(__CUDACC__)
    gpu::emulator::set_seed(3 * static_cast<uint64_t>(number) + static_cast<uint64_t>(card));
#endif
}

struct Options {
    bool sparse;
    size_t budget;   // 0: whatever there is
    bool migrates;
    const char * name;
    int n_splits = 1;  // graphs that a step's rows are divided among
    int n_row_slots = 0;  // slots of the arena that copies of rows take
};

// One context: home, what a graph has as tensors, and the plane.
class Decoder {
public:
    static EngineShape shape_over(char * home, size_t budget) {
        EngineShape shape = {};
        shape.n_heads = kHeads;
        shape.n_stream = 1;
        shape.n_cells = kCells;
        shape.page_tokens = kPage;
        shape.pages_per_stream = shape.n_pages = kPages;
        shape.slot_bytes = 2 * kPage * kRowBytes;
        shape.budget_bytes = budget;
        for (int layer = 0; layer < kLayers; ++layer) {
            char * k = home + size_t{2} * layer * kCells * kCellBytes;
            shape.layers.push_back({ kHeads * kGroup, kHeads, kDim, CellType::f16, CellType::f16, k, k + kCells * kCellBytes, kCells * kCellBytes,
                                   kCellBytes, kRowBytes, kCells * kCellBytes, kCellBytes, kRowBytes, kRowBytes, kRowBytes, kPage * kRowBytes });
        }
        return shape;
    }
    Decoder(const Options & options) : options(options), home(2 * kLayers * kCells * kCellBytes, true) {
        shape = shape_over(home.data(), options.budget);
        gpu::Stream main = nullptr;
        test::must(gpu::stream_create(&main));
        stream = main;
        plane = std::make_unique<gpu::GpuEngine>(0, shape, main);
        test::must(plane->init() && (options.sparse ? plane->reserve_sketches() : plane->reserve_ring()));
        for (int layer = 0; layer < kLayers; ++layer) {
            test::must(plane->reserve_workspace(layer, view(), options.sparse));
        }
        test::must(plane->reserve_arena(INT_MAX, 0) && plane->set_slots(plane->bytes().n_slots_max - options.n_row_slots) &&
                   plane->set_hot_rows(options.n_row_slots * shape.slot_bytes));
        selection.resolution = 40.0f;
        selection.sink_tokens = 16;
        selection.recent_tokens = 32;
        selection.error_every = 2;
        selection.keep_rows = true;
    }
    ~Decoder() {
        plane.reset();
        gpu::stream_destroy(stream);
    }

    char * k(int layer) const { return home.data() + size_t{2} * layer * kCells * kCellBytes; }
    char * v(int layer) const { return k(layer) + kCells * kCellBytes; }
    EngineView view() const { return { n_view, 1, 0, 1, 0, plane ? plane->generation() : 0 }; }

    // K, V and Q of every layer, the mask and the cell: the tensors that llama.cpp sets before the graph
    void set_inputs(int token) {
        std::mt19937 rng(token);
        std::normal_distribution<float> normal;
        std::vector<float> values(kLayers * (2 * kHeads * kDim + kQuery));
        for (float & x : values) {
            x = normal(rng);
        }
        inputs.set(values);
        cell.set({ token });
        std::vector<uint16_t> bias(n_view, 0xfc00);
        std::fill(bias.begin(), bias.begin() + token + 1, 0);
        mask.set(bias);
    }

    // its rows
    std::pair<int, int> begin_split(int split) {
        const int first = split * kLayers / options.n_splits, end = (split + 1) * kLayers / options.n_splits;
        EngineGraph graph;
        for (int layer = 0; layer < kLayers; ++layer) {
            graph.stores.push_back(layer >= first && layer < end);
        }
        graph.attends = graph.stores;
        graph.staged.assign(kLayers, kHeads);
        plane->begin_graph(graph);
        return { first, end };
    }

    bool begin(int token) {
        std::vector<MirrorUpdate> updates;
        const int page = token / kPage;
        updates.push_back({ Mirror::newest, page, token });
        updates.push_back({ Mirror::positions, token, token });
        // a page that is full gets a slot, and gives it up again some pages later
        if (options.migrates && token % kPage == 0 && page > 0) {
            for (int head = 0; head < kLayers * kHeads; ++head) {
                const int slot = (page - 1) % 3 * kLayers * kHeads + head;
                copy_page(head, page - 1, slot);
                updates.push_back({ Mirror::slots, int64_t{head} * kPages + page - 1, slot });
                if (page > 3) {
                    updates.push_back({ Mirror::slots, int64_t{head} * kPages + page - 4, -1 });
                }
            }
        }
        // the group that is being filled has no sketch; the one before is built when it is full
        const int group = token / kGroupCells;
        if (token % kGroupCells == 0) {
            updates.push_back({ Mirror::open, group, 1 });
            if (group > 0) {
                updates.push_back({ Mirror::open, group - 1, 0 });
            }
        }
        const EngineStale stale = { 0, group - 1, ~uint64_t{0} };
        EngineStep step = {};
        step.updates = updates.data();
        step.n_updates = updates.size();
        step.stale = &stale;
        step.n_stale = token % kGroupCells == 0 && group > 0 ? 1 : 0;
        step.n_ubatch = static_cast<uint32_t>(token);
        step.clear_observation = token % 8 == 0;
        return plane->begin(step);
    }

    // as libedgekv runs each
    template <class F>
    void node(const char * name, int layer, F && enqueue) {
        if (plane->begin_node(stream)) {
            enqueue();
            plane->end_node((name + std::to_string(layer)).c_str(), stream, false);
        }
    }

    void nodes(int first_layer, int end_layer) {
        for (int layer = first_layer; layer < end_layer; ++layer) {
            const float * at = inputs.data() + layer * (2 * kHeads * kDim + kQuery);
            const int next = layer + 1 < kLayers ? layer + 1 : -1;
            EngineView here = view();
            EngineStore store = {};
            store.k = reinterpret_cast<const char *>(at);
            store.v = reinterpret_cast<const char *>(at + kHeads * kDim);
            store.k_stride_token = store.v_stride_token = kHeads * kDim * sizeof(float);
            store.k_stride_head = store.v_stride_head = kDim * sizeof(float);
            store.k_idxs = store.v_idxs = cell.data();
            store.sketch = options.sparse;
            if (!store.sketch) {  // else the attend node stores
                node("store-", layer, [&] { plane->store(layer, here, store, stream); });
            }

            here.leads = layer == 0;
            EngineAttend attend = attend_of(at + 2 * kHeads * kDim, mask, cell, 1, out.data() + layer * kQuery);
            attend.selection = options.sparse ? &selection : nullptr;
            attend.store = store.sketch ? &store : nullptr;
            attend.next_layer = options.sparse ? -1 : next;
            node("attend-", layer, [&] { plane->attend(layer, here, attend, stream); });
        }
    }

    void split_nodes(int split) {
        const auto [first, end] = begin_split(split);
        nodes(first, end);
    }

    // the outputs of a step, recorded once for each view
    std::vector<float> step(int token, bool replays) {
        n_view = (token / kViewStep + 1) * kViewStep;
        if (token == 45) {  // as when a person changes the budget
            selection.resolution = 100.0f;
            plane->renew();
        }
        // ggml's rule: a node with other parameters is recorded again
        const EngineView now = view();
        if (std::memcmp(&now, &recorded, sizeof(now)) != 0) {
            recordings.clear();
            recorded = now;
        }
        set_inputs(token);
        test::must(begin(token));
        for (int split = 0; split < options.n_splits; ++split) {
            // a split is recorded when it has been the same for a while, each for itself
            if (!replays || token < split) {
                split_nodes(split);
                continue;
            }
            if (!recordings[split]) {
                recordings[split] = std::make_unique<Recording>(stream);
                split_nodes(split);
                if (!recordings[split]->end()) {
                    CHECK(false, "%s: split %d cannot be recorded: %s", options.name, split, gpu::last_error());
                    recordings.erase(split);
                    continue;
                }
            }
            CHECK(recordings[split]->launch(), "%s: %s", options.name, gpu::last_error());
        }
        plane->end();
        test::must(plane->wait_for_step());
        return out.get();
    }

    // weights: 1 / p of the rows read, by KV head; null: every cell
    std::vector<float> reference(int token, int layer, const std::vector<std::vector<float>> * weights) const {
        std::vector<float> q = inputs.get();
        std::vector<float> expected(kQuery);
        std::vector<uint16_t> bias = mask.get();
        AttendProblem p = test::dense_problem(kDim, kHeads * kGroup, kHeads, 1, token + 1, CellType::f16);
        p.page_tokens = kPage;
        p.q = reinterpret_cast<const char *>(q.data() + layer * (2 * kHeads * kDim + kQuery) + 2 * kHeads * kDim);
        p.k = k(layer);
        p.v = v(layer);
        p.mask_type = MaskType::f16;
        p.mask = reinterpret_cast<const char *>(bias.data());
        p.mask_stride_token = n_view * 2;
        p.out = reinterpret_cast<char *>(expected.data());
        std::vector<int32_t> cells, n_rows;
        std::vector<float> list_weights;
        for (int head = 0; weights && head < kHeads; ++head) {
            n_rows.push_back(0);
            cells.resize((head + 1) * kCells);
            list_weights.resize((head + 1) * kCells);
            for (int c = 0; c <= token; ++c) {
                if ((*weights)[head][c] > 0.0f) {
                    cells[head * kCells + n_rows[head]] = c;
                    list_weights[head * kCells + n_rows[head]++] = (*weights)[head][c];
                }
            }
        }
        p.rows = { cells.data(), list_weights.data(), n_rows.data(), weights ? size_t{kCells} : 0 };
        attend_reference(p);
        return expected;
    }

    template <class T>
    std::vector<T> read(const T * at, size_t n) const {
        std::vector<T> values(n);
        test::must(plane->read(values.data(), at, n * sizeof(T)));
        return values;
    }
    std::vector<float> mass() const { return read(plane->mass_max(), 2 * size_t{kLayers} * kHeads * kPages); }
    std::vector<char> sketches(int layer) const { return read(plane->sketches(layer, 0), plane->sketch_stream_bytes(layer)); }
    // of the layer that was attended last, by cell
    std::vector<std::vector<float>> last_weights(int layer) const {
        std::vector<std::vector<float>> of_heads(kHeads, std::vector<float>(kCells));
        for (int head = 0; head < kHeads; ++head) {
            int n = 0;
            const float * weights = nullptr;
            const int32_t * cells = plane->last_rows(layer, head, n, weights);
            for (int i = 0; cells && i < n; ++i) {
                of_heads[head][cells[i]] = weights ? weights[i] : 1.0f;
            }
        }
        return of_heads;
    }
    std::vector<edgekv_selected> selected() const {
        std::vector<edgekv_selected> values(kLayers * kHeads);
        test::must(plane->selected(values.data(), 0, kLayers));
        return values;
    }

    // The outputs of the n newest tokens in the first layer, whose K and V are others now; the engine serves `together_bytes` of them at a time.
    std::vector<float> several(int newest, int n, size_t together_bytes) {
        plane->together_bytes = together_bytes;
        EngineView here = view();
        here.n_tokens = n;
        here.leads = 1;
        test::must(plane->reserve_workspace(0, here, true));
        here.generation = plane->generation();
        std::mt19937 rng(7);
        std::normal_distribution<float> normal;
        constexpr size_t kWidth = size_t{kHeads} * kDim;
        std::vector<float> values(n * (kQuery + 2 * kWidth));
        std::generate(values.begin(), values.end(), [&] { return normal(rng); });
        std::vector<uint16_t> bias(static_cast<size_t>(n) * n_view, 0xfc00);
        std::vector<int64_t> cells(n);
        for (int i = 0; i < n; ++i) {
            cells[i] = newest - n + 1 + i;
            std::fill_n(bias.begin() + static_cast<size_t>(i) * n_view, cells[i] + 1, 0);
        }
        const DeviceArray<float> q(values), found(n * kQuery);
        const DeviceArray<uint16_t> masks(bias);
        const DeviceArray<int64_t> idxs(cells);
        EngineAttend attend = attend_of(q.data(), masks, idxs, n, found.data());
        attend.selection = &selection;
        EngineStore store = {};
        store.k = reinterpret_cast<const char *>(q.data() + n * kQuery);
        store.v = store.k + n * kWidth * sizeof(float);
        store.k_stride_token = store.v_stride_token = kWidth * sizeof(float);
        store.k_stride_head = store.v_stride_head = kDim * sizeof(float);
        store.k_idxs = store.v_idxs = idxs.data();
        store.sketch = true;
        attend.store = &store;
        plane->attend(0, here, attend, stream);
        test::must(plane->wait_for_step());
        return found.get();
    }

    const Options options;
    EngineShape shape = {};
    std::unique_ptr<gpu::GpuEngine> plane;
    DeviceArray<char> home;

private:
    // n tokens attend to every cell, and their mass is observed.
    EngineAttend attend_of(const float * q, const DeviceArray<uint16_t> & masks, const DeviceArray<int64_t> & cells, int n, float * to) const {
        EngineAttend attend = {};
        attend.query = { reinterpret_cast<const char *>(q), kQuery * sizeof(float), kDim * sizeof(float), MaskType::f16,
                         reinterpret_cast<const char *>(masks.data()), n_view * 2u, size_t{2} * n * n_view, cells.data(), nullptr, 0.125f, 0.0f };
        attend.out = reinterpret_cast<char *>(to);
        attend.observe = true;
        attend.next_layer = -1;
        return attend;
    }

    void copy_page(int layer_head, int page, int slot) {
        const int layer = layer_head / kHeads, head = layer_head % kHeads;
        char * at = plane->arena() + slot * shape.slot_bytes;
        for (int i = 0; i < kPage; ++i) {
            const size_t from = static_cast<size_t>(page * kPage + i) * kCellBytes + head * kRowBytes;
            test::must(gpu::copy(at + i * kRowBytes, k(layer) + from, kRowBytes) && gpu::copy(at + (kPage + i) * kRowBytes, v(layer) + from, kRowBytes));
        }
    }

    gpu::Stream stream = nullptr;
    int n_view = kViewStep;
    edgekv_selection selection = {};
    DeviceArray<float> inputs{size_t{kLayers} * (2 * kHeads * kDim + kQuery)}, out{kLayers * kQuery};
    DeviceArray<uint16_t> mask{kCells + kViewStep};
    DeviceArray<int64_t> cell{1};
    std::map<int, std::unique_ptr<Recording>> recordings;
    EngineView recorded = {};
};

}  // namespace edgekv
