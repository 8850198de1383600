// Checks launch_store() against GGML_OP_SET_ROWS's rule: every byte of home, of the second place and of the arena, with those
// that must stay as they were. On a GPU the scale of a q8_0 block may be off by one step of its f16, and a code by one where the
// quotient lies within 2^-20 of a tie, as the card's division is not exact; on the emulated device nothing may differ.
#include "cuda/kernels/store_device.cu"

#include <string>

#include "cell_rows.h"
#include "device_array.h"

using namespace edgekv;
using namespace test;

namespace {

struct Case {
    int head_dim, n_head_kv, n_tokens, n_streams, n_cells;  // cells of a stream
    CellType k_type, v_type;
    bool gaps;    // between heads and between cells
    bool second, arena;
    std::string name() const {
        char s[160];
        std::snprintf(s, sizeof(s), "d%d kv %d tokens %d streams %d cells %d k%d v%d gaps %d second %d arena %d", head_dim,
                      n_head_kv, n_tokens, n_streams, n_cells, static_cast<int>(k_type), static_cast<int>(v_type), gaps, second,
                      arena);
        return s;
    }
};

bool emulated = true;

// A GPU may write `got` for the row `want` of x.
bool near_row(CellType type, const float * x, int dim, const char * got, const char * want) {
    if (type == CellType::f16) {
        return std::memcmp(got, want, static_cast<size_t>(dim) * 2) == 0;
    }
    const int block = edgekv::block_bytes(type);
    for (int b = 0; b < dim / 32; ++b, x += 32, got += block, want += block) {
        uint16_t d[2];
        std::memcpy(&d[0], got, 2);
        std::memcpy(&d[1], want, 2);
        double amax = 0.0;
        for (int i = 0; i < 32; ++i) {
            amax = std::fmax(amax, std::fabs(x[i]));
        }
        if (std::abs(d[0] - d[1]) > 1) {
            return false;
        }
        for (int i = 0; type == CellType::q4_0 && i < 32; ++i) {
            const auto code = [&](const char * row) { return static_cast<uint8_t>(row[2 + i % 16]) >> (i < 16 ? 0 : 4) & 15; };
            const double above = amax == 0.0 ? 8.5 : channel(type, want, 0) == 0.0 && d[1] == 0 ? 8.5 : x[i] / (amax / 8.0) * (d[1] & 0x8000 ? -1 : 1) + 8.5;
            if (code(got) != code(want) && !(std::fabs(above - std::rint(above)) <= 16 * 0x1p-20)) {
                return false;
            }
        }
        for (int i = 0; type == CellType::q8_0 && i < 32; ++i) {
            const double exact = amax == 0.0 ? 0.0 : x[i] / amax * 127.0;
            if (got[2 + i] != want[2 + i] && !(std::fabs(exact - static_cast<int8_t>(got[2 + i])) <= 0.5 + 127 * 0x1p-20)) {
                return false;
            }
        }
    }
    return true;
}

float value(int kind, int i, Random & rng) {
    const float x = rng.normal();
    switch (kind % 10) {
        case 0: return 0.0f;
        case 1:  // ties of q8_0
            return i % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(rng.next() % 253) - 126) + 0.5f;
        case 2: return x * 1e-6f;     // subnormal f16
        case 3: return x * 1e-40f;    // subnormal f32
        case 4: return x * 40000.0f;  // beyond f16, in part
        case 5: return i % 3 == 0 ? -0.0f : x;
        case 6: return std::ldexp(static_cast<float>(1024 + rng.next() % 1024) + 0.5f, -10);  // ties of f16
        case 7: return x * 2.5e-8f;
        default: return x;
    }
}

struct Side {
    CellType type{};
    size_t row_bytes = 0, stride_cell = 0, stride_head = 0;
    std::vector<float> x;
    std::vector<char> home;  // as expected
    std::vector<int64_t> cells;  // of the tokens
    DeviceArray<float> src;
    DeviceArray<int64_t> cells_at;
    DeviceArray<char> home_at, second_at;
};

