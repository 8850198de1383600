// CUDA graphs on the emulated device: a stream's operations are kept and queued again.
#include "emulator/emulator_stream.h"

namespace edgekv::gpu::emulator {
namespace {

// Whether the stream that began a recording has waited for all work of the other streams in it.
bool is_joined(const Capture & capture) {
    const Known & joined = capture.streams.at(capture.origin);
    for (const auto & [stream, known] : capture.streams) {
        const auto own = known.find(stream), seen = joined.find(stream);
        if (own != known.end() && (seen == joined.end() || seen->second < own->second)) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool capture_begin(void * stream, uint64_t id) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s || !stream) {
        return fail("the default stream cannot record a graph");
    }
    if (!refuse_capture(*s, "asked to begin another")) {
        return false;
    }
    s->capture = std::make_shared<Capture>();
    s->capture->id = id;
    s->capture->origin = stream;
    s->capture->streams[stream];
    return true;
}

void * capture_end(void * stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s || !s->capture || s->capture->origin != stream) {
        fail("the stream does not record a graph");
        return nullptr;
    }
    const std::shared_ptr<Capture> ended = s->capture;
    ended->ended = true;
    for (auto & [handle, other] : queues().streams) {
        if (other.capture == ended) {
            other.capture = nullptr;
        }
    }
    if (!ended->spoilt.empty()) {
        fail("the graph cannot be recorded: " + ended->spoilt);
        return nullptr;
    }
    if (!is_joined(*ended)) {
        fail("the graph cannot be recorded: a stream that was forked from it was not joined again");
        return nullptr;
    }
    Capture * graph = new Capture(*ended);
    ended->operations.clear();  // breaks a cycle: their tickets hold `ended`
    queues().graphs.insert(graph);
    return graph;
}

bool graph_launch(void * graph, void * stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s) {
        return false;
    }
    for (const Operation & operation : static_cast<Capture *>(graph)->operations) {
        if (operation.works()) {
            push(stream, *s, operation);  // the recorded order satisfies the events inside
        }
    }
    return true;
}

void graph_destroy(void * graph) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (queues().graphs.erase(static_cast<Capture *>(graph)) != 0) {
        delete static_cast<Capture *>(graph);
    }
}

}  // namespace edgekv::gpu::emulator
