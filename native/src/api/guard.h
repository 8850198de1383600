// C frames cannot pass exceptions on. Functions and hooks that C calls catch every exception here.
#pragma once

#include "api/internal.h"

#include <chrono>
#include <exception>
#include <new>
#include <thread>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace edgekv {

// For tests: the n-th guarded call from now on throws std::bad_alloc before anything else; 0: none does.
void throw_in_guarded(int n);
void guarded_begins();  // throws if it is this call's turn

constexpr const char * kNoMemory = "there is no memory for what this call needs";

// A function of the C API.
template <class F>
edgekv_status guarded(F body) {
    try {
        guarded_begins();
        return body();
    } catch (const std::bad_alloc &) {
        return fail(EDGEKV_NO_MEMORY, kNoMemory);
    } catch (const std::exception & e) {
        return fail(EDGEKV_UNSUPPORTED, e.what());
    }
}

// A hook that libllama calls for a context (null: for none). An exception becomes the context's permanent failure: this ubatch and every
// later one fail with its sentence.
template <class R, class Context, class F>
R guarded_hook(Context * ctx, R otherwise, F body) {
    const char * sentence = nullptr;
    try {
        guarded_begins();
        return body();
    } catch (const std::bad_alloc &) {
        sentence = "there was no memory to prepare a ubatch; make the context anew";
    } catch (...) {
        sentence = "EdgeKV could not prepare a ubatch; make the context anew";
    }
    if (ctx) {
        ctx->thrown = sentence;
    }
    return otherwise;
}

// A callback. A program that exits may end this thread there: pthread_exit() unwinds the stack, and the frames above let nothing through, which would
// end the process with a trace. The thread waits here for the process's end.
template <class F>
auto outside(F body) {
#ifdef __GLIBCXX__
    try {
        return body();
    } catch (const abi::__forced_unwind &) {
        for (;;) {
            std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
#else
    return body();
#endif
}

}  // namespace edgekv
