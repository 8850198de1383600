// A free thread of a node claims the next piece of its work. The counters are zero between nodes.
#pragma once

#include <atomic>

namespace edgekv {

struct Claims {
    alignas(64) std::atomic<int> next{0};  // the next piece to claim
    alignas(64) std::atomic<int> done{0};  // threads that have left

    int claim() { return next.fetch_add(1, std::memory_order_relaxed); }

    // Each thread of the node calls it once, after its last claim. ggml's barrier orders the zeros before the next node.
    void leave(int n_threads) {
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
            done.store(0, std::memory_order_relaxed);
            next.store(0, std::memory_order_relaxed);
        }
    }
};

}  // namespace edgekv
