// Checks the kernels that move bytes, byte for byte: what has to arrive, and that nothing else is written.
#include <memory>
#include <numeric>

#include "cuda/kernels/move_device.cu"

#include "kernels/decode/attend.h"
#include "cell_rows.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

constexpr uint8_t kUntouched = 0xab;

struct Shape {
    int head_dim, n_heads, page_tokens, n_cells, n_streams;
    CellType k_type, v_type;
    int gap;   // bytes between heads, and between cells
    int skew;  // bytes that home begins behind an aligned address
};

// Home of one layer in pinned memory that ends with the last byte of the last cell.
struct Home {
    EdgekvDeviceLayer layer{};
    std::vector<uint8_t> bytes;
    DeviceArray<uint8_t> pinned;
    size_t k_at, v_at;

    static EdgekvDeviceLayer layout(const Shape & c) {
        EdgekvDeviceLayer layer{};
        layer.n_heads = static_cast<uint64_t>(c.n_heads);
        layer.k_row_bytes = row_bytes(c.k_type, c.head_dim);
        layer.v_row_bytes = row_bytes(c.v_type, c.head_dim);
        layer.k_stride_head = layer.k_row_bytes + static_cast<uint64_t>(c.gap);
        layer.v_stride_head = layer.v_row_bytes + static_cast<uint64_t>(c.gap);
        layer.k_stride_cell = layer.k_stride_head * layer.n_heads + static_cast<uint64_t>(c.gap);
        layer.v_stride_cell = layer.v_stride_head * layer.n_heads + static_cast<uint64_t>(c.gap);
        layer.k_stride_stream = layer.k_stride_cell * static_cast<uint64_t>(c.n_cells);
        layer.v_stride_stream = layer.v_stride_cell * static_cast<uint64_t>(c.n_cells);
        layer.v_offset = layer.k_row_bytes * static_cast<uint64_t>(c.page_tokens);
        return layer;
    }
    static size_t v_begin(const Shape & c, const EdgekvDeviceLayer & layer) {
        return (c.skew + layer.k_stride_stream * c.n_streams + 63) / 64 * 64 + c.skew;
    }

    Home(const Shape & c, uint64_t seed)
        : layer(layout(c)),
          bytes(Random(seed).bytes<uint8_t>(v_begin(c, layer) + layer.v_stride_stream * c.n_streams - 2 * static_cast<size_t>(c.gap))),
          pinned(bytes, true),
          k_at(static_cast<size_t>(c.skew)),
          v_at(v_begin(c, layer)) {
        layer.k = reinterpret_cast<uintptr_t>(pinned.data()) + k_at;
        layer.v = reinterpret_cast<uintptr_t>(pinned.data()) + v_at;
    }

    // Of K, or of V where `value`.
    size_t n_bytes(bool value) const { return value ? layer.v_row_bytes : layer.k_row_bytes; }
    size_t place(bool value, int cell, int head) const {
        return value ? cell * layer.v_stride_cell + head * layer.v_stride_head : cell * layer.k_stride_cell + head * layer.k_stride_head;
    }
    const uint8_t * at(bool value, int stream, int cell, int head) const {
        return &bytes[(value ? v_at + stream * layer.v_stride_stream : k_at + stream * layer.k_stride_stream) + place(value, cell, head)];
    }
    size_t in_slot(bool value, int in_page) const { return (value ? layer.v_offset : 0) + in_page * n_bytes(value); }

    // Copies a page of one head as its slot has to hold it.
    void put(const Shape & c, int stream, int head, int page, uint8_t * slot) const {
        for (int i = 0; i < c.page_tokens && page * c.page_tokens + i < c.n_cells; ++i) {
            for (const bool value : {false, true}) {
                std::memcpy(slot + in_slot(value, i), at(value, stream, page * c.page_tokens + i, head), n_bytes(value));
            }
        }
    }
};

void check_crossed(size_t before, size_t n, const char * what) {
    const size_t crossed = crossed_bytes() - before;
    CHECK(!kTellsCrossed || crossed == n, "%s: %zu bytes over the link, not %zu", what, crossed, n);
}

size_t slot_bytes(const EdgekvDeviceLayer & layer, const Shape & c) {
    return ((layer.k_row_bytes + layer.v_row_bytes) * static_cast<size_t>(c.page_tokens) + 63) / 64 * 64;
}

