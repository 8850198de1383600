// The running block of the emulated device, and its threads. Callers hold lock(); one block runs at a time.
#pragma once

#include <string>
#include <vector>

#include "emulator/emulator_context.h"
#include "emulator/emulator_state.h"

namespace edgekv::gpu::emulator {

constexpr unsigned kMaxWarps = 32;
constexpr size_t   kSharedGuard = 256;  // bytes before and after dynamic shared memory
constexpr size_t   kStaticGuard = 64;   // bytes after each static variable
constexpr size_t   kStaticShared = 48 * 1024;  // bytes of static variables that a block may have

struct Site {
    Collective kind = Collective::none;
    unsigned mask = 0;
    const char * file = "";
    int line = 0;
};

struct alignas(64) Thread {
    Context * context = nullptr;  // null: the thread has not begun
    Site site;
    uint64_t value = 0, result = 0;
    int argument = 0, width = 0;
};

struct Warp {
    unsigned there = 0, ready = 0, waiting = 0, left = 0;  // lanes
    unsigned turn = 0;                                     // the first lane, and whether lanes run up or down
    unsigned n_syncs = 0;                                  // of the warp alone
    unsigned first = 0;                                    // the thread that waits longest
    bool alike = true;                                     // all that wait are at its place
};

struct StaticVariable {
    const void * type;
    int line;
    size_t begin, end;  // in statics
};

struct Block {
    const std::function<void()> * kernel = nullptr;
    unsigned n_threads = 0, n_left = 0, n_waiting = 0;  // n_waiting: at the barrier
    unsigned ready = 0;                                 // warps with ready lanes
    unsigned current = 0;                               // the running thread
    Site barrier;
    bool running = false;
    Warp warps[kMaxWarps];
    Thread threads[kMaxWarps * 32];
    Context host;
    std::vector<Context *> free;
    std::vector<char> shared;
    size_t shared_bytes = 0;
    std::vector<char> statics;
    std::vector<StaticVariable> variables;
    size_t statics_end = 0;
    unsigned n_syncs = 0;                // barriers of this block
    unsigned n_looks = 0;                // at what other blocks write, since an atomic operation of this block
    unsigned n_awaited = 0;              // threads that have waited for the launch before
    uint32_t number = 0, launch = 0;     // of the block, and of its launch, since the process began

    char * shared_begin() {
        return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(shared.data()) + 127) & ~uintptr_t(127)) + kSharedGuard;
    }
};

inline Block & block() {
    static Block * one = new Block;
    return *one;
}

std::string describe(const Site & site);
bool same(const Site & a, const Site & b);
bool is_left_out(const char * file, int line);  // see EDGEKV_EMULATOR_WITHOUT

void make_ready(Block & b, unsigned warp, unsigned lanes);
void wait(Block & b, unsigned self);  // the calling thread waits until it is ready and picked

}  // namespace edgekv::gpu::emulator
