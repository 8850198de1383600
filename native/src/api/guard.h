// C frames know nothing of exceptions. A function or a hook that C calls catches every exception here.
#pragma once

#include "api/internal.h"

#include <exception>
#include <new>

namespace edgekv {

// Tests: the n-th guarded call from now on throws std::bad_alloc before anything else; 0: none does.
void throw_in_guarded(int n);
void guarded_begins();  // throws where it is this one's turn

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

// A hook that libllama calls for a context, null: for none. An exception becomes the context's failure for good: this ubatch fails with
// the sentence, and so does every later one.
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

}  // namespace edgekv
