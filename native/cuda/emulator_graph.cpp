// CUDA graphs on the emulated device: what a stream was told, kept and told again.
#include "emulator_stream.h"

namespace edgekv::gpu::emulator {

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
    return true;
}

void * capture_end(void * stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s || !s->capture || s->capture->origin != stream) {
        fail("the stream does not record a graph");
        return nullptr;
    }
    Capture * graph = new Capture(*s->capture);
    const std::shared_ptr<Capture> ended = s->capture;
    for (auto & [handle, other] : queues().streams) {
        if (other.capture == ended) {
            other.capture = nullptr;
        }
    }
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
        if (operation.run) {
            push(*s, operation);  // the recorded order satisfies the events inside
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
