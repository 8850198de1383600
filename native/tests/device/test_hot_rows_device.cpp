// Copies of listed rows in the device's memory: launch_sample() names and fills their places, launch_store() forgets those of groups that changed. What
// a list's copy holds are the bytes of home, however few places there are and whatever was there before.
#include <map>
#include <set>

#include "cuda/kernels/sample_device.cu"
#include "cuda/kernels/store_device.cu"

#include "device_array.h"
#include "sample_instance.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

constexpr int kPage = 16, kLayer = 3, kFirstStream = 1;
constexpr uint64_t kFirstRow = 12345;
long n_rows_all = 0, n_new = 0, n_old = 0, n_without = 0;

struct Shape {
    CellType k_type, v_type;
    int dim;
    int n_sets;
    bool ample;  // every row finds a place, and keeps it
};

// A cache, its lists, and the copies.
class Cache {
public:
    Cache(const SampleCase & c, const Shape & shape, uint64_t seed) : c(c), shape(shape), in(c, seed) {
        n_streams = kFirstStream + c.n_streams;
        k_bytes = static_cast<size_t>(bytes_of_row(shape.k_type, shape.dim));
        v_bytes = static_cast<size_t>(bytes_of_row(shape.v_type, shape.dim));
        v_offset = (k_bytes + 15) / 16 * 16;
        stride = v_offset + (v_bytes + 15) / 16 * 16;
        n_home_rows = static_cast<size_t>(n_streams) * c.n_cells() * c.n_head_kv;
        home_k = DeviceArray<char>(n_home_rows * k_bytes, true);
        home_v = DeviceArray<char>(n_home_rows * v_bytes, true);
        change_home();
        for (int i = 0; i < n_streams * c.n_groups; ++i) {
            is_open.push_back(in.rng.one_of(4));
        }
        for (int i = 0; i < c.n_head_kv * n_streams * c.n_cells() / kPage; ++i) {
            of_pages.push_back(in.rng.one_of(3) ? 0 : -1);  // nobody reads the arena here
        }
        for (int i = 0; i < n_streams * c.n_cells(); ++i) {
            positions.push_back(in.rng.below(200000));
        }
        entries = DeviceArray<unsigned long long>(std::vector<unsigned long long>(static_cast<size_t>(shape.n_sets) * kHotRowWays));
        rows = DeviceArray<char>(std::vector<char>(shape.n_sets * kHotRowWays * stride, 7));
        words = DeviceArray<unsigned long long>(std::vector<unsigned long long>(4096));
    }

    void change_home() {
        std::vector<char> k(n_home_rows * k_bytes), v(n_home_rows * v_bytes);
        for (std::vector<char> * bytes : {&k, &v}) {
            for (char & x : *bytes) {
                x = static_cast<char>(in.rng.below(120));  // no f16 is a NaN
            }
        }
        home_k.set(k);
        home_v.set(v);
    }

    HotRows hot() const {
        return {entries.data(), static_cast<uint32_t>(shape.n_sets), rows.data(), stride, v_offset, kFirstRow, n_streams, c.n_cells()};
    }

    // A launch; its lists are checked.
    void list(const TestStream & stream) {
        const size_t of_list = static_cast<size_t>(c.n_cells()) + 1, n_lists = static_cast<size_t>(c.n_lists());
        const DeviceArray<uint16_t> cells(in.shares);
        const DeviceArray<float> tops(in.tops), sums(in.sums), weights(std::vector<float>(n_lists * of_list));
        const DeviceArray<Sight> sight(in.sight);
        std::vector<int64_t> own;
        for (int i = 0; i < c.n_queries(); ++i) {
            own.push_back(in.rng.below(n_streams * c.n_cells()));
        }
        const DeviceArray<int64_t> k_idxs(own);
        const DeviceArray<int32_t> of_cells(positions), listed(std::vector<int32_t>(n_lists * of_list)), n(std::vector<int32_t>(n_lists, 0)), open(is_open),
            pages(of_pages), slots(std::vector<int32_t>(n_lists * of_list, -7));
        SampleBatch b{};
        b.n_streams = c.n_streams, b.first_stream = kFirstStream, b.n_tokens = c.n_tokens, b.n_head_kv = c.n_head_kv;
        b.group = c.group, b.n_groups = c.n_groups;
        b.shares = {cells.data(), tops.data(), sums.data(), in.cell_stride, in.group_stride};
        b.sight = sight.data(), b.sight_stride = in.sight_stride;
        b.resolution = c.resolution;
        b.layer = kLayer;
        b.k_idxs = k_idxs.data(), b.positions = of_cells.data(), b.n_cells_stream = c.n_cells();
        b.rows = listed.data(), b.weights = weights.data(), b.stride = of_list, b.n_rows = n.data();
        b.words = words.data();
        b.kept.hot = hot();
        b.kept.k = home_of(home_k, k_bytes);
        b.kept.v = home_of(home_v, v_bytes);
        const int pages_per_stream = c.n_cells() / kPage;
        b.kept.arena = {rows.data(), 1, 0, pages.data(), static_cast<size_t>(n_streams) * pages_per_stream, kPage, pages_per_stream};
        b.kept.open = open.data(), b.kept.n_groups = c.n_groups;
        b.kept.slots = slots.data();
        const size_t before = crossed_bytes();
        launch_sample(b, stream);
        must(stream_sync(stream) && check());
        check_lists(listed.get(), n.get(), slots.get(), of_list, crossed_bytes() - before);
    }

