// gpu.h on the emulated device: streams and events.
#include <algorithm>

#include "cuda/gpu.h"

#include "emulator/emulator_stream.h"

namespace edgekv::gpu {

using namespace emulator;

bool stream_create(Stream * out, bool urgent) {
    static_cast<void>(urgent);
    std::lock_guard<std::recursive_mutex> guard(lock());
    *out = reinterpret_cast<Stream>(++queues().last_handle);
    queues().streams[*out];
    return true;
}

void stream_destroy(Stream stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = stream ? find_stream(stream) : nullptr;
    if (s) {  // CUDA lets queued operations finish later; the result is the same
        run_towards([s] { return s->queue.empty(); }, s);
        queues().streams.erase(stream);
    }
}

bool stream_sync(Stream stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s || !refuse_capture(*s, "waited for")) {
        return false;
    }
    run_towards([s] { return s->queue.empty(); }, s);
    return take_sticky();
}

bool stream_capturing(Stream stream, uint64_t * id) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    StreamState * s = find_stream(stream);
    if (!s || !s->capture) {
        return false;
    }
    if (id) {
        *id = s->capture->id;
    }
    return true;
}

bool event_create(Event * out, bool timed) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    *out = reinterpret_cast<Event>(++queues().last_handle);
    queues().events[*out].timed = timed;
    return true;
}

void event_destroy(Event event) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    queues().events.erase(event);
}

bool event_record(Event event, Stream stream) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    EventState * e = find_event(event);
    StreamState * s = find_stream(stream);
    if (!e || !s) {
        return false;
    }
    e->newest = std::make_shared<Ticket>();
    e->newest->stream = stream;
    e->newest->capture = s->capture;
    if (s->capture) {
        e->newest->known = s->capture->streams[stream];
    }
    push(stream, *s, Operation{{}, e->newest, nullptr, nullptr});
    return true;
}

bool event_wait(Stream stream, Event event) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    EventState * e = find_event(event);
    StreamState * s = find_stream(stream);
    if (!e || !s) {
        return false;
    }
    if (!e->newest) {
        return true;
    }
    const std::shared_ptr<Capture> & of = e->newest->capture;
    if (of && (of->ended || (s->capture && s->capture != of))) {
        if (!of->ended) {
            of->spoilt = "its events were waited for in another recording";
        }
        return spoil(*s, "the event was recorded inside a graph; only what is in the graph can wait for it");
    }
    if (of) {
        Known & known = of->streams[stream];
        for (const auto & [other, n] : e->newest->known) {
            known[other] = std::max(known[other], n);
        }
        known[stream] += s->capture == nullptr;  // every fork must be joined, even one without operations
        s->capture = of;                         // the stream joins the graph
        return true;
    }
    if (s->capture) {
        return spoil(*s, "the stream records a graph: it cannot wait for an event outside it");
    }
    push(stream, *s, Operation{{}, nullptr, e->newest, nullptr});
    return true;
}

bool event_sync(Event event) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const EventState * e = find_event(event);
    if (!e) {
        return false;
    }
    if (e->newest) {
        if (e->newest->capture) {
            return fail("the event was recorded inside a graph");
        }
        const TicketRef ticket = e->newest;
        run_towards([&] { return ticket->done; }, find_stream(ticket->stream));
    }
    return take_sticky();
}

float event_ms(Event from, Event to) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const EventState * a = find_event(from), * b = find_event(to);
    if (!a || !b || !a->timed || !b->timed || !a->newest || !b->newest || !a->newest->done || !b->newest->done) {
        return -1.0f;
    }
    const std::chrono::duration<float, std::milli> between = b->newest->at - a->newest->at;
    return std::max(between.count(), 1e-3f);
}

}  // namespace edgekv::gpu
