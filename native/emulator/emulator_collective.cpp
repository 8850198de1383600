// The threads of a block wait for each other: barriers, and the collectives of a warp.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/emulator_block.h"

namespace edgekv::gpu::emulator {
namespace {

const char * const kNames[] = {"", "__syncthreads", "__syncwarp", "__shfl", "__shfl_xor", "__shfl_up", "__shfl_down", "__ballot", "__any", "__all",
                               "__reduce_add"};

uint64_t shuffled(const Thread * lanes, unsigned reader, const Site & site) {
    const Thread & t = lanes[reader];
    const int lane = static_cast<int>(reader), begin = lane & ~(t.width - 1), end = begin + t.width;
    int source = lane;
    switch (site.kind) {
        case Collective::shfl: source = begin + (t.argument & (t.width - 1)); break;
        case Collective::shfl_xor: source = (lane ^ t.argument) < end ? lane ^ t.argument : lane; break;
        case Collective::shfl_up: source = lane - t.argument >= begin ? lane - t.argument : lane; break;
        default: source = lane + t.argument < end ? lane + t.argument : lane; break;
    }
    if (source < 0 || source > 31 || (site.mask >> source & 1u) == 0) {
        fault("lane %u reads lane %d in %s, which takes no part", reader, source, describe(site).c_str());
    }
    return lanes[source].value;
}

uint64_t combined(const Block & b, unsigned warp, const Site & site) {
    uint64_t result = 0;
    bool first = true;
    for (unsigned rest = site.mask; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        const unsigned value = static_cast<unsigned>(b.threads[warp * 32 + lane].value);
        switch (site.kind) {
            case Collective::ballot: result |= static_cast<uint64_t>(value != 0) << lane; break;
            case Collective::any: result |= value != 0; break;
            case Collective::all: result = (first || result) && value != 0; break;
            case Collective::reduce_add: result = static_cast<unsigned>(static_cast<unsigned>(result) + value); break;
            default: break;
        }
        first = false;
    }
    return result;
}

bool all_at(const Thread * lanes, const Site & site) {
    for (unsigned rest = site.mask; rest; rest &= rest - 1) {
        if (!same(lanes[__builtin_ctz(rest)].site, site)) {
            return false;
        }
    }
    return true;
}

void complete(Block & b, unsigned warp, const Site & site) {
    Thread * lanes = b.threads + warp * 32;
    const bool shuffle = site.kind >= Collective::shfl && site.kind <= Collective::shfl_down;
    const uint64_t all = shuffle || site.kind == Collective::syncwarp ? 0 : combined(b, warp, site);
    for (unsigned rest = site.mask; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        Thread & t = lanes[lane];
        t.site.kind = Collective::none;
        if (site.kind == Collective::shfl_xor && site.mask == ~0u && t.width == 32 && static_cast<unsigned>(t.argument) < 32) {
            t.result = lanes[lane ^ static_cast<unsigned>(t.argument)].value;  // nearly all shuffles in use
        } else {
            t.result = shuffle ? shuffled(lanes, lane, site) : all;
        }
    }
}

}  // namespace

bool is_left_out(const char * file, int line) {
    static const char * const named = std::getenv("EDGEKV_EMULATOR_WITHOUT");
    if (!named) {
        return false;
    }
    const char * name = std::strrchr(file, '/');
    return named == std::string(name ? name + 1 : file) + ":" + std::to_string(line);
}

std::string describe(const Site & site) {
    const char * file = site.file;
    for (const char * c = file; *c; ++c) {
        if (*c == '/') {
            file = c + 1;
        }
    }
    char text[200];
    std::snprintf(text, sizeof(text), site.kind < Collective::syncwarp ? "%s (%s:%d)" : "%s (%s:%d, mask %08x)",
                  kNames[static_cast<int>(site.kind)], file, site.line, site.mask);
    return text;
}

bool same(const Site & a, const Site & b) {
    return a.kind == b.kind && a.line == b.line && a.mask == b.mask && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

namespace {

// Ends the process where the running thread may not be at its collective. Apart, because a waiting thread's frame is to be small: reading 32 of
// them again is most of what a collective costs.
__attribute__((noinline)) void check(const Block & b) {
    const unsigned self = b.current, warp = self / 32, lane = self % 32;
    const Warp & w = b.warps[warp];
    const Site & site = b.threads[self].site;
    const unsigned mask = site.mask;
    const int width = b.threads[self].width;
    if (!b.running) {
        fault("%s was called outside a kernel", describe(site).c_str());
    }
    if ((mask >> lane & 1u) == 0) {
        fault("the thread itself is missing in the mask of %s", describe(site).c_str());
    }
    if (mask & ~w.there) {
        fault("%s names lanes that the block does not have: launch a multiple of 32 threads", describe(site).c_str());
    }
    if (mask & w.left) {
        fault("%s waits for thread %u, which has left the kernel", describe(site).c_str(),
              warp * 32 + static_cast<unsigned>(__builtin_ctz(mask & w.left)));
    }
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
        fault("the width %d of %s is not a power of two up to 32", width, describe(site).c_str());
    }
    if (const unsigned others = w.waiting & mask) {
        // a thread that waits only for others may still come; if it does not, the block ends as one that cannot go on
        const unsigned other = warp * 32 + static_cast<unsigned>(__builtin_ctz(others));
        if ((b.threads[other].site.mask >> lane & 1u) && !same(b.threads[other].site, site)) {
            fault("threads of a warp are at different places: this one at %s, thread %u at %s", describe(site).c_str(), other,
                  describe(b.threads[other].site).c_str());
        }
    }
}

}  // namespace

uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, int argument, int width, const char * file, int line) {
    if (kind == Collective::syncwarp && is_left_out(file, line)) {
        return 0;
    }
    Block & b = block();
    const unsigned self = b.current, warp = self / 32, lane = self % 32;
    Warp & w = b.warps[warp];
    Thread & t = b.threads[self];
    t.site = {kind, mask, file, line};
    t.value = value;
    t.argument = argument;
    t.width = width;
    w.first = w.waiting == 0 ? self : w.first;
    w.alike = w.waiting == 0 || (w.alike && same(b.threads[w.first].site, t.site));
    if (!w.alike || !b.running || (mask >> lane & 1u) == 0 || (mask & (~w.there | w.left)) != 0 || width != 32) {
        check(b);
    }
    w.waiting |= 1u << lane;
    if ((w.waiting & mask) == mask && (w.alike || all_at(b.threads + warp * 32, t.site))) {
        w.waiting &= ~mask;
        w.n_syncs += kind == Collective::syncwarp && mask == w.there;
        complete(b, warp, Site(t.site));
        make_ready(b, warp, mask);
    }
    wait(b, self);
    return b.threads[self].result;
}

