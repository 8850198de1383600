// How ggml's threads wait: for each other within a graph, and for the next graph (patches/core/0019-waiting.patch).
//
// A thread spins for some microseconds, which is enough where nothing else runs, and then sleeps: where another process has the processor
// that the others need, a thread that goes on spinning keeps them from it as long as the kernel lets it run. No variable of an OpenMP
// library decides this, because there is none: a library reads its variables when it is loaded, which may be before anybody can set them.
#pragma once

#if defined(__cplusplus)
extern "C" {
#endif

#define EDGEKV_THREADS_API __attribute__((visibility("default")))

// Returns when *word is no longer `value`. Whoever changes the word, by an atomic operation with full order, calls edgekv_wake() next.
EDGEKV_THREADS_API void edgekv_wait_while(const int * word, int value);
EDGEKV_THREADS_API void edgekv_wake(const int * word);

// How often a thread of this process slept in edgekv_wait_while(). For tests.
EDGEKV_THREADS_API long edgekv_times_asleep(void);

#if defined(__cplusplus)
}

#include "ggml-cpu.h"

#include <utility>

#include <unistd.h>

// The threads of a CPU backend, which stay from one graph to the next. Of the last two numbers of threads that were asked for: one for prompts, one for
// tokens.
class edgekv_pools {
public:
    edgekv_pools() = default;
    edgekv_pools(const edgekv_pools &) = delete;
    edgekv_pools & operator=(const edgekv_pools &) = delete;
    ~edgekv_pools() {
        last_.free();
        other_.free();
    }

    ggml_threadpool_t of(int n_threads) {
        if (!last_.fits(n_threads)) {
            std::swap(last_, other_);
        }
        if (!last_.fits(n_threads)) {
            last_.free();
            ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
            params.poll = 0;  // between two graphs the caller samples, draws and sends: threads sleep
            last_ = { ggml_threadpool_new(&params), n_threads, getpid() };
        }
        return last_.pool;
    }

private:
    struct Pool {
        ggml_threadpool_t pool = nullptr;
        int n_threads = 0;
        pid_t process = 0;

        bool fits(int n) const { return pool && n_threads == n && process == getpid(); }
        void free() {
            if (process == getpid()) {  // a fork has its parent's pools, without their threads
                ggml_threadpool_free(pool);
            }
        }
    };
    Pool last_, other_;
};
#endif
