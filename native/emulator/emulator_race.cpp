// Finds races of kernels on shared and global memory. Kernels that are compiled with -fsanitize=thread call a function here before each access;
// the sanitizer's own library is not linked. Two accesses race where one of them writes, not both are atomic, and nothing orders them:
// in a block the next __syncthreads, in a warp the next __syncwarp too, and nothing between launches that are open at the same time. Between blocks
// of a launch a thread passes on what came before its __threadfence (accesses of its own, those of its block before the last __syncthreads, and what
// they had been passed) by its next atomic operations; who then changes the same word has it behind a __threadfence of his own, and his block behind
// the next __syncthreads. Shuffles and votes order no memory.
// Reads of shared memory that no thread of the block has written are found as well.
//
// For each word of four bytes it is kept who wrote it last, and which warps, and lanes of the last of them, read it since the last barrier.
// So some races are missed (of different bytes of a word, of readers before the last barrier that the writer did not pass), and none is invented.
#include "emulator/emulator_block.h"

#if defined(EDGEKV_RACECHECK)

#    include <dlfcn.h>

#    include <algorithm>
#    include <array>
#    include <map>
#    include <memory>
#    include <unordered_map>

namespace edgekv::gpu::emulator {
namespace {

struct Access {
    uint32_t launch = 0, block = 0;  // numbers; 0: never
    uint16_t thread = 0;
    uint32_t n_syncs = 0, n_warp_syncs = 0;
    uint32_t time = 0;
    uint8_t bytes = 0;  // a bit for each
    bool atomic = false;
};

struct Word {
    Access write, read;     // `read`: of the last reader
    uint32_t warps = 0;     // that read since the last barrier of the last reader's block
    uint32_t lanes = 0;     // of the last reader's warp, since its last barrier
    uint32_t written_by = 0;  // the block whose threads wrote...
    uint8_t written = 0;      // ...these bytes
};

constexpr size_t kPage = 4096;
using Page = std::array<Word, kPage / 4>;

std::unordered_map<uintptr_t, std::unique_ptr<Page>> & pages() {
    static auto * all = new std::unordered_map<uintptr_t, std::unique_ptr<Page>>;
    return *all;
}

Word & word_at(uintptr_t address) {
    struct Kept {
        uintptr_t number = 0;
        Page * page = nullptr;
    };
    static Kept all[1024];
    Kept & kept = all[address / kPage % 1024];
    if (kept.number != address / kPage) {
        auto & page = pages()[address / kPage];
        if (!page) {
            page = std::make_unique<Page>();
        }
        kept = {address / kPage, page.get()};
    }
    return (*kept.page)[address % kPage / 4];
}

bool within(uintptr_t address, const void * begin, size_t n_bytes) { return address - reinterpret_cast<uintptr_t>(begin) < n_bytes; }

// Whether the address is in memory of the device; answers are kept by page, as guards keep other memory off such pages.
bool is_global(uintptr_t address) {
    struct Answer {
        uintptr_t page = 0;
        bool global = false;
    };
    static Answer kept[1024];
    static size_t of_version = 0;
    if (of_version != memory_version()) {
        std::fill(std::begin(kept), std::end(kept), Answer{});
        of_version = memory_version();
    }
    Answer & answer = kept[address / kPage % 1024];
    if (answer.page != address / kPage) {
        answer.page = address / kPage;
        answer.global = memory_range(reinterpret_cast<const void *>(address), 1) != Range::pageable;
    }
    return answer.global;
}

[[noreturn]] void report(const char * what, const char * where, uintptr_t address, const Access & other, const void * caller) {
    Dl_info image{};
    dladdr(caller, &image);
    const ptrdiff_t at = static_cast<const char *>(caller) - static_cast<const char *>(image.dli_fbase);
    if (other.launch == 0) {
        fault("%s memory at %p that no thread of its block has written is read (code at %s+0x%tx)", where, reinterpret_cast<void *>(address),
              image.dli_fname, at);
    }
    fault("a race on %s memory at %p: %s, and thread %u of %s block touched it with no barrier between (code at %s+0x%tx)", where,
          reinterpret_cast<void *>(address), what, other.thread, other.block == block().number ? "this" : "another", image.dli_fname, at);
}

// ---- what blocks pass on to each other -----------------------------------------------------------------------------------------

// The accesses of a block before its barrier number n_syncs, and those of one thread before `time`.
struct Passed {
    uint32_t block, n_syncs, time;
    uint16_t thread;
    bool holds(const Access & a) const {
        return a.block == block && (a.n_syncs < n_syncs || (a.thread == thread && a.time < time));
    }
};
using Many = std::map<std::pair<uint32_t, uint16_t>, Passed>;  // by block and thread; what a thread passes on only grows

void merge(Many & into, const Many & from) {
    for (const auto & [key, passed] : from) {
        Passed & mine = into.try_emplace(key, passed).first->second;
        mine = passed.time > mine.time ? passed : mine;
    }
}

struct OfThread {
    Many heard;   // by its atomic operations; not yet behind a fence
    Many known;   // behind its fences
    Many fenced;  // what its next atomic operations pass on
};

// Of the running block.
struct Passing {
    uint32_t block = 0, time = 0;  // `time` counts fences and atomic operations
    std::map<unsigned, OfThread> threads;
    std::vector<std::pair<unsigned, Many>> news;  // what a thread came to know, and the block's number of barriers then

