// Reads of pinned host memory: rows far apart, read in place, and a layer's K and V staged by the kernel or by the copy engine.
//
//   test_reads_device                 all bytes of all rows are read, and both ways of staging give the bytes of home
//   test_reads_device --bench MIB...  on a GPU: rows of each size over so many MiB, or what can be pinned of them, then staging;
//                                     a line of JSON for each, and no line where what was read is wrong
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cuda/kernels/move_device.cu"
#include "cuda/kernels/read_device.cu"

#include "cell_rows.h"
#include "dense_problem.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

using Sums = std::vector<unsigned>;  // as ReadProblem::sums

// A word differs from all others, and so do its bytes' sums.
uint64_t word_at(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

void fill(char * bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes / sizeof(uint64_t); ++i) {
        const uint64_t word = word_at(i);
        std::memcpy(bytes + i * sizeof word, &word, sizeof word);
    }
}

// Of what fill() wrote.
Sums sums_on_host(const ReadProblem & p) {
    Sums sums(2);
    const uint64_t n_words = p.row_bytes / sizeof(uint64_t);
    for (uint64_t i = 0; i < p.n_rows; ++i) {
        for (uint64_t word = 0; word < n_words; ++word) {
            const uint64_t x = word_at(i * p.places.step % p.places.n * n_words + word);
            sums[0] += static_cast<unsigned>(x);
            sums[1] += static_cast<unsigned>(x >> 32);
        }
    }
    return sums;
}

// ---- rows --------------------------------------------------------------------------------------------------------------------

// The sums of a launch, and whether there was one.
bool read_once(const ReadProblem & p, const DeviceArray<unsigned> & sums, unsigned n_blocks, Stream stream, Sums & out) {
    if (!zero_async(p.sums, 2 * sizeof(unsigned), stream)) {
        return false;
    }
    launch_read_rows(p, stream, n_blocks);
    if (!stream_sync(stream) || !check()) {
        return false;
    }
    out = sums.get();
    return true;
}

void check_places() {
    for (size_t n = 1; n < 3000; n = n * 5 / 4 + 1) {
        const Places places = places_of(136 * n + 135, 136);
        CHECK(places.n == n, "%zu", n);
        std::vector<bool> seen(n);
        for (size_t i = 0; i < n; ++i) {
            const size_t at = places.at(i);
            CHECK(at < n && !seen[at], "place %zu of %zu", i, n);
            seen[at] = true;
        }
    }
    const Places many = places_of(size_t(16) << 30, 128);  // none of the next ten thousand lies in the same 4 KiB
    CHECK(many.n == size_t(1) << 27);
    for (uint64_t i = 1; i < 10000; ++i) {
        CHECK(many.at(i) >= 32 && many.at(i) < many.n - 32, "%d", static_cast<int>(i));
    }
}

void check_rows(unsigned row_bytes, unsigned n_places, unsigned n_rows, unsigned n_blocks, Stream stream) {
    const DeviceArray<char> home(static_cast<size_t>(n_places) * row_bytes, true);  // ends with the last row
    fill(home.data(), static_cast<size_t>(n_places) * row_bytes);
    const DeviceArray<unsigned> sums(2);
    const ReadProblem p = {home.data(), row_bytes, n_rows, places_of(static_cast<size_t>(n_places) * row_bytes, row_bytes), sums.data()};
    const Sums want = sums_on_host(p);
    Sums got;
    must(read_once(p, sums, n_blocks, stream, got));
    CHECK(got == want, "%u of %u rows of %u bytes, %u blocks: %u %u, not %u %u", n_rows, n_places, row_bytes, n_blocks, got[0], got[1], want[0], want[1]);

    // another byte shows in the sums of those rows alone that are read
    for (unsigned i = 0; i < row_bytes && n_rows > 0; i += 7) {
        const unsigned row = i * 7 % n_places;
        bool read = false;
        for (unsigned j = 0; j < n_rows; ++j) {
            read = read || p.places.at(j) == row;
        }
        char & byte = home.data()[static_cast<size_t>(row) * row_bytes + i];
        byte ^= 0x55;
        must(read_once(p, sums, n_blocks, stream, got));
        byte ^= 0x55;
        CHECK((got != want) == read, "byte %u of row %u of %u bytes", i, row, row_bytes);
    }
}

// ---- staging -----------------------------------------------------------------------------------------------------------------

