// A stack on which a thread of a block runs, and the switch between two of them. Contexts are pooled; the switch is a few
// instructions where we know the processor, ucontext elsewhere.
#pragma once

#include <cstddef>

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(EDGEKV_EMULATOR_UCONTEXT)
#    define EDGEKV_EMULATOR_SWITCH 1
#else
#    include <ucontext.h>
#endif

namespace edgekv::gpu::emulator {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kStackGuardBytes = 1024 * 1024;  // below it, out of reach; more than any frame that a thread may ask for at once

struct Context {
#if EDGEKV_EMULATOR_SWITCH
    void * sp = nullptr;
#else
    ucontext_t uc{};
#endif
    char * stack = nullptr;  // null: the host thread's own
    void * fake_stack = nullptr;  // AddressSanitizer's
};

// a stack that enters `entry` (which never returns) at the first switch to it
Context * context_create(void (*entry)());
void context_switch(Context & from, Context & to);
void context_entered(const Context * self);  // `entry` calls it first
bool context_guard(const void * address);

}  // namespace edgekv::gpu::emulator
