// Checks launch_standing() against the rule of the CPU's node, written out below.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../standing_device.cu"

#include "attend_cases.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using test::DeviceArray;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
    int n_streams, n_tokens, n_cells, page_tokens;
    MaskType mask;
    bool unaligned;
    int pattern;  // of the mask: 0 causal, 1 scattered, 2 nothing is seen, 3 one cell is seen
};

void check_case(const Case & c, uint64_t seed, Stream stream) {
    cases::Random rng(seed);
    const int n_stream_cache = c.n_streams + 2, first_stream = static_cast<int>(rng.next() % 3);
    const int n_cells_stream = c.n_cells + static_cast<int>(rng.next() % 70);
    const int pages_per_stream = (n_cells_stream + c.page_tokens - 1) / c.page_tokens;
    const int n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;

    std::vector<int32_t> positions(static_cast<size_t>(n_stream_cache) * n_cells_stream);
    std::vector<int32_t> newest(static_cast<size_t>(n_stream_cache) * pages_per_stream, -1);
    std::vector<int32_t> oldest(newest.size(), std::numeric_limits<int32_t>::max());
    for (int s = 0; s < n_stream_cache; ++s) {
        for (int cell = 0; cell < n_cells_stream; ++cell) {
            const int position = (cell * 7 + s) % n_cells_stream;  // not in the order of the cells
            positions[static_cast<size_t>(s) * n_cells_stream + cell] = position;
            const size_t page = static_cast<size_t>(s) * pages_per_stream + cell / c.page_tokens;
            newest[page] = std::max(newest[page], position);
            oldest[page] = std::min(oldest[page], position);
        }
    }
    const size_t size = c.mask == MaskType::f16 ? 2 : 4;
    const size_t row = (static_cast<size_t>(c.n_cells) + 15) / 16 * 16 * size + (c.unaligned ? size : 0);
    const size_t n_queries = static_cast<size_t>(c.n_streams) * c.n_tokens;
    std::vector<char> mask(row * n_queries + size * 3, 0);
    std::vector<int64_t> k_idxs;
    for (size_t query = 0; query < n_queries; ++query) {
        const int s = first_stream + static_cast<int>(query) / c.n_tokens;
        k_idxs.push_back(static_cast<int64_t>(s) * n_cells_stream + static_cast<int64_t>(rng.next() % c.n_cells));
        const int only = static_cast<int>(rng.next() % c.n_cells);
        for (int i = 0; i < c.n_cells; ++i) {
            const bool seen = c.pattern == 0   ? i < c.n_cells * 3 / 4
                              : c.pattern == 1 ? rng.next() % 40 == 0
                                               : c.pattern == 3 && i == only;
            const float x = seen ? (i % 2 == 0 ? 0.0f : -2.5f) : -kInf;
            const uint16_t half = cases::to_half(x);
            std::memcpy(mask.data() + query * row + i * size, size == 2 ? static_cast<const void *>(&half) : &x, size);
        }
    }

    StandingProblem p{};
    p.n_streams = c.n_streams;
    p.first_stream = first_stream;
    p.n_tokens = c.n_tokens;
    p.n_cells = c.n_cells;
    p.page_tokens = c.page_tokens;
    p.pages_per_stream = pages_per_stream;
    p.n_cells_stream = n_cells_stream;
    p.mask_type = c.mask;
    p.mask_stride_token = row;
    p.mask_stride_stream = row * c.n_tokens;
    p.sink_tokens = static_cast<int>(rng.next() % 2) * 5;
    p.recent_tokens = static_cast<int>(rng.next() % 2) * 40;
    p.stride = static_cast<size_t>(pages_per_stream) + 16;
    const DeviceArray<char> mask_device(mask);
    const DeviceArray<int32_t> newest_device(newest), oldest_device(oldest), positions_device(positions);
    const DeviceArray<int64_t> k_idxs_device(k_idxs);
    const DeviceArray<float> standing(std::vector<float>(n_queries * p.stride, 7.0f));
    p.mask = c.mask == MaskType::none ? nullptr : mask_device.data();
    p.newest = newest_device.data();
    p.oldest = oldest_device.data();
    p.positions = positions_device.data();
    p.k_idxs = k_idxs_device.data();
    p.standing = standing.data();
    test::must(launch_standing(p, stream) && stream_sync(stream));

    const std::vector<float> got = standing.get();
    for (size_t query = 0; query < n_queries; ++query) {
        const int s = first_stream + static_cast<int>(query) / c.n_tokens;
        const int32_t position = positions[static_cast<size_t>(k_idxs[query])];
        int n_visible = 0, n_wrong = 0;
        for (int page = 0; page < n_pages; ++page) {
            bool seen = false;
            for (int i = page * c.page_tokens; i < std::min((page + 1) * c.page_tokens, c.n_cells); ++i) {
                const char * at = mask.data() + query * row + i * size;
                uint32_t bits = 0;
                std::memcpy(&bits, at, size);
                seen = seen || c.mask == MaskType::none || bits != (size == 2 ? 0xfc00u : 0xff800000u);
            }
            const size_t at = static_cast<size_t>(s) * pages_per_stream + page;
            const bool always = oldest[at] < p.sink_tokens || newest[at] > position - std::max(p.recent_tokens, 1);
            n_visible += seen;
            n_wrong += got[query * p.stride + page] != (!seen ? -kInf : always ? kInf : 0.0f);
        }
        CHECK(n_wrong == 0, "%d pages of query %zu, %d cells in pages of %d", n_wrong, query, c.n_cells, c.page_tokens);
        const float counted = got[query * p.stride + pages_per_stream];
        CHECK(counted == static_cast<float>(n_visible), "%g pages, not %d", counted, n_visible);
    }
}

}  // namespace

int main() {
    Stream stream = nullptr;
    test::must(stream_create(&stream));
    uint64_t seed = 0;
    for (int n_cells : {1, 15, 16, 27, 61, 113, 482, 577, 1110, 1541, 2047, 3330, 9001}) {
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
    stream_destroy(stream);
    std::printf(test::failures == 0 ? "ok\n" : "%d failures\n", test::failures);
    return test::failures == 0 ? 0 : 1;
}
