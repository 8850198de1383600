// Streams and events.
#include "cuda/runtime/call.h"

namespace edgekv::gpu {
namespace {

cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

bool stream_create(Stream * out, bool urgent) {
    const Call call;
    int least = 0, greatest = 0;
    cudaStream_t stream = nullptr;
    const bool made = ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream") &&
                      ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least), "a stream");
    *out = stream;
    return made;
}

void stream_destroy(Stream stream) {
    if (stream) {
        const Call call;
        ok(cudaStreamDestroy(native(stream)), "a stream");
    }
}

bool stream_sync(Stream stream) {
    const Call call;
    return ok(cudaStreamSynchronize(native(stream)), "an operation on the GPU failed") && check();
}

bool stream_capturing(Stream stream, uint64_t * id) {
    const Call call;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
    // CUDA 12 and 13 differ in the arguments after the third; all of those have defaults
    if (cudaStreamGetCaptureInfo(native(stream), &status, &number) != cudaSuccess) {
        return false;
    }
    if (id) {
        *id = number;
    }
    return status == cudaStreamCaptureStatusActive;
}

bool event_create(Event * out, bool timed) {
    const Call call;
    cudaEvent_t event = nullptr;
    const bool made = ok(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "an event");
    *out = event;
    return made;
}

void event_destroy(Event event) {
    if (event) {
        const Call call;
        ok(cudaEventDestroy(native_event(event)), "an event");
    }
}

bool event_record(Event event, Stream stream) {
    const Call call;
    return ok(cudaEventRecord(native_event(event), native(stream)), "an event");
}

bool event_wait(Stream stream, Event event) {
    const Call call;
    return ok(cudaStreamWaitEvent(native(stream), native_event(event), 0), "an event");
}

bool event_sync(Event event) {
    const Call call;
    return ok(cudaEventSynchronize(native_event(event)), "an operation on the GPU failed") && check();
}

float event_ms(Event from, Event to) {
    const Call call;
    float ms = 0.0f;
    return ok(cudaEventElapsedTime(&ms, native_event(from), native_event(to)), "an event") ? ms : -1.0f;
}

}  // namespace edgekv::gpu