void check_ring(const Shape & c, uint64_t seed, Stream stream) {
    Random rng(seed);
    const Home home(c, seed);
    const int n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    RingProblem p{};
    p.layer = home.layer;
    p.stream = rng.below(c.n_streams);
    p.n_cells = c.n_cells;
    p.page_tokens = c.page_tokens;
    p.first = seed % 3 == 0 ? rng.below(n_pages) : 0;
    p.end = seed % 7 == 0 ? p.first : seed % 3 == 1 ? p.first + 1 + rng.below(n_pages - p.first) : n_pages;
    p.slots_stride = static_cast<size_t>(n_pages) + 3;
    p.slot_bytes = slot_bytes(p.layer, c);
    const int n_ring = p.end - p.first;

    std::vector<int32_t> slots(p.slots_stride * c.n_heads), newest;
    std::vector<uint8_t> fresh;
    for (int32_t & slot : slots) {
        slot = rng.one_of(3) ? rng.below(100) : -1;
    }
    for (int page = 0; page < n_pages; ++page) {
        newest.push_back(rng.one_of(4) ? -1 : page);
        fresh.push_back(rng.one_of(6));
    }
    const bool with_fresh = seed % 5 != 0;
    const DeviceArray<int32_t> slots_device(slots), newest_device(newest);
    const DeviceArray<uint8_t> fresh_device(fresh);
    const size_t n_slots = static_cast<size_t>(n_ring) * c.n_heads;
    const DeviceArray<uint8_t> ring(std::vector<uint8_t>(n_slots * p.slot_bytes, kUntouched)),
        held(std::vector<uint8_t>(n_slots, 9));
    p.slots = slots_device.data();
    p.newest = newest_device.data();
    p.fresh = fresh_device.or_null(with_fresh);
    p.ring = reinterpret_cast<char *>(ring.data());
    p.held = held.data();
    launch_gather_ring(p, stream, 1 + static_cast<int>(seed % 5));
    must(stream_sync(stream));

    std::vector<uint8_t> want(n_slots * p.slot_bytes, kUntouched), want_held(n_slots, 0);
    for (int head = 0; head < c.n_heads; ++head) {
        for (int page = p.first; page < p.end; ++page) {
            if (newest[page] >= 0 && slots[head * p.slots_stride + page] < 0 && !(with_fresh && fresh[page] != 0)) {
                const size_t at = static_cast<size_t>(head) * n_ring + (page - p.first);
                want_held[at] = 1;
                home.put(c, p.stream, head, page, want.data() + at * p.slot_bytes);
            }
        }
    }
    CHECK(held.get() == want_held, "d%d cells %d", c.head_dim, c.n_cells);
    CHECK(ring.get() == want, "d%d k%d v%d heads %d page %d cells %d gap %d skew %d", c.head_dim, static_cast<int>(c.k_type),
          static_cast<int>(c.v_type), c.n_heads, c.page_tokens, c.n_cells, c.gap, c.skew);
}

// Layers of different shapes share an arena whose slots hold the largest.
void check_moves(const std::vector<Shape> & shapes, int n_moves, uint64_t seed, Stream stream) {
    Random rng(seed);
    const Shape & c = shapes.front();  // page_tokens, cells and streams are one context's
    const int pages_per_stream = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    std::vector<std::unique_ptr<Home>> homes;
    std::vector<EdgekvDeviceLayer> layers;
    size_t bytes = 0;
    int n_heads = 0;
    for (const Shape & shape : shapes) {
        homes.push_back(std::make_unique<Home>(shape, ++seed));
        layers.push_back(homes.back()->layer);
        bytes = std::max(bytes, slot_bytes(layers.back(), shape));
        n_heads = std::max(n_heads, shape.n_heads);
    }
    const int n_slots = n_moves + 4;
    std::vector<int> slots(static_cast<size_t>(n_slots));
    std::iota(slots.begin(), slots.end(), 0);
    rng.shuffle(slots);
    std::vector<EdgekvDeviceMove> moves;
    std::vector<uint8_t> want(bytes * n_slots, kUntouched);
    for (int i = 0; i < n_moves; ++i) {
        const int layer = static_cast<int>(rng.next() % shapes.size());
        const int page = rng.below(pages_per_stream * c.n_streams);
        moves.push_back({layer, rng.below(n_heads), i % 5 == 0 ? pages_per_stream * c.n_streams - 1 : page, slots[i]});
        const EdgekvDeviceMove & m = moves.back();
        if (m.head < shapes[layer].n_heads) {
            homes[layer]->put(shapes[layer], m.page / pages_per_stream, m.head, m.page % pages_per_stream, want.data() + m.slot * bytes);
        }
    }
    const DeviceArray<EdgekvDeviceLayer> layers_device(layers);
    const DeviceArray<EdgekvDeviceMove> moves_device(moves);
    const DeviceArray<uint8_t> arena(std::vector<uint8_t>(want.size(), kUntouched));
    if (n_moves > 0) {  // as the caller of libedgekv launches it
        launch(edgekv_gather_pages, {blocks_for(2ll * n_moves, 1 + static_cast<int>(seed % 4))}, kThreads, 0, stream, layers_device.data(),
               moves_device.data(), n_moves, reinterpret_cast<char *>(arena.data()), static_cast<unsigned long long>(bytes), c.page_tokens,
               c.n_cells, pages_per_stream);
    }
    must(stream_sync(stream));
    CHECK(arena.get() == want, "%d moves, d%d cells %d", n_moves, c.head_dim, c.n_cells);
}