void check_case(const Case & c, uint64_t seed, gpu::Stream stream) {
    constexpr int page_tokens = 32;
    Random rng(seed);
    const int n_cells = c.n_streams * c.n_cells;
    const int pages_per_stream = (c.n_cells + page_tokens - 1) / page_tokens, n_pages = c.n_streams * pages_per_stream;
    const int pad = c.gaps ? 12 : 0;  // floats of source behind each head

    Side sides[2];
    for (int which = 0; which < 2; ++which) {
        Side & side = sides[which];
        side.type = which == 0 ? c.k_type : c.v_type;
        side.row_bytes = row_bytes(side.type, c.head_dim);
        side.stride_head = side.row_bytes + (c.gaps ? 6 : 0);
        side.stride_cell = side.stride_head * c.n_head_kv + (c.gaps ? 10 : 0);
        for (int r = 0; r < n_cells; ++r) {
            side.cells.push_back(r);
        }
        rng.shuffle(side.cells);
        side.cells.resize(std::max(c.n_tokens, 1));
        side.home.assign(side.stride_cell * n_cells, 0x5a);
        side.home_at = DeviceArray<char>(side.home, true);
        side.second_at = DeviceArray<char>(side.home);
        side.x.resize(static_cast<size_t>(std::max(c.n_tokens, 1)) * c.n_head_kv * (c.head_dim + pad));
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                const int kind = static_cast<int>(rng.next() % 10);
                for (int i = 0; i < c.head_dim; ++i) {
                    side.x[(static_cast<size_t>(t) * c.n_head_kv + h) * (c.head_dim + pad) + i] =
                        value(side.type == CellType::q8_0 && kind == 4 ? 8 : kind, i, rng);
                }
            }
        }
        side.src = DeviceArray<float>(side.x);
        side.cells_at = DeviceArray<int64_t>(side.cells);
    }

    // every third page of a head has a slot
    const size_t v_offset = page_tokens * sides[0].row_bytes, slot_bytes = v_offset + page_tokens * sides[1].row_bytes;
    std::vector<int32_t> slots(static_cast<size_t>(c.n_head_kv) * n_pages, -1);
    int n_slots = 0;
    for (size_t i = 0; i < slots.size(); i += 3) {
        slots[i] = n_slots++;
    }
    std::vector<char> arena(slot_bytes * n_slots, 0x33);
    const DeviceArray<char> arena_at(arena);
    const DeviceArray<int32_t> slots_at(slots);

    // the second place has some of the heads
    const int second_head = c.n_head_kv / 3, n_second = (c.n_head_kv + 1) / 2;

    gpu::StoreArgs args{};
    args.head_dim = c.head_dim;
    args.n_head_kv = c.n_head_kv;
    args.n_tokens = c.n_tokens;
    args.cells_per_stream = c.n_cells;
    for (int which = 0; which < 2; ++which) {
        const Side & side = sides[which];
        const size_t head_bytes = static_cast<size_t>(c.head_dim + pad) * 4;
        (which == 0 ? args.k : args.v) = {{reinterpret_cast<const char *>(side.src.data()), c.n_head_kv * head_bytes, head_bytes}, side.cells_at.data(),
                                          side.type, {side.home_at.data(), side.stride_cell, side.stride_head},
                                          {{side.second_at.or_null(c.second), side.stride_cell, side.stride_head}, second_head, n_second}};
    }
    if (c.arena) {
        args.arena = {arena_at.data(), slot_bytes, v_offset, slots_at.data(),
                      static_cast<size_t>(n_pages), page_tokens, pages_per_stream};
    }
    gpu::launch_store(args, stream);
    must(gpu::stream_sync(stream) && gpu::check());

    std::vector<char> got_arena = arena_at.get();
    for (int which = 0; which < 2; ++which) {
        Side & side = sides[which];
        std::vector<char> second = side.home, got = side.home_at.get();
        std::vector<char> row(side.row_bytes);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                const float * x = side.x.data() + (static_cast<size_t>(t) * c.n_head_kv + h) * (c.head_dim + pad);
                const size_t at = static_cast<size_t>(side.cells[t]) * side.stride_cell + h * side.stride_head;
                edgekv::store_row(side.type, x, c.head_dim, row.data());
                if (!emulated && near_row(side.type, x, c.head_dim, got.data() + at, row.data())) {
                    std::copy_n(got.data() + at, row.size(), row.data());
                }
                std::copy(row.begin(), row.end(), side.home.begin() + at);
                if (c.second && h >= second_head && h < second_head + n_second) {
                    std::copy(row.begin(), row.end(), second.begin() + at - second_head * side.stride_head);
                }
                const int64_t cell = side.cells[t] % c.n_cells;
                const int64_t page = side.cells[t] / c.n_cells * pages_per_stream + cell / page_tokens;
                const int32_t slot = slots[static_cast<size_t>(h) * n_pages + page];
                if (slot >= 0 && c.arena) {
                    const size_t in_slot = (which == 0 ? 0 : v_offset) + cell % page_tokens * side.row_bytes;
                    std::copy(row.begin(), row.end(), arena.begin() + slot * slot_bytes + in_slot);
                }
            }
        }
        expect(got == side.home, c, which == 0 ? "home of K" : "home of V");
        expect(side.second_at.get() == second, c, which == 0 ? "second place of K" : "second place of V");
    }
    expect(got_arena == arena, c, "arena");
}

void check_all() {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192};
    const int heads[] = {1, 2, 3, 8, 13};
    const int tokens[] = {0, 1, 1, 2, 5, 16, 27};
    const TestStream stream;
    Random rng(3);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int types = 0; types < kTypePairs; ++types) {
            for (int i = 0; i < 3; ++i, ++n) {
                Case c{};
                c.head_dim = dim;
                c.k_type = k_type_of(types);
                c.v_type = v_type_of(types);
                if (types != 0 && dim % 32 != 0) {
                    continue;
                }
                c.n_head_kv = heads[rng.next() % 5];
                c.n_tokens = tokens[n % 7];
                c.n_streams = 1 + static_cast<int>(rng.next() % 3);
                c.n_cells = 27 + static_cast<int>(rng.next() % 90);
                c.gaps = n % 5 < 2;
                c.second = n % 2 == 1;
                c.arena = n % 4 >= 2;
                check_case(c, n, stream);
            }
        }
    }
    for (int types = 0; types < kTypePairs; ++types, ++n) {  // a prompt
        check_case({128, 2, 577, 1, 1110, k_type_of(types), v_type_of(types), false, true, false}, n, stream);
    }
    std::printf("%llu cases\n", static_cast<unsigned long long>(n));
}

}  // namespace

int main() {
    gpu::Device device;
    if (!has_device(device)) {
        return 77;
    }
    emulated = device.arch == 0;
    check_all();
    return finish();
}