    bool knows(const Block & b, const Access & a) {
        const auto holds = [&](const Many & many) {
            const auto begin = many.lower_bound({a.block, 0});
            return std::any_of(begin, many.upper_bound({a.block, UINT16_MAX}), [&](const auto & one) { return one.second.holds(a); });
        };
        const auto own = threads.find(b.current);
        return (own != threads.end() && holds(own->second.known)) ||
               std::any_of(news.begin(), news.end(), [&](const auto & one) { return one.first < b.n_syncs && holds(one.second); });
    }
};

Passing & passing(const Block & b) {
    static auto * one = new Passing;
    if (one->block != b.number) {
        one->block = b.number;
        one->threads.clear();
        one->news.clear();
    }
    return *one;
}

// What atomic operations on a word have passed on, in a launch.
struct Post {
    uint32_t launch = 0;
    Many passed;
};

Post & post_of(const Block & b, uintptr_t address) {
    static auto * all = new std::unordered_map<uintptr_t, Post>;
    Post & post = (*all)[address];
    if (post.launch != b.launch) {
        post = {b.launch, {}};
    }
    return post;
}

void pass_fence(const Block & b) {
    Passing & all = passing(b);
    OfThread & thread = all.threads[b.current];
    const uint32_t time = ++all.time;
    if (!thread.heard.empty()) {
        all.news.emplace_back(b.n_syncs, thread.heard);
        merge(thread.known, thread.heard);
        thread.heard.clear();
    }
    thread.fenced = thread.known;
    for (const auto & [n_syncs, news] : all.news) {
        if (n_syncs < b.n_syncs) {
            merge(thread.fenced, news);
        }
    }
    const auto self = static_cast<uint16_t>(b.current);
    thread.fenced[{b.number, self}] = {b.number, b.n_syncs, time, self};
}

void pass_atomic(const Block & b, uintptr_t address) {
    Passing & all = passing(b);
    ++all.time;
    Post & post = post_of(b, address);
    const auto thread = all.threads.find(b.current);
    if (!post.passed.empty()) {
        merge(all.threads[b.current].heard, post.passed);
    }
    if (thread != all.threads.end()) {
        merge(post.passed, thread->second.fenced);
    }
}

// ---- races ---------------------------------------------------------------------------------------------------------------------

// Whether nothing orders an earlier access before one of this thread.
bool races(const Block & b, const Access & earlier, bool shared, bool atomic) {
    if (earlier.atomic && atomic) {
        return false;
    }
    if (earlier.launch != b.launch) {
        return !shared && is_open(earlier.launch);
    }
    if (earlier.block != b.number) {
        return !shared && !passing(b).knows(b, earlier);
    }
    if (earlier.thread == b.current || earlier.n_syncs != b.n_syncs) {
        return false;
    }
    return earlier.thread / 32 != b.current / 32 || earlier.n_warp_syncs == b.warps[b.current / 32].n_syncs;
}

void touch_word(const Block & b, uintptr_t address, uint8_t bytes, bool write, bool atomic, bool shared, const void * caller) {
    Word & w = word_at(address);
    const char * where = shared ? "shared" : "global";
    const unsigned warp = b.current / 32, lane = b.current % 32;
    const Access now = {b.launch, b.number, static_cast<uint16_t>(b.current), b.n_syncs, b.warps[warp].n_syncs, passing(b).time,
                        bytes, atomic};

    if ((w.write.bytes & bytes) != 0 && races(b, w.write, shared, atomic)) {
        report(write ? "a write after a write" : "a read after a write", where, address, w.write, caller);
    }
    if (shared && w.written_by != b.number) {
        w.written_by = b.number;
        w.written = 0;
    }
    const bool read_here = w.read.launch == b.launch && w.read.block == b.number && w.read.n_syncs == b.n_syncs;
    if (write) {
        if (shared) {
            w.written |= bytes;
        }
        if ((w.read.bytes & bytes) != 0 && !(w.read.atomic && atomic)) {
            const bool other_block = !shared && (w.read.launch != b.launch ? is_open(w.read.launch)
                                                                           : w.read.block != b.number && !passing(b).knows(b, w.read));
            const bool other_warp  = read_here && (w.warps & ~(1u << warp)) != 0;
            const bool other_lane  = read_here && w.read.thread / 32 == warp && w.read.n_warp_syncs == now.n_warp_syncs && (w.lanes & ~(1u << lane)) != 0;
            if (other_block || other_warp || other_lane) {
                report("a write after a read", where, address, w.read, caller);
            }
        }
        w.write = now;
        return;
    }
    if (shared && (bytes & ~w.written) != 0) {
        report("", where, address, Access{}, caller);
    }
    const bool same_lanes = read_here && w.read.thread / 32 == warp && w.read.n_warp_syncs == now.n_warp_syncs;
    w.warps = (read_here ? w.warps : 0) | 1u << warp;
    w.lanes = (same_lanes ? w.lanes : 0) | 1u << lane;
    w.read = now;
}

void touch(const void * p, size_t n_bytes, bool write, bool atomic, const void * caller) {
    const Block & b = block();
    if (!b.running || n_bytes == 0) {
        return;
    }
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p), end = begin + n_bytes;
    const bool shared = within(begin, const_cast<Block &>(b).shared_begin(), b.shared_bytes) || within(begin, b.statics.data(), b.statics.size());
    if (!shared && !is_global(begin)) {
        return;  // the thread's own, or an argument
    }
    for (uintptr_t at = begin / 4 * 4; at < end; at += 4) {
        uint8_t bytes = 15;
        bytes = static_cast<uint8_t>(at < begin ? bytes << (begin - at) & 15 : bytes);
        bytes = static_cast<uint8_t>(at + 4 > end ? bytes & 15 >> (at + 4 - end) : bytes);
        touch_word(b, at, bytes, write, atomic, shared, caller);
    }
}

}  // namespace

