// Rows of K and V that a thread loads layer by layer while earlier layers are computed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace edgekv {

class Arrivals {
public:
    // decoding thread, between ubatches
    void expect(int n_layers);  // from now on nodes wait for their layer's rows
    void expect_none();         // all rows came, or a failure was repaired

    // the loading thread
    void came(int end_layer);   // the rows of all layers before end_layer are loaded
    void fail();                // no more rows come; all waits end

    // any thread
    void wait(int layer) {  // until a layer's rows came or failed; returns at once if none are expected
        if (layer >= end.load(std::memory_order_acquire)) {
            block(layer);
        }
    }
    void wait_for_all();
    bool open() const { return active.load(std::memory_order_acquire); }  // since expect(), until expect_none()
    bool pending() const { return end.load(std::memory_order_acquire) != kAll; }
    bool failed() const { return lost.load(std::memory_order_acquire); }

private:
    static constexpr int kAll = 1 << 30;

    void block(int layer);
    void move_to(int layer);

    std::mutex mutex;
    std::condition_variable moved;
    std::atomic<int>  end{kAll};  // the rows of the layers before this one are loaded
    std::atomic<bool> lost{false};
    std::atomic<bool> active{false};
    int n_layers = 0;
};

}  // namespace edgekv
