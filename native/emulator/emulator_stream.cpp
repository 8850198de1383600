// Streams queue every operation and run it when a caller waits or asks, in an order drawn from the seed.
#include "emulator/emulator_stream.h"

#include <cstdlib>
#include <cstring>

namespace edgekv::gpu::emulator {
namespace {

constexpr size_t kMaxQueued = 4096;  // a full queue begins to run its oldest operations, as a real one does

uint64_t environment_seed() {
    const char * text = std::getenv("EDGEKV_EMULATOR_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 1;
}

Random & seeded() {
    static Random one(environment_seed());
    return one;
}

// Half of the draws run operations only when a caller waits; the others also let the device run ahead.
uint32_t draw_eager_calls() { return random().below(2) ? random().below(8) : 0; }

// Of a card with one, of a middling one and of the largest: launches divide their work by it.
int n_sm_of(uint64_t seed) {
    constexpr int kNumbers[] = {1, 28, 132};
    return kNumbers[seed % 3];
}

bool runnable(const StreamState & s) { return !s.queue.empty() && (!s.queue.front().wait || s.queue.front().wait->done); }

bool others_can_run(const StreamState & s) {
    for (const auto & [handle, other] : queues().streams) {
        if (&other != &s && runnable(other)) {
            return true;
        }
    }
    return false;
}

// Some blocks of the launch that is the stream's first operation; all of them where no other stream has anything to do.
void run_launch(StreamState & s) {
    if (!s.open) {
        if (limits().operations_left == 0) {
            set_sticky("an operation on the device failed (set_limits)");
            s.queue.pop_front();
            --queues().n_queued;
            return;
        }
        limits().operations_left -= limits().operations_left > 0;
        s.open = open_grid(*s.queue.front().launch);
        ++queues().n_open;
    }
    const std::shared_ptr<const Launch> launch = s.queue.front().launch;
    const Opened opened;
    if (run_blocks(*launch, *s.open, others_can_run(s) ? 1 + random().below(8) : s.open->n_left)) {
        s.open.reset();
        --queues().n_open;
        s.queue.pop_front();
        --queues().n_queued;
    }
}

void run_first(StreamState & s) {
    if (s.queue.front().launch) {
        run_launch(s);
        return;
    }
    Operation operation = std::move(s.queue.front());
    s.queue.pop_front();
    --queues().n_queued;
    if (operation.record) {
        operation.record->done = true;
        operation.record->at = std::chrono::steady_clock::now();
    } else if (operation.run) {
        if (limits().operations_left == 0) {
            set_sticky("an operation on the device failed (set_limits)");
            return;
        }
        limits().operations_left -= limits().operations_left > 0;
        const Opened opened;
        operation.run();
    }
}

}  // namespace

Queues & queues() {
    static Queues * one = [] {
        Queues * q = new Queues;
        q->streams[nullptr];
        q->eager_calls = draw_eager_calls();
        q->n_sm = n_sm_of(environment_seed());
        return q;
    }();
    return *one;
}

bool run_any() {
    uint32_t weights = 0;
    for (auto & [handle, s] : queues().streams) {
        if (runnable(s)) {
            if (random().below(8) == 0) {
                s.eager = 1 + random().below(4) * random().below(16);
            }
            weights += s.eager;
        }
    }
    if (weights == 0) {
        return false;
    }
    uint32_t chosen = random().below(weights);
    for (auto & [handle, s] : queues().streams) {
        if (runnable(s)) {
            if (chosen < s.eager) {
                run_first(s);
                return true;
            }
            chosen -= s.eager;
        }
    }
    return false;
}

void run_towards(const std::function<bool()> & reached, StreamState * s) {
    const Opened opened;  // opens memory once for all operations
    while (!reached()) {
        if (random().below(3) == 0) {
            run_any();
            continue;
        }
        StreamState * next = s;
        while (!runnable(*next)) {  // ends, because a record is queued before its waits
            next = &queues().streams.at(next->queue.front().wait->stream);
        }
        run_first(*next);
    }
}

StreamState * find_stream(void * stream) {
    const auto it = queues().streams.find(stream);
    if (it == queues().streams.end()) {
        fail("there is no such stream");
        return nullptr;
    }
    return &it->second;
}

EventState * find_event(void * event) {
    const auto it = queues().events.find(event);
    if (it == queues().events.end()) {
        fail("there is no such event");
        return nullptr;
    }
    return &it->second;
}

void push(void * stream, StreamState & s, Operation operation) {
    if (s.capture) {
        s.capture->streams[stream][stream] += operation.works();
        s.capture->operations.push_back(std::move(operation));
        return;
    }
    s.queue.push_back(std::move(operation));
    ++queues().n_queued;
    if (random().below(8) < queues().eager_calls) {
        for (uint32_t n = random().below(4); n > 0; --n) {
            run_any();
        }
    }
    while (queues().n_queued > kMaxQueued) {
        run_any();
    }
}

bool spoil(const StreamState & s, const std::string & sentence) {
    if (s.capture && s.capture->spoilt.empty()) {
        s.capture->spoilt = sentence;
    }
    return fail(sentence);
}

bool refuse_capture(const StreamState & s, const char * what) {
    return !s.capture || spoil(s, std::string("the stream records a graph: it cannot be ") + what);
}

std::recursive_mutex & lock() {
    static std::recursive_mutex * one = new std::recursive_mutex;
    return *one;
}

Random & random() { return seeded(); }

Limits & limits() {
    static Limits one;
    return one;
}

static bool launched = false;

size_t device_bytes_used() { return memory_bytes(Kind::device) + (launched ? limits().late_bytes : 0); }

bool strict() {
    static const bool on = [] {
        const char * text = std::getenv("EDGEKV_EMULATOR_STRICT");
        return text && std::strcmp(text, "0") != 0;
    }();
    return on;
}

void set_limits(const Limits & to) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    limits() = to;
    launched = false;
}

void set_seed(uint64_t seed) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    random().set(seed);
    queues().eager_calls = draw_eager_calls();
    queues().n_sm = n_sm_of(seed);
}

