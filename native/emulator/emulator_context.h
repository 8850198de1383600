// A context is a stack on which a thread of a block runs. Contexts are pooled. The switch between two takes a few
// instructions on processors that we know, and ucontext elsewhere.
#pragma once

#include <cstddef>

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(EDGEKV_EMULATOR_UCONTEXT)
#    define EDGEKV_EMULATOR_SWITCH 1
#else
#    include <ucontext.h>
#endif

namespace edgekv::gpu::emulator {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kStackGuardBytes = 1024 * 1024;  // inaccessible, below the stack; larger than any single frame

struct Context {
#if EDGEKV_EMULATOR_SWITCH
    void * sp = nullptr;
#else
    ucontext_t uc{};
#endif
    char * stack = nullptr;  // null: the host thread's own
    void * fake_stack = nullptr;  // AddressSanitizer's
};

// makes a stack whose first switch enters `entry`, which never returns
Context * context_create(void (*entry)());
#if defined(EDGEKV_EMULATOR_SWITCH) && !defined(__SANITIZE_ADDRESS__)
extern "C" void edgekv_emulator_switch(void ** from, void * to);
inline void context_switch(Context & from, Context & to) { edgekv_emulator_switch(&from.sp, to.sp); }
#else
void context_switch(Context & from, Context & to);
#endif
void context_entered(const Context * self);  // `entry` calls it first
bool context_guard(const void * address);

}  // namespace edgekv::gpu::emulator
