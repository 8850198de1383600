// The queues of the emulated device. Callers hold lock().
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "emulator/emulator_state.h"

namespace edgekv::gpu::emulator {

struct Capture;

// The progress of each stream of a recording, as known to one of them by its own operations and by its waits.
using Known = std::map<void *, size_t>;

// One record of an event. Waiting operations hold it, however often the event is recorded again.
struct Ticket {
    bool done = false;
    void * stream = nullptr;
    std::shared_ptr<Capture> capture;  // the recording that holds it; null: none
    Known known;
    std::chrono::steady_clock::time_point at;
};
using TicketRef = std::shared_ptr<Ticket>;

struct Operation {
    std::function<void()> run;             // a copy; empty for the others
    TicketRef record, wait;
    std::shared_ptr<const Launch> launch;  // of a kernel
    bool works() const { return run || launch; }
};

struct Capture {
    uint64_t id = 0;
    void * origin = nullptr;
    std::vector<Operation> operations;  // of all its streams, in the order of the calls, which is a valid one
    std::map<void *, Known> streams;    // all streams that ever belonged to it
    std::string spoilt;                 // the call that cannot be recorded; empty: none
    bool ended = false;
};

struct StreamState {
    std::deque<Operation> queue;
    std::optional<OpenGrid> open;  // of the first operation
    uint32_t eager = 1;  // how readily it runs when the choice is free; changes now and then
    std::shared_ptr<Capture> capture;
};

struct EventState {
    bool timed = false;
    TicketRef newest;
};

struct Queues {
    std::map<void *, StreamState> streams;
    std::map<void *, EventState> events;
    std::set<Capture *> graphs;
    size_t n_queued = 0, n_open = 0;  // operations; launches that have begun
    int n_sm = 1;              // multiprocessors
    uint32_t eager_calls = 0;  // of 8 calls that queue an operation, so many also run one at once
    uintptr_t last_handle = 0;
};

Queues & queues();
StreamState * find_stream(void * stream);  // null, with last_failure(): there is none
EventState * find_event(void * event);
void push(void * stream, StreamState & s, Operation operation);
bool refuse_capture(const StreamState & s, const char * what);   // false if the stream records; spoils the recording
bool spoil(const StreamState & s, const std::string & sentence);  // returns false, with last_failure()
bool run_any();  // the first operation of some stream; false: nothing is queued
void run_towards(const std::function<bool()> & reached, StreamState * s);  // runs that stream, operations it waits for, and some others

}  // namespace edgekv::gpu::emulator
