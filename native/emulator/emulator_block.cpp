// Schedules the threads of a block, and runs the blocks of a launch.
#include "emulator/emulator_block.h"

#include <algorithm>
#include <cstring>
#include <numeric>

dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim(1, 1, 1), gridDim(1, 1, 1);

namespace edgekv::gpu {
namespace emulator {

Block & block() {
    static Block * one = new Block;
    return *one;
}

void make_ready(Block & b, unsigned warp, unsigned lanes) {
    Warp & w = b.warps[warp];
    w.ready |= lanes;
    w.turn = random().next();
    b.ready |= 1u << warp;
}

namespace {

constexpr char kGuard = '\xa5';
constexpr char kPoison = '\xcd';  // as float: -4e8; as int: negative

unsigned lowest_from(unsigned set, unsigned first) {
    first &= 31u;
    const unsigned turned = first ? set >> first | set << (32 - first) : set;
    return (static_cast<unsigned>(__builtin_ctz(turned)) + first) & 31u;
}

unsigned highest_to(unsigned set, unsigned last) {
    last &= 31u;
    const unsigned turned = last ? set >> last | set << (32 - last) : set;
    return (31u - static_cast<unsigned>(__builtin_clz(turned)) + last) & 31u;
}

[[noreturn]] void deadlock(const Block & b) {
    for (unsigned t = 0; t < b.n_threads; ++t) {
        const Warp & w = b.warps[t / 32];
        if (b.threads[t].site.kind != Collective::none && (w.left >> t % 32 & 1u) == 0) {
            for (unsigned other = t + 1; other < b.n_threads; ++other) {
                const Site & site = b.threads[other].site;
                if (site.kind != Collective::none && !same(site, b.threads[t].site)) {
                    fault("no thread can go on: thread %u waits at %s, thread %u at %s; %u of %u threads have left", t,
                          describe(b.threads[t].site).c_str(), other, describe(site).c_str(), b.n_left, b.n_threads);
                }
            }
            fault("no thread can go on: thread %u waits at %s; %u of %u threads have left", t,
                  describe(b.threads[t].site).c_str(), b.n_left, b.n_threads);
        }
    }
    fault("no thread can go on");
}

// Takes a ready thread. A warp mostly keeps its turn, in an order of lanes that changes whenever some become ready.
unsigned pick(Block & b) {
    if (b.ready == 0) {
        deadlock(b);
    }
    unsigned warp = b.current / 32;
    if (b.warps[warp].ready == 0 || (b.ready != 1u << warp && random().below(32) == 0)) {
        warp = lowest_from(b.ready, random().next());
    }
    Warp & w = b.warps[warp];
    const unsigned lane = w.turn & 32u ? highest_to(w.ready, w.turn) : lowest_from(w.ready, w.turn);
    w.ready &= ~(1u << lane);
    if (w.ready == 0) {
        b.ready &= ~(1u << warp);
    }
    return warp * 32 + lane;
}

void thread_entry();

Context & context_of(Block & b, unsigned thread) {
    Context *& context = b.threads[thread].context;
    if (!context) {
        if (b.free.empty()) {
            b.free.push_back(context_create(thread_entry));
        }
        context = b.free.back();
        b.free.pop_back();
    }
    return *context;
}

void become(Block & b, unsigned thread) {
    b.current = thread;
    threadIdx.x = thread;
}

void leave(Block & b) {
    const unsigned thread = b.current, lane = thread % 32;
    Warp & w = b.warps[thread / 32];
    for (unsigned rest = w.waiting; rest; rest &= rest - 1) {
        const unsigned other = thread / 32 * 32 + static_cast<unsigned>(__builtin_ctz(rest));
        if (b.threads[other].site.mask >> lane & 1u) {
            fault("thread %u has left the kernel, but thread %u waits for it at %s", thread, other,
                  describe(b.threads[other].site).c_str());
        }
    }
    if (b.n_waiting > 0) {
        fault("thread %u has left the kernel, but others wait for it at %s", thread, describe(b.barrier).c_str());
    }
    w.left |= 1u << lane;
    ++b.n_left;
}

// A context runs one thread after another; only between two of them can it return to the pool.
void thread_entry() {
    context_entered(nullptr);
    Block & b = block();
    for (;;) {
        (*b.kernel)();
        leave(b);
        Context & self = *b.threads[b.current].context;
        if (b.n_left == b.n_threads) {
            b.free.push_back(&self);
            context_switch(self, b.host);
            continue;
        }
        const unsigned next = pick(b);
        become(b, next);
        if (b.threads[next].context) {
            b.free.push_back(&self);
            context_switch(self, *b.threads[next].context);
        } else {
            b.threads[next].context = &self;
        }
    }
}

void run_block(Block & b) {
    for (unsigned w = 0; w * 32 < b.n_threads; ++w) {
        const unsigned n = std::min(32u, b.n_threads - w * 32);
        b.warps[w] = Warp{};
        b.warps[w].there = n == 32 ? ~0u : (1u << n) - 1;
        make_ready(b, w, b.warps[w].there);
    }
    for (unsigned t = 0; t < b.n_threads; ++t) {
        b.threads[t].context = nullptr;
        b.threads[t].site.kind = Collective::none;
    }
    b.n_left = b.n_waiting = 0;
    b.current = random().below(b.n_threads);
    std::memset(b.shared_begin(), kPoison, b.shared_bytes);

    const unsigned first = pick(b);
    Context & context = context_of(b, first);
    become(b, first);
    context_switch(b.host, context);

    const char * begin = b.shared_begin(), * end = begin + b.shared_bytes;
    for (size_t i = 0; i < kSharedGuard; ++i) {
        if (begin[-1 - static_cast<ptrdiff_t>(i)] != kGuard) {
            fault("dynamic shared memory: a write %zu bytes before its begin", i + 1);
        }
        if (end[i] != kGuard) {
            fault("dynamic shared memory: a write at byte %zu of %zu", b.shared_bytes + i, b.shared_bytes);
        }
    }
}

}  // namespace

void wait(Block & b, unsigned self) {
    const unsigned next = pick(b);
    if (next != self) {
        Context & to = context_of(b, next);
        become(b, next);
        context_switch(*b.threads[self].context, to);
    }
    become(b, self);
}

bool running() { return block().running; }

std::string place() {
    char text[120];
    std::snprintf(text, sizeof(text), "block (%u, %u, %u) of (%u, %u, %u), thread %u of %u", blockIdx.x, blockIdx.y, blockIdx.z,
                  gridDim.x, gridDim.y, gridDim.z, threadIdx.x, blockDim.x);
    return text;
}

bool in_fiber_guard(const void * address) { return context_guard(address); }

void run_grid(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> & kernel) {
    Block & b = block();
    b.kernel = &kernel;
    b.n_threads = threads;
    b.shared_bytes = shared_bytes;
    b.shared.resize(std::max(b.shared.size(), shared_bytes + 2 * kSharedGuard + 128));
    std::memset(b.shared.data(), kGuard, shared_bytes + 2 * kSharedGuard + 128);
    gridDim = grid;
    blockDim = dim3(threads);
    b.running = true;

    // the k-th block is (begin + k * step) mod n, with step prime to n: shuffled enough, without storing the order
    const uint64_t n = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    uint64_t step = n > 2 ? 1 + random().next() % (n - 1) : 1;
    while (std::gcd(step, n) != 1) {
        ++step;
    }
    uint64_t index = random().next() % n;
    for (uint64_t k = 0; k < n; ++k, index = (index + step) % n) {
        blockIdx = dim3(static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                        static_cast<unsigned>(index / grid.x / grid.y));
        run_block(b);
    }
    b.running = false;
}

}  // namespace emulator

char * shared_memory() { return emulator::block().shared_begin(); }

bool allow_shared(const void * kernel, size_t n_bytes) {
    static_cast<void>(kernel);
    return n_bytes <= emulator::limits().shared_bytes;
}

}  // namespace edgekv::gpu
