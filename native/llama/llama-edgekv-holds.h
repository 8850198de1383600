// Cells that are held for who reads their rows. Every stream of a cache has its holds in its clock (llama-edgekv-cells.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

struct llama_edgekv_holds;

// Cells whose rows somebody reads, now or later.
struct llama_edgekv_hold {
    std::shared_ptr<llama_edgekv_holds> holds;
    std::vector<uint32_t> cells;
    void (*needed)(void * user) = nullptr;  // tells the holder that a call waits for a cell; null: nobody is told
    void * user = nullptr;

    bool has(uint32_t i) const { return std::find(cells.begin(), cells.end(), i) != cells.end(); }
};

// The holds of a stream. A call that moves or removes a held cell tells the holders, and waits until they release it.
struct llama_edgekv_holds {
    void hold(const llama_edgekv_hold * one) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!one->cells.empty()) {
            count.resize(std::max<size_t>(count.size(), *std::max_element(one->cells.begin(), one->cells.end()) + size_t(1)));
        }
        for (const uint32_t i : one->cells) {
            n_held += count[i]++ == 0;
        }
        holders.push_back(one);
    }

    // any thread
    void release(const llama_edgekv_hold * one) {
        std::lock_guard<std::mutex> lock(mutex);
        for (const uint32_t i : one->cells) {
            n_held -= --count[i] == 0;
        }
        holders.erase(std::remove(holders.begin(), holders.end(), one), holders.end());
        released.notify_all();
    }

    void wait(uint32_t i) {
        if (n_held == 0) {
            return;
        }
        std::unique_lock<std::mutex> lock(mutex);
        const auto is_free = [&] { return i >= count.size() || count[i] == 0; };
        if (!is_free()) {
            tell(lock, [&](const llama_edgekv_hold & one) { return one.has(i); });
            released.wait(lock, is_free);
        }
    }

    void wait_for_all() {
        std::unique_lock<std::mutex> lock(mutex);
        tell(lock, [](const llama_edgekv_hold &) { return true; });
        released.wait(lock, [&] { return n_held == 0; });
    }

private:
    // A holder may be gone when it is told: it knows its `user`, and this thread makes all holds.
    template <class Which>
    void tell(std::unique_lock<std::mutex> & lock, Which && which) {
        std::vector<std::pair<void (*)(void *), void *>> told;
        for (const auto * one : holders) {
            if (one->needed && which(*one)) {
                told.emplace_back(one->needed, one->user);
            }
        }
        lock.unlock();
        for (const auto & [needed, user] : told) {
            needed(user);
        }
        lock.lock();
    }

    std::mutex mutex;
    std::condition_variable released;
    std::vector<const llama_edgekv_hold *> holders;
    std::vector<uint32_t> count;  // [cell] holders
    std::atomic<uint32_t> n_held { 0 };  // held cells
};
