#include "context/context.h"

#include "cache/kept.h"
#include "attention/cuda/device_plane.h"
#include "attention/cpu/host_plane.h"

#include <algorithm>
#include <new>

using namespace edgekv;

edgekv_context::edgekv_context(llama_context * lctx, const edgekv_params & params) :
    State(lctx, params), wanted_observe(params.observe), wanted_observe_prompts(params.observe_prompts) {
    pages.shape(shape, kEngineTokens);
    const int n_kept = kept_tokens(params.selection.keep_tokens);
    bound = shape.n_cells < static_cast<int>(llama_n_ctx_seq(lctx)) ? std::min(n_kept > 0 ? n_kept : shape.n_cells, shape.n_cells) : 0;

    auto host = std::make_unique<HostPlane>(*this);
    if (params.mode == EDGEKV_MODE_EVICT) {
        llama_edgekv_allow_gaps(lctx, params.selection.positions);
    }
    if (params.placement.kind == EDGEKV_DEVICE_HOST && !host->reserve()) {
        throw std::bad_alloc();
    }
    plane = std::move(host);
}

void edgekv_context::place() {
    if (params.placement.kind == EDGEKV_DEVICE_HOST) {
        return;
    }
    auto device = std::make_unique<DevicePlane>(*this);
    DevicePlane & on_device = *device;
    plane = std::move(device);  // before place(), where llama.cpp reserves its buffers for graphs with this plane's nodes

    if (const Failure why = on_device.place()) {
        pages.shape(shape, kEngineTokens);
        auto host = std::make_unique<HostPlane>(*this);
        const bool reserved = host->reserve();
        problem = { why.status, why.sentence + (reserved ? "" : "; and there is no memory to attend on the CPU") };
        plane   = std::move(host);
        llama_edgekv_invalidate_graph(lctx);
        llama_edgekv_reserve(lctx);  // the device's plane may have released it; what cannot be reserved is tried again by each ubatch
        if (!reserved) {
            wanted_mode.store(EDGEKV_MODE_OFF, std::memory_order_release);
        }
    }
}

const char * edgekv_context::failure() {
    if (thrown) {
        return thrown;
    }
    if (arrivals.failed()) {
        return "rows that were loaded during the computation are damaged or cannot be read";
    }
    if (cannot_attend) {
        return "there is no memory to attend what mode evict kept; nothing is lost: decode again when there is";
    }
    const char * sentence = plane->failure();
    if (sentence && problem.sentence.empty()) {
        edgekv_device device;
        const edgekv_status status = plane->describe(device) ? EDGEKV_UNSUPPORTED : EDGEKV_DISK;
        problem = { status, std::string(sentence) + "; changes since then are lost: make the context anew" };
    }
    return sentence ? problem.sentence.c_str() : nullptr;
}

// ---- settings ----------------------------------------------------------------------------------------------------------------

Failure edgekv_context::set_mode(edgekv_mode mode) {
    if (const Failure failure = plane->enter(mode)) {
        return failure;
    }
    wanted_mode.store(mode, std::memory_order_release);
    return {};
}

Failure edgekv_context::set_selection(const edgekv_selection & selection) {
    if (const Failure failure = plane->select(selection)) {
        return failure;
    }
    params.selection = selection;
    llama_edgekv_invalidate_graph(lctx);
    return {};
}

bool edgekv_context::can_wait_for_rows() const {
    const edgekv_mode mode = wanted_mode.load(std::memory_order_relaxed);
    for (const auto & layer : layers) {
        // stock nodes read compressed rows in prompts, and the keys of an index
        const auto kind = layer->llama.kind;
        if (kind == LLAMA_EDGEKV_LAYER_MLA || kind == LLAMA_EDGEKV_LAYER_INDEX || (kind == LLAMA_EDGEKV_LAYER_ATTENTION && !layer->serves())) {
            return false;
        }
    }
    return hooks_enabled() && plane->waits_for_rows() && (mode == EDGEKV_MODE_EXACT || mode == EDGEKV_MODE_SPARSE);
}