    // Builds the sketches of a group of all heads, and forgets its rows.
    void rebuild(int stream, int group, const TestStream & on) {
        const int n_groups = c.n_groups;
        const size_t bytes = sketch_bytes(shape.dim, c.n_head_kv, n_groups);
        const DeviceArray<char> sketches(std::vector<char>(bytes * n_streams));
        const DeviceArray<StaleGroup> stale(std::vector<StaleGroup>{{stream, group, 0x0123456789abcdefull}});
        const DeviceArray<int> n_stale(std::vector<int>{1});
        StoreArgs args{};
        args.head_dim = shape.dim, args.n_head_kv = c.n_head_kv, args.cells_per_stream = c.n_cells();
        args.k.type = shape.k_type;
        args.build.sketches = {shape.dim, c.n_head_kv, n_groups, sketches.data(), bytes};
        const HomeRows home = home_of(home_k, k_bytes);
        args.build.home = {shape.k_type, home.of, home.stride_stream, false, {}};
        args.build.stale = stale.data(), args.build.n_stale = n_stale.data(), args.build.n_expected = 1;
        args.build.hot = hot();
        launch_store(args, on);
        must(stream_sync(on) && check());
        for (int head = 0; head < c.n_head_kv; ++head) {
            for (int cell = group * kGroupCells; cell < (group + 1) * kGroupCells; ++cell) {
                seen.erase(row(head, stream, cell));
            }
        }
    }

    const SampleCase c;
    const Shape shape;
    std::set<size_t> seen;  // rows that have copies, if there is room for all
    int n_streams;

private:
    size_t row(int head, int stream, int cell) const { return (static_cast<size_t>(stream) * c.n_cells() + cell) * c.n_head_kv + head; }
    HomeRows home_of(const DeviceArray<char> & home, size_t bytes) const {
        return {{home.data(), c.n_head_kv * bytes, bytes}, static_cast<size_t>(c.n_cells()) * c.n_head_kv * bytes, static_cast<int>(bytes)};
    }

