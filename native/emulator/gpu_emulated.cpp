// gpu.h on the emulated device: the device itself, its memory and copies. Streams and events: emulator_stream.cpp.
#include <memory>
#include <vector>

#include "cuda/gpu.h"

#include "emulator/emulator_state.h"

namespace edgekv::gpu {

using namespace emulator;

namespace {

using Guard = std::lock_guard<std::recursive_mutex>;

std::string mib(size_t n_bytes) { return std::to_string((n_bytes + (size_t(1) << 20) - 1) >> 20) + " MiB"; }

size_t read_from_host = 0;

bool copies() {
    if (limits().copies_left == 0) {
        return fail("the copy was refused (set_limits)");
    }
    limits().copies_left -= limits().copies_left > 0;
    return true;
}

void release(Kind kind, void * p, const char * sentence) {
    if (p && !memory_free(kind, p)) {
        fault(sentence, p);
    }
}

}  // namespace

size_t emulator::link_bytes() {
    Guard guard(lock());
    return read_from_host;
}

void emulator::count_link(size_t n_bytes) {
    read_from_host += n_bytes;  // operations run under the lock
}

int device_count() { return 1; }

bool device(int index, Device & out) {
    if (index != 0) {
        return fail("there is one emulated device, number 0");
    }
    Guard guard(lock());
    out = Device{};
#if defined(EDGEKV_RACECHECK)
    out.name = "emulated device with its race detector";
#else
    out.name = "emulated device";
#endif
    out.n_sm = emulator::n_sm();
    out.total_bytes = limits().device_bytes;
    out.free_bytes = limits().device_bytes - std::min(limits().device_bytes, device_bytes_used());
    out.has_display = limits().has_display;
    out.maps_host = true;
    out.pins_later = limits().pins_later;
    out.has_kernels = true;
    return true;
}

bool use_device(int index) { return index == 0 || fail("there is one emulated device, number 0"); }

const char * last_error() { return last_failure(); }

bool check() {
    Guard guard(lock());
    return take_sticky();
}

std::string take_failure() { return take_first_failure(); }

bool error_stands() { return foreign_error() != Foreign::none; }

void clear_not_ready() {
    if (foreign_error() == Foreign::not_ready) {
        leave_error(Foreign::none);
    }
}

// ---- memory ------------------------------------------------------------------------------------------------------------------

bool alloc(void ** out, size_t n_bytes) {
    Guard guard(lock());
    install_fault_handler();
    *out = nullptr;
    const size_t used = device_bytes_used(), total = limits().device_bytes, free = total - std::min(total, used);
    if (n_bytes <= free && limits().allocs_left != 0) {
        limits().allocs_left -= limits().allocs_left > 0;
        *out = memory_alloc(Kind::device, n_bytes);
    }
    return *out || fail("the GPU has no memory for " + mib(n_bytes) + " more; " + mib(free) + " are free");
}

void free_device(void * p) {
    Guard guard(lock());
    if (p) {
        drain();  // as cudaFree
    }
    release(Kind::device, p, "free_device: no device memory begins at %p");
}

bool alloc_pinned(void ** out, size_t n_bytes) {
    Guard guard(lock());
    install_fault_handler();
    const size_t used = memory_bytes(Kind::pinned), most = limits().pinned_bytes;
    *out = used <= most && n_bytes <= most - used ? memory_alloc(Kind::pinned, n_bytes) : nullptr;
    return *out || fail("the host has no pinned memory for " + mib(n_bytes) + " more");
}

void free_pinned(void * p) {  // whoever did not wait for its users is found by what they touch
    Guard guard(lock());
    release(Kind::pinned, p, "free_pinned: no pinned memory begins at %p");
}

bool pin(char * p, size_t n_bytes, char * home, size_t home_bytes) {
    Guard guard(lock());
    install_fault_handler();
    const size_t used = memory_bytes(Kind::pinned), most = limits().pinned_bytes;
    if (used > most || n_bytes > most - used) {
        return fail("the host has no pinned memory for " + mib(n_bytes) + " more");
    }
    return memory_pin(p, n_bytes, home, home_bytes) || fail("what is to be pinned is not whole pages of a home that are not pinned yet");
}

void unpin(char * p) {
    Guard guard(lock());
    if (!memory_unpin(p)) {
        fault("unpin: nothing that is pinned begins at %p", p);
    }
}

bool is_pinned(const void * host) {
    Guard guard(lock());
    return memory_range(host, 1) == Range::pinned;
}

// ---- copies ------------------------------------------------------------------------------------------------------------------

bool copy_async(void * dst, const void * src, size_t n_bytes, Stream stream) {
    Guard guard(lock());
    if (n_bytes == 0) {
        return true;
    }
    const Range to = memory_range(dst, n_bytes), from = memory_range(src, n_bytes);
    if (to == Range::bad || from == Range::bad) {
        const std::string which = to == Range::bad ? "destination" : "source";
        return fail("the " + which + " of a copy is not all in one allocation");
    }
    if (!copies()) {
        return false;
    }

    // Pageable memory goes through a buffer of the driver: a copy from it takes the contents of now, and a copy to it is complete
    // when the call returns.
    const bool pageable = to == Range::pageable || from == Range::pageable;
    if (pageable && stream_capturing(stream, nullptr)) {
        return fail("the stream records a graph: only pinned host memory can be copied");
    }
    const char * source = static_cast<const char *>(src);
    std::shared_ptr<std::vector<char>> staged;
    if (from == Range::pageable) {
        staged = std::make_shared<std::vector<char>>(source, source + n_bytes);
        source = staged->data();
    }
    queue(stream, [=] {
        static_cast<void>(staged);  // the capture keeps it as long as the operation lives
        count_link(from == Range::device ? 0 : n_bytes);
        std::memcpy(dst, source, n_bytes);
    });
    return to != Range::pageable || stream_sync(stream);
}

bool copy(void * dst, const void * src, size_t n_bytes) {
    Guard guard(lock());
    return copy_async(dst, src, n_bytes, nullptr) && stream_sync(nullptr);
}

bool zero_async(void * dst, size_t n_bytes, Stream stream) {
    Guard guard(lock());
    if (n_bytes == 0) {
        return true;
    }
    const Range to = memory_range(dst, n_bytes);
    if (to != Range::device && to != Range::pinned) {
        return fail("what is to be zeroed is not all in one allocation of the device's");
    }
    queue(stream, [=] { std::memset(dst, 0, n_bytes); });
    return true;
}

}  // namespace edgekv::gpu

// for tests that open the library
extern "C" __attribute__((visibility("default"))) uint64_t edgekv_emulated_link_bytes() {
    return edgekv::gpu::emulator::link_bytes();
}
