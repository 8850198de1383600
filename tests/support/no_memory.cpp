// Preloaded: an allocation of C++ that fails.
#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<int> left{0};

// The n-th allocation from now on fails, and no other; 0: none does. Returns how many were left before that one, 0 where it failed.
extern "C" int edgekv_test_fail_allocation(int n) { return left.exchange(n); }

void * operator new(std::size_t n) {
    int now = left.load();
    while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
    }
    void * found = now == 1 ? nullptr : std::malloc(n > 0 ? n : 1);
    if (!found) {
        throw std::bad_alloc();
    }
    return found;
}

void operator delete(void * p) noexcept { std::free(p); }

void operator delete(void * p, std::size_t) noexcept { std::free(p); }
