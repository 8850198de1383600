// Cells that are held for who reads their rows. Every stream of a cache has its holds in its clock (llama-edgekv-cells.h). Held rows whose cells lose
// their tokens leave with the memory that they have, and may come back with it (llama-edgekv-parked.cpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

struct llama_edgekv_hold;
struct llama_edgekv_holds;

// K or V of a layer, for cells of one stream
struct llama_edgekv_held_rows {
    char * data;   // of the stream's first cell, if it lay here
    size_t bytes;  // of a row
    size_t unit;   // rows move whole where source and destination agree modulo this
};

// Addresses beside a home, with rows of some of its holds. They belong to no context, and go with the last of these holds. Any thread.
class llama_edgekv_parked {
public:
    // Takes the rows of holds of a stream along, whose cells are consecutive in each of them and nobody else's. Null: they stay, because moving whole
    // pages would not pay, or the system cannot. takes(): whether it would take them now.
    static std::shared_ptr<llama_edgekv_parked> take(const std::vector<llama_edgekv_hold *> & holds);
    static bool takes(const std::vector<llama_edgekv_hold *> & holds);
    ~llama_edgekv_parked();

    llama_edgekv_parked(const llama_edgekv_parked &)             = delete;
    llama_edgekv_parked & operator=(const llama_edgekv_parked &) = delete;

    void drop(uint32_t first, uint32_t end);  // nobody reads the rows of these cells any more: whole pages give their memory back

private:
    llama_edgekv_parked() = default;

    char * base = nullptr;
    size_t n_bytes = 0;
    int    n_pieces = 0;  // counted in all_pieces()
    std::vector<llama_edgekv_held_rows> rows;  // here
    uint32_t          first = 0;  // cell
    std::vector<bool> read;       // [cell from the first]
    std::mutex        mutex;      // of `read`
};

// Tells holders that a call waits for cells of theirs; or that their rows were parked.
typedef void (*llama_edgekv_needed)(void * const * users, int n, bool parked);

// Cells whose rows somebody reads, now or later; or rows that were parked, and have no cells any more.
struct llama_edgekv_hold {
    std::shared_ptr<llama_edgekv_holds> holds;
    std::vector<uint32_t> cells;
    llama_edgekv_needed needed = nullptr;  // null: nobody is told
    void * user = nullptr;
    bool parks = false;  // its rows may leave with their memory
    std::shared_ptr<llama_edgekv_parked> parked;  // null: they lie in the cells
    std::vector<llama_edgekv_held_rows> rows;
    std::mutex moves;  // of `rows`, which any thread reads

    bool has(uint32_t i) const { return std::find(cells.begin(), cells.end(), i) != cells.end(); }
};

// The holds of a stream. A call that moves or removes a held cell tells the holders, and waits until they release it.
struct llama_edgekv_holds {
    void hold(llama_edgekv_hold * one) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!one->cells.empty()) {
            count.resize(std::max<size_t>(count.size(), *std::max_element(one->cells.begin(), one->cells.end()) + size_t(1)));
        }
        for (const uint32_t i : one->cells) {
            n_held += count[i]++ == 0;
        }
        holders.push_back(one);
    }

    // hold() needs no memory for n more holders of cells before `end`.
    void reserve(size_t n, uint32_t end) {
        std::lock_guard<std::mutex> lock(mutex);
        count.resize(std::max<size_t>(count.size(), end));
        holders.reserve(holders.size() + n);
    }

    // Any thread. Nothing happens if it was parked.
    void release(llama_edgekv_hold * one) {
        std::lock_guard<std::mutex> lock(mutex);
        remove(one);
        released.notify_all();
    }

    // Cells that `leave` lose their tokens now: holds that have no other cells, and share none, leave with their rows if these can be parked.
    void park(const std::function<bool(uint32_t)> & leave) {
        if (n_held == 0) {
            return;
        }
        std::unique_lock<std::mutex> lock(mutex);
        const auto found = leaving(leave);
        holders_told told;  // nothing needs memory once rows have moved
        std::vector<std::pair<uint32_t, uint32_t>> cells;
        for (const auto * one : found) {
            told.add(*one);
            cells.emplace_back(one->cells.front(), one->cells.back() + 1);
        }
        if (!llama_edgekv_parked::take(found)) {
            return;
        }
        for (auto * one : found) {
            remove(one);
        }
        vacated.swap(cells);
        lock.unlock();
        told.tell(true);
    }

    // the holds that park(leave) would park
    std::vector<llama_edgekv_hold *> would_park(const std::function<bool(uint32_t)> & leave) {
        std::lock_guard<std::mutex> lock(mutex);
        auto found = leaving(leave);
        return llama_edgekv_parked::takes(found) ? found : std::vector<llama_edgekv_hold *>();
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

    std::vector<std::pair<uint32_t, uint32_t>> vacated;  // [first, end) of cells that park() emptied the last time; the decoding thread's

private:
    // A holder may be gone when it is told: it knows its `user`, and this thread makes all holds.
    struct holders_told {
        void add(const llama_edgekv_hold & one) {
            if (one.needed) {
                users[one.needed].push_back(one.user);
            }
        }
        void tell(bool parked) const {
            for (const auto & [needed, those] : users) {
                needed(those.data(), static_cast<int>(those.size()), parked);
            }
        }
        std::map<llama_edgekv_needed, std::vector<void *>> users;
    };

    std::vector<llama_edgekv_hold *> leaving(const std::function<bool(uint32_t)> & leave) const {
        std::vector<llama_edgekv_hold *> found;
        for (auto * one : holders) {
            if (one->parks && std::all_of(one->cells.begin(), one->cells.end(), [&](uint32_t i) { return count[i] == 1 && leave(i); })) {
                found.push_back(one);
            }
        }
        return found;
    }

    template <class Which>
    void tell(std::unique_lock<std::mutex> & lock, Which && which) {
        holders_told told;
        for (const auto * one : holders) {
            if (which(*one)) {
                told.add(*one);
            }
        }
        lock.unlock();
        told.tell(false);
        lock.lock();
    }

    void remove(llama_edgekv_hold * one) {
        const auto at = std::find(holders.begin(), holders.end(), one);
        if (at == holders.end()) {
            return;
        }
        for (const uint32_t i : one->cells) {
            n_held -= --count[i] == 0;
        }
        holders.erase(at);
    }

    std::mutex mutex;
    std::condition_variable released;
    std::vector<llama_edgekv_hold *> holders;
    std::vector<uint32_t> count;  // [cell] holders
    std::atomic<uint32_t> n_held { 0 };  // held cells
};
