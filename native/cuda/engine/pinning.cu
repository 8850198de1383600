// Host memory that is pinned by and by: how long a part takes, whether that waits for a stream at work, and whether a copy may leave a part.
#include "cuda/engine/pinning.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include <sys/mman.h>
#include <unistd.h>

#include "cuda/gpu.h"

namespace edgekv::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double ms_of(const std::function<bool()> & call, bool & ok) {
    const Clock::time_point begin = Clock::now();
    ok = call() && ok;
    return std::max(std::chrono::duration<double, std::milli>(Clock::now() - begin).count(), 1e-6);
}

constexpr size_t kPieces = 64;  // in which a part is pinned: K and V of 32 layers

// Two parts of host memory that nobody has touched, and as much of the card's as one takes. The second is pinned in pieces.
struct Parts {
    explicit Parts(size_t n) : n(n) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        piece = std::max(n/kPieces/page*page, page);
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
    bool take(bool second) {
        size_t & end = pinned[second];
        while (end < n) {
            const size_t more = second ? std::min(piece, n - end) : n;
            if (!pin(part(second) + end, more, home, 2*n)) {
                return false;
            }
            end += more;
        }
        return true;
    }
    bool let_go(bool second) {
        for (size_t first = 0; first < pinned[second]; first += second ? piece : n) {
            unpin(part(second) + first);
        }
        pinned[second] = 0;
        return true;
    }

    const size_t n;
    size_t piece = 0;
    char * home = nullptr;
    void * local = nullptr;
    Stream stream = nullptr;
    size_t pinned[2] = {0, 0};  // bytes
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
    ok = ok && parts.take(false);
    out.fresh_ms = ms_of([&] { return ok && parts.take(true); }, ok);
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
