// Host memory that is pinned by and by: how long a part takes, whether that waits for a stream at work, and whether a copy may leave a part.
#include "cuda/engine/pinning.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include <sys/mman.h>

#include "cuda/gpu.h"

namespace edgekv::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double ms_of(const std::function<bool()> & call, bool & ok) {
    const Clock::time_point begin = Clock::now();
    ok = call() && ok;
    return std::max(std::chrono::duration<double, std::milli>(Clock::now() - begin).count(), 1e-6);
}

// Two parts of host memory that nobody has touched, and as much of the card's as one takes.
struct Parts {
    explicit Parts(size_t n) : n(n) {
        void * p = mmap(nullptr, 2*n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        home = p == MAP_FAILED ? nullptr : static_cast<char *>(p);
        made = home && alloc(&local, n) && stream_create(&stream);
    }
    ~Parts() {
        if (stream) {
            stream_sync(stream);
            stream_destroy(stream);
        }
        free_device(local);
        for (const bool second : {false, true}) {
            let_go(second);
        }
        if (home) {
            munmap(home, 2*n);
        }
    }
    Parts(const Parts &) = delete;
    Parts & operator=(const Parts &) = delete;

    char * part(bool second) const { return home + (second ? n : 0); }
    bool take(bool second) { return pinned[second] = pin(part(second), n, home, 2*n); }
    bool let_go(bool second) {
        if (pinned[second]) {
            unpin(part(second));
        }
        pinned[second] = false;
        return true;
    }

    const size_t n;
    char * home = nullptr;
    void * local = nullptr;
    Stream stream = nullptr;
    bool pinned[2] = {false, false};
    bool made = false;
};

}  // namespace

bool time_pinning(int index, size_t n_bytes, edgekv_pinning & out) {
    out = {};
    if (!use_device(index)) {
        return false;
    }
    Parts parts(n_bytes);
    bool ok = parts.made;
    out.fresh_ms = ms_of([&] { return ok && parts.take(false); }, ok);
    ok = ok && parts.take(true);
    if (!ok) {
        return false;
    }
    out.works   = is_pinned(parts.home) && is_pinned(parts.home + 2*n_bytes - 1);
    out.crosses = copy(parts.local, parts.part(true) - n_bytes/2, n_bytes);
    out.unpin_ms   = ms_of([&] { return parts.let_go(true); }, ok);
    out.touched_ms = ms_of([&] { return parts.take(true); }, ok);
    parts.let_go(true);

    // The stream is at work for eight times as long, if nothing waits for it.
    const auto copies = [&] { return copy_async(parts.local, parts.home, n_bytes, parts.stream); };
    const double each = ms_of([&] { return copies() && stream_sync(parts.stream); }, ok);
    const int n_copies = static_cast<int>(std::min(8*out.touched_ms/each + 1, 256.0));
    out.busy_ms = ms_of([&] {
        for (int i = 0; i < n_copies; ++i) {
            ok = copies() && ok;
        }
        out.beside_ms = ms_of([&] { return parts.take(true); }, ok);
        return stream_sync(parts.stream);
    }, ok);
    return ok;
}

}  // namespace edgekv::gpu
