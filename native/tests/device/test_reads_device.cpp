// What measures a card reads: all words of rows far apart in pinned host memory, each once; and that rates come of it.
#include "cuda/kernels/read_device.cu"

#include "device_array.h"

#if !defined(__CUDACC__)
#include <cstring>

#include "cuda/engine/rates.cu"
#endif

using namespace edgekv::gpu;
using namespace test;

namespace {

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
    for (uint64_t i = 1; i < 10000; ++i) {
        CHECK(many.at(i) >= 32 && many.at(i) < (size_t(1) << 27) - 32, "%d", static_cast<int>(i));
    }
}

// Every word differs from all others.
void check_rows(unsigned row_bytes, unsigned n_places, unsigned n_rows, unsigned n_blocks, Stream stream) {
    std::vector<uint64_t> words(n_places * row_bytes / sizeof(uint64_t));
    for (size_t i = 0; i < words.size(); ++i) {
        words[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    }
    const DeviceArray<uint64_t> home(words, true);  // ends with the last row
    const DeviceArray<unsigned> sums(2);
    const ReadProblem p = {reinterpret_cast<const char *>(home.data()), row_bytes, n_rows, places_of(words.size() * sizeof(uint64_t), row_bytes), sums.data()};
    std::vector<unsigned> want(2);
    for (unsigned i = 0; i < n_rows; ++i) {
        const uint64_t * row = words.data() + i * p.places.step % p.places.n * row_bytes / sizeof(uint64_t);
        for (unsigned word = 0; word < row_bytes / sizeof(uint64_t); ++word) {
            want[0] += static_cast<unsigned>(row[word]);
            want[1] += static_cast<unsigned>(row[word] >> 32);
        }
    }
    launch_read_rows(p, stream, n_blocks);
    must(stream_sync(stream) && check());
    CHECK(sums.get() == want, "%u of %u rows of %u bytes, %u blocks", n_rows, n_places, row_bytes, n_blocks);
}

#if !defined(__CUDACC__)
void check_rates() {
    Rates rates;
    CHECK(measure_rates(0, 0, rates) && !measure_rates(1, 0, rates) && measure_rates(0, size_t(1) << 30, rates));
    for (const double value : {rates.link_copy, rates.link_gather, rates.link_rows, rates.link_pageable, rates.vram, rates.dram, rates.launch_us}) {
        CHECK(std::isfinite(value) && value > 0.0);
    }
    emulator::Limits none;
    none.device_bytes = 1000;
    emulator::set_limits(none);
    CHECK(!measure_rates(0, 0, rates) && std::strstr(last_error(), "no memory for"));
}
#endif

}  // namespace

int main() {
    const TestStream stream;
    check_places();
    for (const unsigned row_bytes : kReadBytes) {
        check_rows(row_bytes, 83, 83, 1, stream);
        check_rows(row_bytes, 200, 75, 2, stream);
    }
    for (const unsigned n_rows : {0u, 1u, 15u, 17u, 64u, 301u}) {
        check_rows(136, 301, n_rows, 3, stream);
    }
#if !defined(__CUDACC__)
    check_rates();
#endif
    return finish();
}
