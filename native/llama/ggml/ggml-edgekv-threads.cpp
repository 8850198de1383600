#include "ggml/ggml-edgekv-threads.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include <pthread.h>

namespace {

// Some ten to fifty microseconds, by the processor. As many turns on a quiet machine cost nothing that could be measured, a hundred times as many are
// what makes a token thirty times slower beside other work.
constexpr int kTurns = 1000;

// Words share places by their address. A thread that is woken for another word's sake sleeps again.
struct Place {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<int> n_asleep{0};
};
constexpr size_t kPlaces = 64;

Place * g_places = new Place[kPlaces];  // never freed: threads may sleep while the process ends

// A fork has none of the threads that sleep here, which would hold a mutex for ever, or a condition that waits for them to leave it.
[[maybe_unused]] const int g_forks = pthread_atfork(nullptr, nullptr, [] { g_places = new Place[kPlaces]; });

Place & place_of(const int * word) { return g_places[reinterpret_cast<uintptr_t>(word) / 64 % kPlaces]; }

std::atomic<long> g_times_asleep{0};

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

}  // namespace

void edgekv_wait_while(const int * word, int value) {
    for (int turn = 0; turn < kTurns; ++turn) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
            return;
        }
        relax();
    }
    Place & place = place_of(word);
    std::unique_lock<std::mutex> lock(place.mutex);
    place.n_asleep.fetch_add(1);  // before the word is looked at: whoever changes it then sees a sleeper
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
        g_times_asleep.fetch_add(1, std::memory_order_relaxed);
        place.changed.wait(lock);
    }
    place.n_asleep.fetch_sub(1);
}

void edgekv_wake(const int * word) {
    Place & place = place_of(word);
    if (place.n_asleep.load() > 0) {
        { std::lock_guard<std::mutex> lock(place.mutex); }  // a sleeper that saw the old word has begun to wait
        place.changed.notify_all();
    }
}

long edgekv_times_asleep() { return g_times_asleep.load(std::memory_order_relaxed); }
