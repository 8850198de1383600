#include "emulator/emulator_context.h"

#include <sys/mman.h>

#include <vector>

#include "emulator/emulator_state.h"

namespace edgekv::gpu::emulator {
namespace {

std::vector<Context *> & contexts() {
    static std::vector<Context *> all;
    return all;
}

}  // namespace

#if defined(__APPLE__)
#    define EDGEKV_SYMBOL "_edgekv_emulator_switch"
#    define EDGEKV_SYMBOL_TYPE ""
#else
#    define EDGEKV_SYMBOL "edgekv_emulator_switch"
#    define EDGEKV_SYMBOL_TYPE ".hidden " EDGEKV_SYMBOL "\n.type " EDGEKV_SYMBOL ", %function\n"
#endif

// Saves the registers that a function must preserve, stores the stack pointer to *from, takes the other stack pointer and returns there.
// It jumps through a register instead of `ret`, for which the processor would predict the wrong target.
#if defined(__x86_64__)
asm(".text\n.globl " EDGEKV_SYMBOL "\n" EDGEKV_SYMBOL_TYPE EDGEKV_SYMBOL ":\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  popq %rcx\n  jmp *%rcx\n");
constexpr size_t kSaved = 6, kEntry = 6, kFrame = 8;  // words; the last one aligns the entry as a call does
#elif defined(__aarch64__)
asm(".text\n.globl " EDGEKV_SYMBOL "\n" EDGEKV_SYMBOL_TYPE EDGEKV_SYMBOL ":\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  br x30\n");
constexpr size_t kSaved = 20, kEntry = 11, kFrame = 20;
#else
#    error "the switch between two threads of a block is written for x86-64 and AArch64"
#endif

Context * context_create(void (*entry)()) {
    const size_t bytes = kStackGuardBytes + kStackBytes;
    void * p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kStackGuardBytes, PROT_NONE) != 0) {
        fault("the host has no memory for the stack of one more thread");
    }

    Context * context = new Context;
    context->stack = static_cast<char *>(p) + kStackGuardBytes;
    static_assert(kEntry < kFrame && kSaved <= kFrame, "the frame holds what is saved");
    // stacks begin at different places in their pages: at equal places they would compete for a few cache lines
    const size_t colour = contexts().size() % 64 * 448;
    void ** frame = reinterpret_cast<void **>(context->stack + kStackBytes - 64 - colour) - kFrame;
    for (size_t i = 0; i < kFrame; ++i) {
        frame[i] = nullptr;
    }
    frame[kEntry] = reinterpret_cast<void *>(entry);
    context->sp = frame;
    contexts().push_back(context);
    return context;
}

bool context_guard(const void * address) {
    const char * p = static_cast<const char *>(address);
    for (const Context * context : contexts()) {
        if (p < context->stack && p >= context->stack - kStackGuardBytes) {
            return true;
        }
    }
    return false;
}

}  // namespace edgekv::gpu::emulator
