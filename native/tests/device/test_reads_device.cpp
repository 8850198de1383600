// Reads of rows far apart in pinned host memory: all bytes of all rows are read.
#include <cstring>

#include "cuda/kernels/read_device.cu"

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
    return finish();
}
