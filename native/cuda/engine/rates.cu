#include "cuda/engine/rates.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/kernels/read_device.h"

namespace edgekv::gpu {
namespace {

constexpr size_t   kPageBytes = 4096;  // 16 cells of 128 channels in f16: the K, or the V, of a page
constexpr size_t   kBytes     = size_t(512) << 20;  // larger than the caches in front of the memories
constexpr size_t   kLeast     = size_t(1) << 20;    // enough for the emulated device
constexpr size_t   kHome      = size_t(16) << 30;
constexpr size_t   kGathered  = size_t(128) << 20;
constexpr unsigned kThreads   = 256;

// Blocks take pages in turn, in the jumping order of a list of cold pages.
__global__ void __launch_bounds__(kThreads) gather_pages(uint4 * dst, const uint4 * src, unsigned n_pages, Places places) {
    constexpr unsigned n_words = kPageBytes/sizeof(uint4);
    for (unsigned page = blockIdx.x; page < n_pages; page += gridDim.x) {
        const size_t from = static_cast<size_t>(places.at(page))*n_words;
        const size_t to   = static_cast<size_t>(page)*n_words;
        for (unsigned i = threadIdx.x; i < n_words; i += kThreads) {
            dst[to + i] = src[from + i];
        }
    }
}

__global__ void __launch_bounds__(kThreads) read_all(unsigned * out, const uint4 * src, size_t n_words) {
    const size_t n_threads = static_cast<size_t>(gridDim.x)*kThreads;
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (size_t i = static_cast<size_t>(blockIdx.x)*kThreads + threadIdx.x; i < n_words; i += n_threads) {
        const uint4 word = src[i];
        sum.x ^= word.x;
        sum.y ^= word.y;
        sum.z ^= word.z;
        sum.w ^= word.w;
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) {  // never true, but the compiler cannot know that
        *out = 1;
    }
}

__global__ void nothing() {
}

struct FreeDevice {
    void operator()(char * p) const { free_device(p); }
};
struct FreePinned {
    void operator()(char * p) const { free_pinned(p); }
};
struct DestroyStream {
    void operator()(void * stream) const { stream_destroy(stream); }
};
struct DestroyEvent {
    void operator()(void * event) const { event_destroy(event); }
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9); }

uint64_t read_part(const uint64_t * begin, const uint64_t * end) {
    uint64_t sums[8] = {};
    for (; begin + 8 <= end; begin += 8) {
        for (int i = 0; i < 8; ++i) {
            sums[i] += begin[i];
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// each core reads its part of the buffer
double read_host(const char * data, size_t n_bytes) {
    const size_t n_threads = std::max(1u, std::thread::hardware_concurrency());
    const size_t n_words = n_bytes/sizeof(uint64_t)/n_threads;
    const uint64_t * words = reinterpret_cast<const uint64_t *>(data);
    std::vector<uint64_t> sums(n_threads*8);
    const Clock::time_point begin = Clock::now();
    std::vector<std::thread> threads;
    for (size_t t = 1; t < n_threads; ++t) {
        threads.emplace_back([&, t] { sums[t*8] = read_part(words + t*n_words, words + (t + 1)*n_words); });
    }
    sums[0] = read_part(words, words + n_words);
    for (std::thread & thread : threads) {
        thread.join();
    }
    volatile uint64_t used = sums[0];
    static_cast<void>(used);
    return static_cast<double>(n_words*n_threads*sizeof(uint64_t))/seconds_since(begin);
}

// The buffers of one measurement, as large as memory allows.
class Bench {
public:
    ~Bench() {
        if (stream) {
            stream_sync(stream.get());  // a measurement that failed may have left work
        }
    }
    bool init(const Device & card, size_t host_bytes) {
        Stream s = nullptr;
        Event a = nullptr, b = nullptr;
        if (!stream_create(&s)) {
            return false;
        }
        stream.reset(s);
        if (!event_create(&a, true)) {
            return false;
        }
        from.reset(a);
        if (!event_create(&b, true)) {
            return false;
        }
        to.reset(b);
        for (n_bytes = card.arch == 0 ? kLeast : kBytes; n_bytes >= kLeast; n_bytes /= 2) {
            void * p = nullptr, * q = nullptr;
            if (n_bytes > kLeast && n_bytes > card.free_bytes/2) {
                continue;  // leaves memory to others
            }
            if (alloc(&p, n_bytes)) {
                device_memory.reset(static_cast<char *>(p));
                if (alloc_pinned(&q, n_bytes)) {
                    host_memory.reset(static_cast<char *>(q));
                    std::fill_n(host_memory.get(), n_bytes, char(1));  // unwritten pages would all be one zero page
                    reserve_home(card.arch == 0 ? 0 : std::min(host_bytes, kHome));
                    return true;
                }
                device_memory.reset();
            }
        }
        return false;
    }

    // rate of the work that `enqueue` puts on the stream, in bytes per second; 0: it failed
    double rate(size_t bytes, int n_runs, const std::function<bool()> & enqueue) {
        double best = 0.0;
        for (int i = 0; i <= n_runs; ++i) {  // run 0 does not count
            if (!event_record(from.get(), stream.get()) || !enqueue() || !event_record(to.get(), stream.get()) ||
                !stream_sync(stream.get())) {
                return 0.0;
            }
            const double seconds = event_ms(from.get(), to.get())*1e-3;
            best = i > 0 && seconds > 0.0 ? std::max(best, static_cast<double>(bytes)/seconds) : best;
        }
        return best;
    }

    // what stands for a home: the other host buffer where no larger one can be had
    void reserve_home(size_t wanted) {
        home = host_memory.get();
        home_bytes = n_bytes;
        for (void * p = nullptr; wanted > n_bytes; wanted /= 2) {
            if (alloc_pinned(&p, wanted)) {
                home_memory.reset(static_cast<char *>(p));
                home = home_memory.get();
                home_bytes = wanted;
                return;
            }
        }
    }

    std::unique_ptr<char, FreeDevice> device_memory;
    std::unique_ptr<char, FreePinned> host_memory, home_memory;
    const char * home = nullptr;
    size_t home_bytes = 0;
    std::unique_ptr<void, DestroyStream> stream;
    std::unique_ptr<void, DestroyEvent> from, to;
    size_t n_bytes = 0;
};

}  // namespace

bool measure_rates(int index, size_t host_bytes, Rates & out) {
    Device card;
    Bench bench;
    out = Rates{};
    if (!use_device(index) || !device(index, card) || !card.has_kernels || !bench.init(card, host_bytes)) {
        return false;
    }
    const unsigned n_blocks = static_cast<unsigned>(std::max(card.n_sm, 1))*4;
    char * host = bench.host_memory.get();
    char * local = bench.device_memory.get();
    Stream stream = bench.stream.get();

    const size_t copied = std::min(bench.n_bytes, size_t(256) << 20);
    out.link_copy = bench.rate(copied, 3, [&] { return copy_async(local, host, copied, stream); });

    const size_t gathered = std::min({copied, kGathered, bench.home_bytes});
    const unsigned n_pages = static_cast<unsigned>(gathered/kPageBytes);
    out.link_gather = bench.rate(n_pages*kPageBytes, 3, [&] {
        launch(gather_pages, Grid{n_blocks}, kThreads, 0, stream, reinterpret_cast<uint4 *>(local),
               reinterpret_cast<const uint4 *>(bench.home), n_pages, places_of(bench.home_bytes, kPageBytes));
        return true;
    });
    for (const unsigned row_bytes : kReadBytes) {
        const Places places = places_of(bench.home_bytes, row_bytes);
        const unsigned n_rows = static_cast<unsigned>(std::min<uint64_t>(gathered/row_bytes, places.n));
        const double rate = bench.rate(static_cast<size_t>(n_rows)*row_bytes, 3, [&] {
            launch_read_rows({bench.home, row_bytes, n_rows, places, reinterpret_cast<unsigned *>(local)}, stream, n_blocks);
            return true;
        });
        out.link_rows = out.link_rows > 0.0 ? std::min(out.link_rows, rate) : rate;
    }

    out.vram = bench.rate(bench.n_bytes, 5, [&] {
        launch(read_all, Grid{n_blocks*4}, kThreads, 0, stream, reinterpret_cast<unsigned *>(local),
               reinterpret_cast<const uint4 *>(local), bench.n_bytes/sizeof(uint4));
        return true;
    });

    constexpr int n_launches = 1000;
    const double launches = bench.rate(n_launches, 3, [&] {
        for (int i = 0; i < n_launches; ++i) {
            launch(nothing, Grid{1}, 32, 0, stream);
        }
        return true;
    });

    const size_t pageable_bytes = std::min(bench.n_bytes, size_t(64) << 20);
    const std::vector<char> pageable(pageable_bytes, char(1));
    for (int i = 0; i < 3; ++i) {
        const Clock::time_point begin = Clock::now();
        if (!copy(local, pageable.data(), pageable_bytes)) {
            return false;
        }
        out.link_pageable = std::max(out.link_pageable, static_cast<double>(pageable_bytes)/seconds_since(begin));
        out.dram = std::max(out.dram, read_host(host, bench.n_bytes));
    }
    if (launches > 0.0) {
        out.launch_us = 1e6/launches;
    }
    return out.link_copy > 0.0 && out.link_gather > 0.0 && out.link_rows > 0.0 && out.vram > 0.0 && launches > 0.0;
}

}  // namespace edgekv::gpu
