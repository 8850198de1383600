// Begin and end of a ubatch. The host's arrays go to the device on the step's stream, so that a graph in flight still sees the old
// ones. Nothing waits unless two uploads are still under way.
#include "cuda/engine/gpu_engine.h"

#include <algorithm>
#include <cstring>

namespace edgekv::gpu {

bool GpuEngine::upload_updates(const EngineStep & step) {
    const size_t offsets[] = { mirrors.newest, mirrors.positions, mirrors.slots, mirrors.open, mirrors.pins, mirrors.resolutions };

    // the last part stays in `uploads[turn]`; the caller records its event
    for (size_t i = 0; i < step.n_updates; i += kUpdates) {
        if (i > 0 && !event_record(uploads[turn].done, main)) {
            return false;
        }
        turn = 1 - turn;
        Upload & upload = uploads[turn];
        if (!event_sync(upload.done)) {
            return false;
        }
        const int n = static_cast<int>(std::min(step.n_updates - i, static_cast<size_t>(kUpdates)));
        int2 * packed = reinterpret_cast<int2 *>(upload.host.data());
        for (int j = 0; j < n; ++j) {
            const MirrorUpdate & u = step.updates[i + j];
            packed[j] = make_int2(static_cast<int>(offsets[static_cast<int>(u.array)] + u.index), u.value);
        }
        if (!copy_async(upload.updates.data(), packed, n*sizeof(int2), main)) {
            return false;
        }
        launch_scatter32(mirrored.as<int32_t>(), upload.updates.as<int2>(), n, main);
    }
    return true;
}

void GpuEngine::keep_failure(const char * where) {
    const std::string sentence = take_failure();
    if (failed.empty() && !sentence.empty()) {
        failed = std::string("the GPU failed ") + where + ": " + sentence;
    }
}

bool GpuEngine::begin_node(void * stream) {
    take_failure();  // drops an older failure, which is no node's
    if (failed.empty() && !error_stands() && use_device(index)) {
        return true;
    }
    join(stream);  // a recording cannot end while the side stream is forked from it
    return false;
}

void GpuEngine::end_node(const char * name, void * stream, bool waits) {
    if (waits || (syncs && !stream_capturing(stream, nullptr))) {
        stream_sync(stream);
    }
    keep_failure((std::string("in the node ") + name).c_str());
}

bool GpuEngine::begin(const EngineStep & step) {
    clear_not_ready();  // CuPy asks whether copies are over, on this thread, and ggml would take the answer for an error of its own
    if (failed.empty()) {
        take_failure();
        if (!upload_step(step)) {
            keep_failure(kSomewhere);
        }
    }
    return failed.empty() || fail_with(failed);
}

// Waits for the copies that were announced and that no node took.
bool GpuEngine::join(Stream stream) {
    bool all = announced.layer < 0 || event_wait(stream, staged);
    for (const auto & [fill, half] : filling) {
        all = event_wait(stream, half_filled[half]) && all;
    }
    announced = kNoPiece;
    filling.clear();
    return all;
}

bool GpuEngine::upload_step(const EngineStep & step) {
    if (!use_device(index) || !check()) {
        return false;
    }

    if (!join(main)) {  // an abandoned ubatch may have left its copies
        return false;
    }
    forget_ring();
    graph = {};

    if (step.n_updates == 0) {
        turn = 1 - turn;
        if (!event_sync(uploads[turn].done)) {
            return false;
        }
    } else if (!upload_updates(step)) {
        return false;
    }
    Upload & upload = uploads[turn];

    char * at = upload.host.data() + kUpdates*sizeof(int2);
    const StepState numbers = { step.n_ubatch, step.n_stale };
    std::memcpy(at, &numbers, sizeof(numbers));
    std::memcpy(at + sizeof(numbers), step.stale, step.n_stale*sizeof(EngineStale));
    return copy_async(state.data(), at, sizeof(numbers), main) &&
           (step.n_stale == 0 || copy_async(stale.data(), at + sizeof(numbers), step.n_stale*sizeof(EngineStale), main)) &&
           (!step.clear_observation || zero_async(mass.data(), 2*n_entries()*sizeof(float), main)) && event_record(upload.done, main);
}

bool GpuEngine::selected(edgekv_selected * out, int first_layer, int n_layers) {
    const size_t n = static_cast<size_t>(n_layers)*shape.n_heads;
    std::vector<SampleTotals> of_selection(n);
    std::vector<AttendHits>   of_attention(n);
    if (!read(of_selection.data(), totals.as<SampleTotals>() + static_cast<size_t>(first_layer)*shape.n_heads, n*sizeof(SampleTotals)) ||
        !read(of_attention.data(), hits.as<AttendHits>() + static_cast<size_t>(first_layer)*shape.n_heads, n*sizeof(AttendHits))) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        const auto & s = of_selection[i];
        const auto & a = of_attention[i];
        out[i] = { static_cast<double>(s.n_tokens), static_cast<double>(s.n_visible), a.n_read, static_cast<double>(s.n_certain), a.n_hits,
                   a.mass, a.mass_hits, a.error, a.n_errors,
                   static_cast<double>(s.n_covered) - static_cast<double>(s.missed)*0x1p-40, static_cast<double>(s.n_covered) };
    }
    return true;
}

bool GpuEngine::forget_selected() {
    return use_device(index) && zero_async(totals.data(), totals.size(), main) && zero_async(hits.data(), hits.size(), main);
}

const char * GpuEngine::sketches(int layer, int stream) {
    const LayerSketches & s = layer_sketches[layer];
    return s.data.data() ? s.data.data() + stream*s.stream_bytes : nullptr;
}

const int32_t * GpuEngine::last_rows(int layer, int list, int & n_rows, const float *& weights) {
    n_rows  = 0;
    weights = nullptr;
    int32_t n = 0;
    const size_t at = list*list_stride();
    if (layer != last_layer || list >= n_last_lists || !read(&n, list_lengths.as<int32_t>() + list, sizeof(n))) {
        return nullptr;
    }
    last_list.resize(n);
    last_weights.resize(n);
    if (!read(last_list.data(), lists.as<int32_t>() + at, n*sizeof(int32_t)) ||
        !read(last_weights.data(), list_weights.as<float>() + at, n*sizeof(float))) {
        return nullptr;
    }
    n_rows  = n;
    weights = last_weights.data();
    return last_list.data();
}

}  // namespace edgekv::gpu
