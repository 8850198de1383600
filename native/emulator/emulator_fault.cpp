// Reports: a sentence for the caller, and the end of the process on behaviour that a GPU leaves undefined.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "emulator/emulator_state.h"

namespace edgekv::gpu::emulator {
namespace {

thread_local std::string failure, first_failure;
std::string sticky;
bool is_sticky = false;

struct sigaction before_segv, before_bus;

// Lets operations reach memory. Explains another fault in our memory or in a kernel, then leaves every fault to the earlier handler.
void on_signal(int number, siginfo_t * info, void *) {
    if (memory_reach(info->si_addr)) {
        return;
    }
    const std::string memory = memory_explain(info->si_addr);
    const char * what = "";
    if (!memory.empty()) {
        what = memory.c_str();
    } else if (in_fiber_guard(info->si_addr)) {
        what = "the end of a thread's stack: local arrays are too large";
    }
    if (*what || running()) {
        const std::string where = running() ? ", in " + place() : "";
        std::fprintf(stderr, "edgekv: emulated device: access to %s%s\n", *what ? what : "an invalid address", where.c_str());
    }
    sigaction(number, number == SIGSEGV ? &before_segv : &before_bus, nullptr);
}

}  // namespace

void install_fault_handler() {
    static const bool once = [] {
        // the handler has a stack of its own: a thread's stack may be the one that overflowed
        static char stack[64 * 1024];
        stack_t alternative{};
        alternative.ss_sp = stack;
        alternative.ss_size = sizeof(stack);
        stack_t current{};
        if (sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE)) {
            sigaltstack(&alternative, nullptr);
        }
        struct sigaction action{};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
        return true;
    }();
    static_cast<void>(once);
}

void fault(const char * format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "edgekv: emulated device: %s%s%s\n", text, running() ? ", in " : "", running() ? place().c_str() : "");
    std::fflush(stderr);
    std::abort();
}

bool fail(const std::string & sentence) {
    failure = sentence;
    if (first_failure.empty()) {
        first_failure = sentence;
    }
    return false;
}

std::string take_first_failure() { return std::exchange(first_failure, ""); }

namespace {
thread_local Foreign stands = Foreign::none;
}

void leave_error(Foreign left) { stands = left; }

Foreign foreign_error() { return stands; }

const char * last_failure() { return failure.c_str(); }

void set_sticky(const std::string & sentence) {
    if (!is_sticky) {
        sticky = sentence;
        is_sticky = true;
    }
}

bool take_sticky() {
    if (!is_sticky) {
        return true;
    }
    is_sticky = false;
    return fail(sticky);
}

}  // namespace edgekv::gpu::emulator
