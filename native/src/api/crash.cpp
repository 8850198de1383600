// When native code ends the process, the user reads one sentence, even if standard error was redirected in the meantime.
#include "edgekv.h"

#include "ggml.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include <fcntl.h>
#include <unistd.h>

namespace {

constexpr int kSignals[] = { SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV };
constexpr int kNumSignals = sizeof(kSignals) / sizeof(kSignals[0]);

int  g_fd = -1;              // the first standard error
char g_details[512] = "";    // a path; static, because a signal handler reads it
volatile sig_atomic_t g_told = 0;
struct sigaction g_before[kNumSignals];
std::terminate_handler g_terminate_before = nullptr;

// uses write() only: a signal handler may not call stdio
void put(const char * text) {
    size_t left = std::strlen(text);
    while (left > 0) {
        const ssize_t n = write(g_fd, text, left);
        if (n <= 0) {
            return;
        }
        text += n;
        left -= static_cast<size_t>(n);
    }
}

// prints once: an abort that follows a reported failure adds nothing
void tell(const char * what, const char * message) {
    if (g_told) {
        return;
    }
    g_told = 1;

    put("edgekv: ");
    put(what);
    if (message && *message) {
        put(": ");
        put(message);
    }
    if (*g_details) {
        put("; details are in ");
        put(g_details);
    }
    put("\n");
}

const char * meaning(int number) {
    switch (number) {
        case SIGABRT: return "native code gave up (SIGABRT)";
        case SIGBUS:  return "native code touched memory that cannot be read, such as a model file that was cut short, or a KV home on a disk that failed (SIGBUS)";
        case SIGFPE:  return "native code divided by zero (SIGFPE)";
        case SIGILL:  return "native code used an instruction that this processor does not have (SIGILL); `edgekv doctor` says what was built";
        default:      return "native code touched memory that is not its own (SIGSEGV)";
    }
}

void on_signal(int number, siginfo_t * info, void * context) {
    tell(meaning(number), nullptr);
    for (int i = 0; i < kNumSignals; ++i) {
        if (kSignals[i] != number) {
            continue;
        }
        const struct sigaction & before = g_before[i];
        sigaction(number, &before, nullptr);
        if (before.sa_flags & SA_SIGINFO) {
            before.sa_sigaction(number, info, context);  // such as Python's faulthandler, which prints all stacks
        } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
            before.sa_handler(number);
        } else {
            signal(number, SIG_DFL);
            raise(number);  // arrives when this handler returns
        }
    }
}

void on_abort(const char * message) {
    std::fprintf(stderr, "%s\n", message);  // into the log, if there is one
    tell("llama.cpp met a state that it cannot handle", message);
}

void on_terminate() {
    if (const auto error = std::current_exception()) {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception & e) {
            tell("native code ended by an uncaught exception", e.what());
        } catch (...) {
            tell("native code ended by an uncaught exception", nullptr);
        }
    } else {
        tell("native code ended the process (std::terminate)", nullptr);
    }
    if (g_terminate_before) {
        g_terminate_before();
    }
    std::abort();
}

}  // namespace

void edgekv_tell_crashes(void) {
    if (g_fd >= 0) {
        return;
    }
    g_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (g_fd < 0) {
        return;  // no standard error to print to
    }

    ggml_set_abort_callback(on_abort);
    g_terminate_before = std::set_terminate(on_terminate);

    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags     = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < kNumSignals; ++i) {
        sigaction(kSignals[i], &action, &g_before[i]);
    }
}

void edgekv_set_crash_details(const char * path) { std::snprintf(g_details, sizeof(g_details), "%s", path ? path : ""); }