// Pages out of their slots, the others out of home, some of which are left in a slot too. Only the latter cross the link.
void check_stage(const Shape & c, int n_cells, uint64_t seed, Stream stream) {
    Random rng(seed);
    const Home home(c, seed);
    const int which = static_cast<int>(seed) % c.n_streams;
    const EdgekvDeviceLayer & layer = home.layer;
    const int n_pages = (n_cells + c.page_tokens - 1) / c.page_tokens;
    const size_t slots_stride = static_cast<size_t>(n_pages) + 2, n_slots = slots_stride * c.n_heads, n_slot = slot_bytes(layer, c);

    std::vector<int32_t> slots(n_slots), places(n_slots);
    std::iota(places.begin(), places.end(), 0);
    rng.shuffle(places);
    for (size_t i = 0; i < n_slots; ++i) {
        const uint64_t kind = rng.next() % 3;
        slots[i] = kind == 0 ? -1 : kind == 1 ? places[i] : -2 - places[i];
    }
    // slots hold other bytes than home, so that it shows where a page came from
    const std::vector<uint8_t> held = Random(seed + 1).bytes<uint8_t>(n_slots * n_slot);
    std::vector<uint8_t> want_arena = held;
    const size_t k_bytes = layer.k_stride_cell * n_cells, v_bytes = layer.v_stride_cell * n_cells;
    std::vector<uint8_t> want_k(k_bytes + 16, kUntouched), want_v(v_bytes + 16, kUntouched);
    const DeviceArray<uint8_t> k(want_k), v(want_v), arena(held);
    const DeviceArray<int32_t> slots_device(slots);
    const StageProblem p = {layer, which, n_cells, c.page_tokens, slots_device.data(), slots_stride, reinterpret_cast<char *>(arena.data()),
                            n_slot, {reinterpret_cast<char *>(k.data()), layer.k_stride_cell, layer.k_stride_head},
                            {reinterpret_cast<char *>(v.data()), layer.v_stride_cell, layer.v_stride_head}};
    const size_t before = crossed_bytes();
    launch_stage(p, stream, 1 + static_cast<int>(seed % 5));
    must(stream_sync(stream));

    size_t n_link = 0;
    for (int cell = 0; cell < n_cells; ++cell) {
        const int page = cell / c.page_tokens;
        for (int head = 0; head < c.n_heads; ++head) {
            const int32_t slot = slots[head * slots_stride + page];
            for (const bool value : {false, true}) {
                const size_t n = home.n_bytes(value), dense = (slot >= 0 ? slot : -2 - slot) * n_slot + home.in_slot(value, cell % c.page_tokens);
                const uint8_t * from = slot >= 0 ? &held[dense] : home.at(value, which, cell, head);
                std::copy_n(from, n, &(value ? want_v : want_k)[home.place(value, cell, head)]);
                if (slot < -1) {
                    std::copy_n(from, n, &want_arena[dense]);
                }
                n_link += slot < 0 ? n : 0;
            }
        }
    }
    check_crossed(before, n_link, "staging");
    CHECK(k.get() == want_k && v.get() == want_v, "%d of %d cells", n_cells, c.n_cells);
    CHECK(arena.get() == want_arena, "%d of %d cells: the arena", n_cells, c.n_cells);
}