// A layer whose pages are all at home, and staging buffers for it.
class Staged {
public:
    Staged(CellType type, int head_dim, int n_heads, int n_cells) : n_cells(n_cells) {
        layer.n_heads = static_cast<uint64_t>(n_heads);
        layer.k_row_bytes = layer.v_row_bytes = layer.k_stride_head = layer.v_stride_head = row_bytes(type, head_dim);
        layer.k_stride_cell = layer.v_stride_cell = layer.k_row_bytes * layer.n_heads;
        layer.v_offset = layer.k_row_bytes * kPage;
        for (int i = 0; i < 2; ++i) {
            home[i] = DeviceArray<char>(n_bytes(), true);
            out[i] = DeviceArray<char>(n_bytes());
        }
        fill(home[0].data(), n_bytes());
        fill(home[1].data(), n_bytes());
        for (size_t i = 0; i < n_bytes(); ++i) {
            home[1].data()[i] ^= 0x33;  // V is not K
        }
        layer.k = reinterpret_cast<uintptr_t>(home[0].data());
        layer.v = reinterpret_cast<uintptr_t>(home[1].data());
        n_pages = (n_cells + kPage - 1) / kPage;
        slots = DeviceArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(n_heads) * n_pages, -1));
    }

    size_t n_bytes() const { return layer.k_stride_cell * static_cast<size_t>(n_cells); }  // of K, and of V

    bool by_kernel(Stream stream) const {
        launch_stage({layer, 0, n_cells, kPage, slots.data(), static_cast<size_t>(n_pages), nullptr, 0,
                      {out[0].data(), layer.k_stride_cell, layer.k_stride_head}, {out[1].data(), layer.v_stride_cell, layer.v_stride_head}}, stream);
        return true;
    }
    bool by_engine(Stream stream) const {
        return copy_async(out[0].data(), home[0].data(), n_bytes(), stream) && copy_async(out[1].data(), home[1].data(), n_bytes(), stream);
    }
    bool by(bool kernel, Stream stream) const { return kernel ? by_kernel(stream) : by_engine(stream); }

    void forget(Stream stream) const { must(zero_async(out[0].data(), n_bytes(), stream) && zero_async(out[1].data(), n_bytes(), stream)); }

    // Whether the staging buffers have home's bytes.
    bool same() const {
        for (int i = 0; i < 2; ++i) {
            const std::vector<char> got = out[i].get();
            if (std::memcmp(got.data(), home[i].data(), n_bytes()) != 0) {
                return false;
            }
        }
        return true;
    }

    char * home_k() const { return home[0].data(); }

private:
    static constexpr int kPage = 16;

    const int n_cells;
    int n_pages;
    EdgekvDeviceLayer layer{};
    DeviceArray<char> home[2], out[2];  // K, V
    DeviceArray<int32_t> slots;
};

void check_staging(CellType type, int head_dim, int n_cells, Stream stream) {
    const Staged staged(type, head_dim, 3, n_cells);
    for (const bool kernel : {true, false}) {
        const char * way = kernel ? "kernel" : "copy engine";
        staged.forget(stream);
        must(stream_sync(stream));
        CHECK(!staged.same(), "nothing is staged yet");
        must(staged.by(kernel, stream) && stream_sync(stream) && check());
        CHECK(staged.same(), "%d cells of %d channels by the %s", n_cells, head_dim, way);
        staged.home_k()[staged.n_bytes() - 1] ^= 1;
        CHECK(!staged.same(), "%s", way);
        must(staged.by(kernel, stream) && stream_sync(stream) && check());
        CHECK(staged.same(), "%d cells of %d channels by the %s, again", n_cells, head_dim, way);
    }
}

// ---- times -------------------------------------------------------------------------------------------------------------------

struct Timer {
    Timer() { must(event_create(&from, true) && event_create(&to, true)); }
    ~Timer() {
        event_destroy(from);
        event_destroy(to);
    }
    // Median seconds of what `enqueue` puts on the stream.
    template <class Enqueue>
    double seconds(Stream stream, const Enqueue & enqueue) const {
        constexpr int kRuns = 9;
        std::vector<double> times;
        for (int i = 0; i <= kRuns; ++i) {
            must(event_record(from, stream) && enqueue() && event_record(to, stream) && event_sync(to) && check());
            if (i > 0) {  // run 0 does not count
                times.push_back(event_ms(from, to) * 1e-3);
            }
        }
        return median(times);
    }
    Event from = nullptr, to = nullptr;
};

// Half of what the machine can give without swapping; all that anyone asks for, where it does not say.
size_t most_pinned() {
    std::ifstream file("/proc/meminfo");
    std::string name;
    size_t kib = 0;
    while (file >> name) {
        if (name == "MemAvailable:" && file >> kib) {
            return kib / 2 * 1024;
        }
    }
    return SIZE_MAX;
}