bool is_open(uint32_t launch) {
    if (launch == 0 || queues().n_open < 2) {
        return false;
    }
    for (const auto & [handle, s] : queues().streams) {
        if (s.open && s.open->number == launch) {
            return true;
        }
    }
    return false;
}

int n_sm() {
    std::lock_guard<std::recursive_mutex> guard(lock());
    return queues().n_sm;
}

size_t n_queued() {
    std::lock_guard<std::recursive_mutex> guard(lock());
    return queues().n_queued;
}

void check_guards() {
    std::lock_guard<std::recursive_mutex> guard(lock());
    memory_check();
}

void queue(void * stream, std::function<void()> run) {
    StreamState * s = find_stream(stream);
    if (!s) {
        set_sticky("there is no such stream");
        return;
    }
    push(stream, *s, Operation{std::move(run), nullptr, nullptr, nullptr});
}

void enqueue_host(void * stream, std::function<void()> run) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    queue(stream, std::move(run));
}

void drain() {
    const Opened opened;
    while (run_any()) {
    }
}

namespace {

// the refusal is known at once; the next sync or check() reports it as well
void refuse_launch(const std::string & sentence) {
    fail(sentence);
    set_sticky(sentence);
}

}  // namespace

void enqueue(void * stream, dim3 grid, unsigned threads, size_t shared_bytes, std::function<void()> kernel, bool behind) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (running()) {
        fault("a kernel cannot launch another");
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        refuse_launch("a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z) +
                   " blocks cannot be launched");
        return;
    }
    if (threads == 0 || threads > 1024) {
        refuse_launch("a block of " + std::to_string(threads) + " threads cannot be launched; 1 to 1024 can");
        return;
    }
    if (shared_bytes > limits().shared_bytes) {
        refuse_launch("a block cannot have " + std::to_string(shared_bytes) + " bytes of shared memory; up to " +
                   std::to_string(limits().shared_bytes) + " can be had");
        return;
    }
    StreamState * s = find_stream(stream);
    if (!s) {
        set_sticky("there is no such stream");
        return;
    }
    launched = true;
    push(stream, *s, Operation{{}, nullptr, nullptr, std::make_shared<const Launch>(Launch{grid, threads, shared_bytes, std::move(kernel), behind})});
}

}  // namespace edgekv::gpu::emulator

// for tests that reach the device only through a library
extern "C" __attribute__((visibility("default"))) void edgekv_emulator_has(size_t n_bytes, size_t late_bytes, bool has_display, size_t pinned_bytes) {
    edgekv::gpu::emulator::Limits limits;
    limits.device_bytes = n_bytes;
    limits.late_bytes   = late_bytes;
    limits.has_display  = has_display;
    limits.pinned_bytes = pinned_bytes;
    edgekv::gpu::emulator::set_limits(limits);
}
extern "C" __attribute__((visibility("default"))) void edgekv_emulator_fails_after(long n_operations) {
    edgekv::gpu::emulator::Limits limits;
    limits.operations_left = n_operations;
    edgekv::gpu::emulator::set_limits(limits);
}
extern "C" __attribute__((visibility("default"))) void edgekv_emulator_pins_later(bool pins) {
    std::lock_guard<std::recursive_mutex> guard(edgekv::gpu::emulator::lock());
    edgekv::gpu::emulator::limits().pins_later = pins;
}
extern "C" __attribute__((visibility("default"))) size_t edgekv_emulator_pinned(bool later) {
    std::lock_guard<std::recursive_mutex> guard(edgekv::gpu::emulator::lock());
    return later ? edgekv::gpu::emulator::memory_pinned_later() : edgekv::gpu::emulator::memory_bytes(edgekv::gpu::emulator::Kind::pinned);
}