bool edgekv_context::decodes_elsewhere() const {
    const void * thread = decoder.load(std::memory_order_acquire);
    return thread && thread != this_thread_name();
}

// ---- ubatches ----------------------------------------------------------------------------------------------------------------

void edgekv_context::begin_ubatch(const llama_edgekv_tokens & tokens) {
    const edgekv_mode mode    = wanted_mode.load(std::memory_order_acquire);
    const bool        observe = wanted_observe.load(std::memory_order_relaxed);
    const bool        observe_prompts = wanted_observe_prompts.load(std::memory_order_relaxed);

    cannot_attend = false;
    UbatchBegin ubatch = ubatches.begin(tokens.n, by_stream(tokens));
    ubatch.anew = mode != params.mode || observe != params.observe || observe_prompts != params.observe_prompts;
    if (ubatch.anew) {
        llama_edgekv_invalidate_graph(lctx);
    }
    if (arrivals.pending()) {
        llama_edgekv_invalidate_graph(lctx);  // a rebuild asks every layer for its nodes; a layer without ours waits for its rows then
    }
    params.mode            = mode;
    params.observe         = observe;
    params.observe_prompts = observe_prompts;
    if (find_whole(tokens)) {
        llama_edgekv_invalidate_graph(lctx);  // the graph depends on the tokens that select
    }
    if (n_refused() > 0) {
        llama_edgekv_invalidate_graph(lctx);  // the refused nodes may get memory now
    }

    if (!can_wait_for_rows()) {
        arrivals.wait_for_all();
    }
    pages.sync(lctx, mode != EDGEKV_MODE_OFF ? tokens.n : 0, may_select() && sketched);
    plane->begin(ubatch);
}

std::vector<edgekv_stream_tokens> edgekv_context::by_stream(const llama_edgekv_tokens & tokens) const {
    std::vector<edgekv_stream_tokens> found(shape.n_stream > 1 ? shape.n_stream : 0);
    for (int i = 0; !found.empty() && i < tokens.n; ++i) {
        const llama_seq_id id = tokens.seq_id[i][0];
        edgekv_stream_tokens & stream = found[llama_edgekv_stream_of(lctx, id)];
        stream.n_tokens += 1;
        stream.n_prompt += std::find(prompts.begin(), prompts.end(), id) != prompts.end();
    }
    return found;
}

bool edgekv_context::end_ubatch(bool ok) {
    arrivals.wait_for_all();  // no loading thread may write into cells between ubatches
    const UbatchDone done = plane->end(ok);
    if (ok && done.sketched) {
        pages.stale.built();
    }
    ubatches.end(ok, done, !prompts.empty() || done.by == Attended::prompt, params.observe, lacks_room());
    if (ubatches.run_ended()) {
        pages.cells.changes_delivered();
    }
    return ubatches.run_ended() || (ok && ubatches.watched);
}

// Whether the next llama_decode may find no cells for a batch, or exceed the bound of a stream, although its sequence has room for more tokens.
bool edgekv_context::lacks_room() const {
    const bool by_layer = params.mode == EDGEKV_MODE_EVICT && plane->gives_back();
    for (int s = 0; bound > 0 && s < shape.n_stream; ++s) {
        llama_edgekv_cells cells;
        if (!llama_edgekv_get_cells(lctx, static_cast<uint32_t>(s), &cells)) {
            continue;
        }
        const double held = by_layer ? plane->tokens_held(s) : cells.n_used;
        if (cells.n_cells - cells.n_used < llama_n_batch(lctx) || held + llama_n_batch(lctx) > bound) {
            return true;
        }
    }
    return false;
}

Layer * edgekv_context::served_layer(int il, const ggml_tensor * k) {
    if (params.mode == EDGEKV_MODE_OFF || il < 0 || il >= static_cast<int>(layers.size())) {
        return nullptr;
    }

    Layer * layer = layers[il].get();
    if (!(layer->serves() || layer->whole()) || k->view_src != layer->llama.k) {
        return nullptr;
    }
    return layer;
}