    void check_lists(const std::vector<int32_t> & listed, const std::vector<int32_t> & n, const std::vector<int32_t> & slots, size_t of_list, size_t link) {
        const std::vector<char> copies = rows.get(), k = home_k.get(), v = home_v.get();
        std::map<int32_t, size_t> rows_of;
        std::set<size_t> brought;
        size_t bytes = 0;
        bool lacks = false;
        for (int list = 0; list < c.n_lists(); ++list) {
            const int head = list % c.n_head_kv, stream = kFirstStream + list / c.n_head_kv / c.n_tokens;
            expect(slots[list * of_list + n[list]] == -7, c, "nothing behind the rows", slots[list * of_list + n[list]], -7);
            for (int i = 0; i < n[list]; ++i) {
                const int32_t cell = listed[list * of_list + i], slot = slots[list * of_list + i];
                const size_t page = static_cast<size_t>(head) * n_streams * c.n_cells() / kPage + static_cast<size_t>(stream * c.n_cells() + cell) / kPage;
                ++n_rows_all;
                if (is_open[static_cast<size_t>(stream * c.n_groups + cell / kGroupCells)] != 0 || of_pages[page] >= 0) {
                    expect(slot == -1, c, "rows of open groups and of the arena have no copies", slot, -1);
                    continue;
                }
                if (slot == -1) {
                    ++n_without;
                    lacks = true;
                    expect(!shape.ample, c, "a row without a place", slot, list);
                    continue;
                }
                const int32_t at = slot & (kBrought - 1);
                const size_t here = row(head, stream, cell);
                if (!expect(at >= 0 && at < shape.n_sets * kHotRowWays, c, "the slot exists", at, shape.n_sets * kHotRowWays)) {
                    continue;
                }
                expect(rows_of.emplace(at, here).first->second == here, c, "two rows share a slot", at, list);
                expect(std::memcmp(copies.data() + at * stride, k.data() + here * k_bytes, k_bytes) == 0, c, "K of the copy", at, cell);
                expect(std::memcmp(copies.data() + at * stride + v_offset, v.data() + here * v_bytes, v_bytes) == 0, c, "V of the copy", at, cell);
                if (slot >= kBrought) {
                    ++n_new;
                    brought.insert(here);
                    bytes += k_bytes + v_bytes;
                    expect(!shape.ample || seen.count(here) == 0, c, "a row is brought again", at, cell);
                } else {
                    ++n_old;
                    asked.insert(here);
                }
            }
        }
        expect(!lacks || shape.n_sets > 1 || rows_of.size() == kHotRowWays, c, "a place is lacking where another row's was not listed now",
               static_cast<double>(rows_of.size()), kHotRowWays);
        expect(!kTellsCrossed || link == bytes, c, "bytes over the link", static_cast<double>(link), static_cast<double>(bytes));
        for (const size_t here : asked) {
            expect(!shape.ample || seen.count(here) + brought.count(here) > 0, c, "a copy that nobody brought", static_cast<double>(here), 0);
        }
        asked.clear();
        seen.insert(brought.begin(), brought.end());
    }

    SampleInstance in;
    size_t k_bytes = 0, v_bytes = 0, v_offset = 0, stride = 0, n_home_rows = 0;
    std::set<size_t> asked;
    std::vector<int32_t> is_open, of_pages, positions;
    DeviceArray<unsigned long long> entries, words;
    DeviceArray<char> rows;
    DeviceArray<char> home_k, home_v;
};

void check_shape(const Shape & shape, int n_groups, int n_tokens, uint64_t seed, const TestStream & stream) {
    SampleCase c{};
    c.n_streams = 1 + seed % 2, c.n_tokens = n_tokens, c.n_head_kv = 1 + seed % 3, c.n_groups = n_groups, c.group = 2;
    c.resolution = 30.0f, c.logits = Logits::normal, c.hidden = true, c.certain = 1;
    Cache cache(c, shape, seed);
    for (int launch = 0; launch < 3; ++launch) {
        cache.list(stream);
    }
    // what lies at home changes: only what is rebuilt is read again, so all is
    cache.change_home();
    for (int of = 0; of < cache.n_streams; ++of) {
        for (int group = 0; group < n_groups; ++group) {
            cache.rebuild(of, group, stream);
        }
    }
    for (int launch = 0; launch < 2; ++launch) {
        cache.list(stream);
    }
}

}  // namespace

int main() {
    Device card;
    if (!has_device(card)) {
        return 77;
    }
    const TestStream stream;
    uint64_t seed = 0;
    for (const CellType k : {CellType::f16, CellType::q8_0, CellType::q4_0}) {
        for (const CellType v : {CellType::f16, CellType::q8_0, CellType::q4_0}) {
            for (const int dim : {64, 128}) {
                if (kFew && (k == v) != (dim == 64)) {
                    continue;
                }
                for (const int n_sets : {1, 5, 4096}) {
                    check_shape({k, v, dim, n_sets, n_sets > 1000}, 1 + static_cast<int>(seed) % 18, 1 + static_cast<int>(seed) % 3, seed, stream);
                    ++seed;
                }
            }
        }
    }
    CHECK(n_new > 1000 && n_old > 1000 && n_without > 1000, "%ld brought, %ld found, %ld without a place", n_new, n_old, n_without);
    std::printf("%ld rows: %ld brought, %ld found, %ld without a place\n", n_rows_all, n_new, n_old, n_without);
    return finish();
}
