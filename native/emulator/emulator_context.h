// A context is a stack on which a thread of a block runs. Contexts are pooled. The switch between two takes a few
// instructions.
#pragma once

#include <cstddef>

namespace edgekv::gpu::emulator {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kStackGuardBytes = 1024 * 1024;  // inaccessible, below the stack; larger than any single frame

struct Context {
    void * sp = nullptr;
    char * stack = nullptr;  // null: the host thread's own
};

// makes a stack whose first switch enters `entry`, which never returns
Context * context_create(void (*entry)());
extern "C" void edgekv_emulator_switch(void ** from, void * to);
inline void context_switch(Context & from, Context & to) { edgekv_emulator_switch(&from.sp, to.sp); }
bool context_guard(const void * address);

}  // namespace edgekv::gpu::emulator