// Pinned memory of `wanted` bytes, or of a half, a quarter ... of them, filled.
struct Home {
    explicit Home(size_t wanted) : n_bytes(wanted) {
        const size_t most = most_pinned();
        void * p = nullptr;
        while (n_bytes > most || !alloc_pinned(&p, n_bytes)) {
            n_bytes /= 2;
            must(n_bytes >= kLeast);
        }
        at = static_cast<char *>(p);
        fill(at, n_bytes);
    }
    ~Home() { free_pinned(at); }
    Home(const Home &) = delete;

    static constexpr size_t kLeast = size_t(16) << 20;
    char * at = nullptr;
    size_t n_bytes;
};

void bench_rows(size_t mib, unsigned n_blocks, Stream stream) {
    constexpr size_t kRead = size_t(128) << 20;  // by each launch
    const Home home(mib << 20);
    const DeviceArray<unsigned> sums(2);
    const Timer timer;
    for (const unsigned row_bytes : kReadBytes) {
        const Places places = places_of(home.n_bytes, row_bytes);
        const unsigned n_rows = static_cast<unsigned>(std::min<uint64_t>(kRead / row_bytes, places.n));
        const ReadProblem p = {home.at, row_bytes, n_rows, places, sums.data()};
        Sums got;
        must(read_once(p, sums, n_blocks, stream, got));
        CHECK(got == sums_on_host(p), "rows of %u bytes over %zu MiB are not what lies there", row_bytes, home.n_bytes >> 20);
        if (failures > 0) {
            return;
        }
        const double seconds = timer.seconds(stream, [&] {
            launch_read_rows(p, stream, n_blocks);
            return true;
        });
        std::printf("{\"what\": \"rows of %u bytes\", \"way\": \"kernel\", \"asked_mib\": %zu, \"mib\": %zu, \"gb_per_s\": %.3f, "
                    "\"rows_per_s\": %.0f}\n",
                    row_bytes, mib, home.n_bytes >> 20, row_bytes * 1e-9 * n_rows / seconds, n_rows / seconds);
        std::fflush(stdout);
    }
}

// A layer of an 8B.
void bench_staging(CellType type, int n_cells, Stream side) {
    const Staged staged(type, 128, 8, n_cells);
    const Timer timer;
    for (const bool kernel : {true, false}) {
        staged.forget(side);
        must(staged.by(kernel, side) && stream_sync(side) && check());
        CHECK(staged.same(), "%d cells are not staged as they lie at home", n_cells);
        if (failures > 0) {
            return;
        }
        const double seconds = timer.seconds(side, [&] { return staged.by(kernel, side); });
        const double n_rows = 2.0 * 8 * n_cells;
        std::printf("{\"what\": \"layer of %d cells, %s\", \"way\": \"%s\", \"mib\": %zu, \"gb_per_s\": %.3f, \"rows_per_s\": %.0f}\n", n_cells,
                    type == CellType::f16 ? "f16" : "q8_0", kernel ? "kernel" : "copy engine", 2 * staged.n_bytes() >> 20,
                    2e-9 * static_cast<double>(staged.n_bytes()) / seconds, n_rows / seconds);
        std::fflush(stdout);
    }
}

int bench(int n_sizes, char ** sizes) {
    Device device;
    if (!has_device(device)) {
        return 1;
    }
    if (device.arch == 0) {
        std::printf("times of an emulated device mean nothing\n");
        return 1;
    }
    std::printf("%s\n", device.name.c_str());
    const TestStream stream;
    const unsigned n_blocks = static_cast<unsigned>(std::max(device.n_sm, 1)) * 4;  // as in engine/rates.cu
    for (int i = 0; i < n_sizes; ++i) {
        const long mib = std::atol(sizes[i]);
        if (mib < 16 || mib > 1 << 20) {
            std::printf("%s: no size in MiB from 16 on\n", sizes[i]);
            return 1;
        }
        bench_rows(static_cast<size_t>(mib), n_blocks, stream);
    }
    for (const CellType type : {CellType::q8_0, CellType::f16}) {
        for (const int n_cells : {8192, 32768, 131072}) {
            bench_staging(type, n_cells, stream);
        }
    }
    return finish();
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc >= 3 && std::strcmp(argv[1], "--bench") == 0) {
        return bench(argc - 2, argv + 2);
    }
    const TestStream stream;
    check_places();
    for (const unsigned row_bytes : kReadBytes) {
        check_rows(row_bytes, 83, 83, 1, stream);
        check_rows(row_bytes, 200, 75, 2, stream);
    }
    for (const unsigned n_rows : {0u, 1u, 15u, 17u, 64u, 301u}) {
        check_rows(136, 301, n_rows, 3, stream);
    }
    for (const int n_cells : {1, 16, 100}) {
        check_staging(CellType::q8_0, 128, n_cells, stream);
        check_staging(CellType::f16, 64, n_cells, stream);
    }
    return finish();
}