void atomic_access(const void * p, size_t n_bytes, bool write) {
    touch(p, n_bytes, write, true, __builtin_return_address(0));
    const Block & b = block();
    if (write && b.running && is_global(reinterpret_cast<uintptr_t>(p))) {
        pass_atomic(b, reinterpret_cast<uintptr_t>(p));
    }
}

void fence(const char * file, int line) {
    if (block().running && !is_left_out(file, line)) {
        pass_fence(block());
    }
}

}  // namespace edgekv::gpu::emulator

// ---- what the compiler calls ---------------------------------------------------------------------------------------------------

extern "C" {

#    define EDGEKV_TSAN(size)                                                                                                               \
        void __tsan_read##size(void * p) { edgekv::gpu::emulator::touch(p, size, false, false, __builtin_return_address(0)); }             \
        void __tsan_write##size(void * p) { edgekv::gpu::emulator::touch(p, size, true, false, __builtin_return_address(0)); }             \
        void __tsan_unaligned_read##size(void * p) { edgekv::gpu::emulator::touch(p, size, false, false, __builtin_return_address(0)); }   \
        void __tsan_unaligned_write##size(void * p) { edgekv::gpu::emulator::touch(p, size, true, false, __builtin_return_address(0)); }
EDGEKV_TSAN(1)
EDGEKV_TSAN(2)
EDGEKV_TSAN(4)
EDGEKV_TSAN(8)
EDGEKV_TSAN(16)
#    undef EDGEKV_TSAN

void __tsan_read_range(void * p, unsigned long n) { edgekv::gpu::emulator::touch(p, n, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void * p, unsigned long n) { edgekv::gpu::emulator::touch(p, n, true, false, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}

// of the host's code; kernels have atomicAdd and its kin
#    define EDGEKV_TSAN_ATOMIC(bits)                                                                                                         \
        uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t * p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }   \
        void __tsan_atomic##bits##_store(volatile uint##bits##_t * p, uint##bits##_t x, int) { __atomic_store_n(p, x, __ATOMIC_SEQ_CST); }   \
        uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t * p, uint##bits##_t x, int) {                                 \
            return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);                                                                               \
        }
EDGEKV_TSAN_ATOMIC(8)
EDGEKV_TSAN_ATOMIC(32)
EDGEKV_TSAN_ATOMIC(64)
#    undef EDGEKV_TSAN_ATOMIC
}

#endif
