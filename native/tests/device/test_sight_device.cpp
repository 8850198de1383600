// Checks launch_sight() against the rule, written out below.
#include "cuda/kernels/sight_device.cu"

#include "cell_rows.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

struct Case {
    int n_streams, n_tokens, n_cells, page_tokens;
    MaskType mask;
    bool open;    // some groups have no sketch
    int pattern;  // of the mask: 0 causal, 1 scattered, 2 nothing is seen, 3 one cell is seen
};

void check_case(const Case & c, uint64_t seed, Stream stream) {
    Random rng(seed);
    const int n_stream_cache = c.n_streams + 2, first_stream = rng.below(3);
    const int n_cells_stream = c.n_cells + rng.below(70);
    const int groups_per_stream = (n_cells_stream + kGroupCells - 1) / kGroupCells, n_groups = (c.n_cells + kGroupCells - 1) / kGroupCells;

    std::vector<int32_t> positions(static_cast<size_t>(n_stream_cache) * n_cells_stream);
    std::vector<int32_t> open;
    std::vector<uint32_t> pins;
    for (int s = 0; s < n_stream_cache; ++s) {
        for (int cell = 0; cell < n_cells_stream; ++cell) {
            const int position = (cell * 7 + s) % n_cells_stream;  // not in the order of the cells
            positions[static_cast<size_t>(s) * n_cells_stream + cell] = position;
        }
        for (int group = 0; group < groups_per_stream; ++group) {
            open.push_back(c.open && rng.one_of(4) ? 1 : 0);
            for (int half = 0; half < 2; ++half) {
                pins.push_back(rng.one_of(5) ? static_cast<uint32_t>(rng.next() & rng.next()) : 0);
            }
        }
    }
    const size_t size = c.mask == MaskType::f16 ? 2 : 4;
    const size_t mask_stride = (static_cast<size_t>(c.n_cells) + seed % 3) * size;
    const size_t n_queries = static_cast<size_t>(c.n_streams) * c.n_tokens;
    std::vector<char> mask(mask_stride * n_queries, 0);
    std::vector<int64_t> k_idxs;
    for (size_t query = 0; query < n_queries; ++query) {
        const int s = first_stream + static_cast<int>(query) / c.n_tokens;
        k_idxs.push_back(static_cast<int64_t>(s) * n_cells_stream + static_cast<int64_t>(rng.next() % c.n_cells));
        const int only = rng.below(c.n_cells);
        for (int i = 0; i < c.n_cells; ++i) {
            const bool seen = c.pattern == 0   ? i < c.n_cells * 3 / 4
                              : c.pattern == 1 ? rng.one_of(40)
                                               : c.pattern == 3 && i == only;
            const float x = seen ? (i % 2 == 0 ? 0.0f : -2.5f) : -kInf;
            const uint16_t half = to_half(x);
            std::memcpy(mask.data() + query * mask_stride + i * size, size == 2 ? static_cast<const void *>(&half) : &x, size);
        }
    }

    SightProblem p{};
    p.n_streams = c.n_streams;
    p.first_stream = first_stream;
    p.n_tokens = c.n_tokens;
    p.n_cells = c.n_cells;
    p.page_tokens = c.page_tokens;
    p.n_cells_stream = n_cells_stream;
    p.mask_type = c.mask;
    p.mask_stride_token = mask_stride;
    p.mask_stride_stream = mask_stride * c.n_tokens;
    p.sink_tokens = rng.below(2) * 5;
    p.recent_tokens = rng.below(2) * 40;
    p.groups_per_stream = groups_per_stream;
    p.stride = static_cast<size_t>(n_groups) + seed % 2;
    const DeviceArray<char> mask_device(mask);
    const DeviceArray<int32_t> positions_device(positions), open_device(open);
    const DeviceArray<uint32_t> pins_device(pins);
    const DeviceArray<int64_t> k_idxs_device(k_idxs);
    const DeviceArray<Sight> sight(std::vector<Sight>(n_queries * p.stride, Sight{7, 7}));
    p.mask = c.mask == MaskType::none ? nullptr : mask_device.data();
    p.pins = pins_device.data();
    p.positions = positions_device.data();
    p.open = open_device.data();
    p.k_idxs = k_idxs_device.data();
    p.sight = sight.data();
    launch_sight(p, stream);
    must(stream_sync(stream) && check());

    const std::vector<Sight> got = sight.get();
    for (size_t query = 0; query < n_queries; ++query) {
        const int s = first_stream + static_cast<int>(query) / c.n_tokens;
        const int32_t position = positions[static_cast<size_t>(k_idxs[query])];
        std::vector<Sight> want(p.stride, Sight{7, 7});
        std::fill(want.begin(), want.begin() + n_groups, Sight{0, 0});
        for (int i = 0; i < c.n_cells; ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, mask.data() + query * mask_stride + i * size, size);
            if (c.mask != MaskType::none && bits == (size == 2 ? 0xfc00u : 0xff800000u)) {
                continue;
            }
            // of the run of positions that the cell's is in
            const int oldest = positions[static_cast<size_t>(s) * n_cells_stream + i] / c.page_tokens * c.page_tokens, newest = oldest + c.page_tokens - 1;
            const size_t group = static_cast<size_t>(s) * groups_per_stream + i / kGroupCells;
            const bool certain = oldest < p.sink_tokens || newest > position - std::max(p.recent_tokens, 1) ||
                                 (pins[2 * group + i % kGroupCells / 32] >> i % 32 & 1) != 0 || open[group] != 0;
            want[i / kGroupCells].visible |= uint64_t{1} << i % kGroupCells;
            want[i / kGroupCells].certain |= uint64_t{certain} << i % kGroupCells;
        }
        CHECK(std::memcmp(want.data(), got.data() + query * p.stride, p.stride * sizeof(Sight)) == 0, "query %zu, %d cells in pages of %d",
              query, c.n_cells, c.page_tokens);
    }
}

}  // namespace

int main() {
    const TestStream stream;
    uint64_t seed = 0;
    for (int n_cells : {1, 15, 16, 27, 61, 64, 113, 482, 577, 1110, 1541, 2047, 3330, 9001}) {
        for (MaskType mask : {MaskType::none, MaskType::f16, MaskType::f32}) {
            for (int page_tokens : {16, 32, 48}) {
                ++seed;
                const int n_tokens = n_cells > 3000 ? 1 : 1 + static_cast<int>(seed % 4);
                check_case({1 + static_cast<int>(seed % 3), n_tokens, n_cells, page_tokens, mask, seed % 2 == 0,
                            static_cast<int>(seed % 5) % 4},
                           seed, stream);
            }
        }
    }
    return finish();
}
