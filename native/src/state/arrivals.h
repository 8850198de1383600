// Rows of K and V that a loading thread brings layer by layer, while earlier layers are computed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace edgekv {

class Arrivals {
public:
    // decoding thread, between ubatches
    void expect(int n_layers);  // from now on nodes wait for the rows of their layer
    void expect_none();         // all came, or a failure has been mended

    // the thread that brings them
    void came(int end_layer);   // the rows of all layers before end_layer are there
    void fail();                // no more rows come, and nobody waits for them

    // any thread
    void wait(int layer) {  // until a layer's rows came or failed; returns at once where none are expected
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
    std::atomic<int>  end{kAll};  // the rows of the layers before it are there
    std::atomic<bool> lost{false};
    std::atomic<bool> active{false};
    int n_layers = 0;
};

}  // namespace edgekv
