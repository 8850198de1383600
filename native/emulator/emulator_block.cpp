// Schedules the threads of a block, and runs the blocks of a launch.
#include "emulator/emulator_block.h"

#include <algorithm>
#include <cstring>
#include <numeric>

dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim(1, 1, 1), gridDim(1, 1, 1);

namespace edgekv::gpu {
namespace emulator {

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
    b.n_left = b.n_waiting = b.n_syncs = b.n_looks = b.n_awaited = 0;
    b.current = random().below(b.n_threads);
    std::memset(b.shared_begin(), kPoison, b.shared_bytes);
    b.statics.resize(kStaticShared + 4096, kPoison);
    std::memset(b.statics.data(), kPoison, b.statics_end);
    b.variables.clear();
    b.statics_end = 0;
    static uint32_t n_blocks = 0;
    b.number = ++n_blocks;

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
    for (const StaticVariable & v : b.variables) {
        for (size_t i = v.end; i < v.end + kStaticGuard; ++i) {
            if (b.statics[i] != kGuard) {
                fault("the shared variable of line %d: a write at byte %zu of %zu", v.line, i - v.begin, v.end - v.begin);
            }
        }
    }
}

}  // namespace

void wait(Block & b, unsigned self) {
    const unsigned next = pick(b);
    if (next != self) {
        Context & to = context_of(b, next);
        become(b, next);
        context_switch(*b.threads[self].context, to);  // who comes back calls become(b, self)
        return;
    }
    become(b, self);
}

void await_launch() { ++block().n_awaited; }

bool running() { return block().running; }

std::string place() {
    char text[120];
    std::snprintf(text, sizeof(text), "block (%u, %u, %u) of (%u, %u, %u), thread %u of %u", blockIdx.x, blockIdx.y, blockIdx.z,
                  gridDim.x, gridDim.y, gridDim.z, threadIdx.x, blockDim.x);
    return text;
}

bool in_fiber_guard(const void * address) { return context_guard(address); }

OpenGrid open_grid(const Launch & launch) {
    static uint32_t n_launches = 0;
    const uint64_t n = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    OpenGrid open = {++n_launches, n, 0, n > 2 ? 1 + random().next() % (n - 1) : 1};
    while (std::gcd(open.step, n) != 1) {
        ++open.step;
    }
    open.index = random().next() % n;
    return open;
}

bool run_blocks(const Launch & launch, OpenGrid & open, uint64_t n_blocks) {
    Block & b = block();
    b.kernel = &launch.kernel;
    b.launch = open.number;
    b.n_threads = launch.threads;
    b.shared_bytes = launch.shared_bytes;
    b.shared.resize(std::max(b.shared.size(), launch.shared_bytes + 2 * kSharedGuard + 128));
    std::memset(b.shared.data(), kGuard, launch.shared_bytes + 2 * kSharedGuard + 128);
    gridDim = launch.grid;
    blockDim = dim3(launch.threads);
    b.running = true;
    for (; n_blocks > 0 && open.n_left > 0; --n_blocks, --open.n_left) {
        const uint64_t all = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
        blockIdx = dim3(static_cast<unsigned>(open.index % launch.grid.x), static_cast<unsigned>(open.index / launch.grid.x % launch.grid.y),
                        static_cast<unsigned>(open.index / launch.grid.x / launch.grid.y));
        open.index = (open.index + open.step) % all;
        run_block(b);
        if (launch.behind && b.n_awaited != b.n_threads) {
            fault("a launch that overlaps with the one before: %u of %u threads waited for that", b.n_awaited, b.n_threads);
        }
    }
    b.running = false;
    return open.n_left == 0;
}

void * shared_static(const void * type, int line, size_t n_bytes, size_t alignment) {
    Block & b = block();
    if (!b.running) {
        fault("a shared variable outside a kernel");
    }
    for (const StaticVariable & v : b.variables) {
        if (v.type == type && v.line == line) {
            return b.statics.data() + v.begin;
        }
    }
    const size_t unit = std::max<size_t>(alignment, 16);
    const uintptr_t base = reinterpret_cast<uintptr_t>(b.statics.data());
    const size_t begin = (base + b.statics_end + unit - 1) / unit * unit - base, end = begin + n_bytes;
    size_t n_all = n_bytes;
    for (const StaticVariable & v : b.variables) {
        n_all += v.end - v.begin;
    }
    if (n_all > kStaticShared || end + kStaticGuard > b.statics.size()) {
        fault("the block's shared variables take %zu bytes, and %zu are to be had", n_all, kStaticShared);
    }
    std::memset(b.statics.data() + b.statics_end, kPoison, end - b.statics_end);
    std::memset(b.statics.data() + end, kGuard, kStaticGuard);
    b.variables.push_back({type, line, begin, end});
    b.statics_end = end + kStaticGuard;
    return b.statics.data() + begin;
}

}  // namespace emulator

char * shared_memory() { return emulator::block().shared_begin(); }

bool allow_shared(const void * kernel, size_t n_bytes) {
    static_cast<void>(kernel);
    return n_bytes <= emulator::limits().shared_bytes;
}

}  // namespace edgekv::gpu