// Rows that two groups of lists name, one behind the other: each comes over the link once, and those of pages in slots not at all.
void check_bring(const Shape & c, uint64_t seed, Stream stream) {
    Random rng(seed);
    const Home home(c, seed);
    const int which = static_cast<int>(seed) % c.n_streams;
    const EdgekvDeviceLayer & layer = home.layer;
    const int n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens, n_lists = c.n_heads * (1 + static_cast<int>(seed % 3));
    const size_t slots_stride = static_cast<size_t>(n_pages) + 2, list_stride = static_cast<size_t>(c.n_cells) + 1;
    const size_t brought_stride = static_cast<size_t>(c.n_cells + 31) / 32 + 1;
    std::vector<int32_t> slots(slots_stride * c.n_heads);
    for (int32_t & slot : slots) {
        slot = rng.one_of(3) ? rng.below(100) : -1 - rng.below(3);
    }
    std::vector<uint8_t> want_k(layer.k_stride_cell * c.n_cells + 16, kUntouched), want_v(layer.v_stride_cell * c.n_cells + 16, kUntouched);
    const DeviceArray<uint8_t> k(want_k), v(want_v);
    const DeviceArray<int32_t> slots_device(slots);
    const DeviceArray<uint32_t> brought(std::vector<uint32_t>(brought_stride * c.n_heads));
    std::vector<bool> there(static_cast<size_t>(c.n_cells) * c.n_heads);
    for (int turn = 0; turn < 2; ++turn) {
        std::vector<int32_t> cells(list_stride * n_lists, -7), n_rows(static_cast<size_t>(n_lists));
        size_t n_link = 0;
        for (int list = 0; list < n_lists; ++list) {
            const int head = list % c.n_heads;
            for (int cell = 0; cell < c.n_cells; ++cell) {
                if (!rng.one_of(4)) {
                    continue;
                }
                cells[list * list_stride + n_rows[list]++] = cell;
                if (slots[head * slots_stride + cell / c.page_tokens] >= 0 || there[static_cast<size_t>(head) * c.n_cells + cell]) {
                    continue;
                }
                there[static_cast<size_t>(head) * c.n_cells + cell] = true;
                for (const bool value : {false, true}) {
                    const size_t n = home.n_bytes(value);
                    std::copy_n(home.at(value, which, cell, head), n, &(value ? want_v : want_k)[home.place(value, cell, head)]);
                    n_link += n;
                }
            }
        }
        const DeviceArray<int32_t> cells_device(cells), n_device(n_rows);
        const BringProblem p = {layer, which, c.page_tokens, cells_device.data(), n_device.data(), list_stride, n_lists, slots_device.data(),
                                slots_stride, brought.data(), brought_stride, reinterpret_cast<char *>(k.data()), reinterpret_cast<char *>(v.data())};
        const size_t before = crossed_bytes();
        launch_bring(p, stream, 1 + static_cast<int>(seed % 5));
        must(stream_sync(stream));
        check_crossed(before, n_link, "rows of lists");
        CHECK(k.get() == want_k && v.get() == want_v, "turn %d: %d cells of %d heads", turn, c.n_cells, c.n_heads);
    }
}

void check_scatter(int n, uint64_t seed, Stream stream) {
    Random rng(seed);
    std::vector<int32_t> want(static_cast<size_t>(n) * 2 + 5, -3), places(want.size());
    const DeviceArray<int32_t> dst(want);
    std::iota(places.begin(), places.end(), 0);
    rng.shuffle(places);
    std::vector<int2> updates;
    for (int i = 0; i < n; ++i) {
        updates.push_back({places[i], rng.below(1000)});
        want[places[i]] = updates.back().y;
    }
    const DeviceArray<int2> updates_device(updates);
    launch_scatter32(dst.data(), updates_device.data(), n, stream);
    must(stream_sync(stream));
    CHECK(dst.get() == want, "%d updates", n);
}

}  // namespace

int main() {
    const TestStream stream;
    const int cells[] = {1, 15, 16, 27, 61, 113, 482, 577, 1110};
    const int heads[] = {1, 2, 3, 8};
    uint64_t seed = 0;
    for (int head_dim : {64, 80, 96, 128, 256, 72, 112, 192}) {
        for (int types = 0; types < kTypePairs; ++types) {
            const CellType k_type = k_type_of(types), v_type = v_type_of(types);
            if (!attend_supports(head_dim, k_type, v_type)) {
                continue;
            }
            for (int i = 0; i < 12; ++i) {
                ++seed;
                if (kFew ? i != 10 : i % 5 != 0) {
                    continue;
                }
                const int gaps[] = {0, 0, 2, 8, 16}, skews[] = {0, 0, 2, 4};
                Shape c = {head_dim, heads[seed % 4], seed % 3 == 0 ? 32 : 16, cells[seed % 9],    1 + static_cast<int>(seed % 3),
                           k_type,   v_type,          gaps[seed % 5],          skews[seed / 2 % 4]};
                if (head_dim == 256) {
                    c.n_heads = std::min(c.n_heads, 2);
                }
                check_ring(c, seed, stream);
                check_bring(c, seed, stream);
                check_stage(c, i % 4 == 0 ? c.n_cells : i % 4 == 1 ? 0 : 1 + c.n_cells / 2, seed, stream);
                Shape other = c;
                std::swap(other.k_type, other.v_type);
                other.n_heads = 1 + static_cast<int>(seed % 5);
                check_moves({c, other}, i == 0 ? 0 : 1 + static_cast<int>(seed * 5 % 40), seed, stream);
            }
        }
    }
    for (int n : {0, 1, 31, 1000}) {
        check_scatter(n, ++seed, stream);
    }
    return finish();
}
