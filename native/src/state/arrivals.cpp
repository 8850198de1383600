#include "state/arrivals.h"

namespace edgekv {

void Arrivals::expect(int n) {
    n_layers = n;
    lost.store(false, std::memory_order_release);
    active.store(true, std::memory_order_release);
    end.store(0, std::memory_order_release);
}

void Arrivals::expect_none() {
    lost.store(false, std::memory_order_release);
    active.store(false, std::memory_order_release);
    move_to(kAll);
}

void Arrivals::came(int end_layer) { move_to(end_layer >= n_layers ? kAll : end_layer); }

void Arrivals::fail() {
    lost.store(true, std::memory_order_release);
    move_to(kAll);
}

void Arrivals::wait_for_all() { wait(kAll - 1); }

void Arrivals::move_to(int layer) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        end.store(layer, std::memory_order_release);
    }
    moved.notify_all();
}

void Arrivals::block(int layer) {
    std::unique_lock<std::mutex> lock(mutex);
    moved.wait(lock, [&] { return layer < end.load(std::memory_order_acquire); });
}

}  // namespace edgekv