void block_barrier(const char * file, int line) {
    if (is_left_out(file, line)) {
        return;
    }
    Block & b = block();
    const Site site{Collective::syncthreads, 0, file, line};
    if (!b.running) {
        fault("%s was called outside a kernel", describe(site).c_str());
    }
    const unsigned self = b.current;
    if (b.n_left > 0) {
        fault("%s, but %u of %u threads have left the kernel", describe(site).c_str(), b.n_left, b.n_threads);
    }
    if (b.n_waiting > 0 && !same(site, b.barrier)) {
        fault("threads of a block are at different barriers: this one at %s, others at %s", describe(site).c_str(),
              describe(b.barrier).c_str());
    }
    if (b.n_waiting == 0) {
        b.barrier = site;
    }
    b.threads[self].site = site;
    if (++b.n_waiting == b.n_threads) {
        b.n_waiting = 0;
        ++b.n_syncs;
        for (unsigned t = 0; t < b.n_threads; ++t) {
            b.threads[t].site.kind = Collective::none;
        }
        for (unsigned w = 0; w * 32 < b.n_threads; ++w) {
            make_ready(b, w, b.warps[w].there);
        }
        b.current = random().below(b.n_threads);  // any warp may go on next
    }
    wait(b, self);
}

namespace {

void give_way(Block & b, uint32_t one_in) {
    if (b.running && b.ready != 0 && random().below(one_in) == 0) {
        const unsigned self = b.current;
        make_ready(b, self / 32, 1u << self % 32);
        wait(b, self);
    }
}

}  // namespace

void atomic_point() {
    Block & b = block();
    b.n_looks = 0;
    give_way(b, 8);
}

// Blocks run one after another, in any order. So what a block waits for has been written, unless its writer had not begun, which may be so on a card
// for ever.
void look_point() {
    constexpr unsigned kMost = 1u << 20;
    Block & b = block();
    if (++b.n_looks > kMost) {
        fault("the thread waits for another block, which has not begun");
    }
    give_way(b, 1);
}

}  // namespace edgekv::gpu::emulator
