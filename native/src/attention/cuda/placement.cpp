// How a plane takes its device.
#include "state/state.h"
#include "attention/cuda/library.h"
#include "attention/cuda/device_plane.h"
#include "attention/cuda/engine_sizes.h"

#include "llama-edgekv-pinned.h"

#include <algorithm>

namespace edgekv {
namespace {

constexpr size_t kPartBytes = size_t(64) << 20;  // of home, which are pinned at a time

bool on_gpu(const Layer & layer) { return ggml_backend_dev_type(layer.llama.device) != GGML_BACKEND_DEVICE_TYPE_CPU; }

// why a layer with attention is not served
std::string why_none(const State & ctx) {
    for (const auto & layer : ctx.layers) {
        if (layer->info.state != EDGEKV_LAYER_RECURRENT && layer->info.state != EDGEKV_LAYER_IDLE) {
            return std::string(": ") + edgekv_layer_state_text(layer->info.state);
        }
    }
    return ": recurrent layers have no KV cache";
}

std::string mebibytes(size_t n_bytes) { return std::to_string((n_bytes + (1u << 20) - 1) >> 20) + " MiB"; }

}  // namespace

EngineShape DevicePlane::engine_shape() const {
    EngineShape shape = {};
    shape.n_heads          = ctx.shape.n_heads;
    shape.n_stream         = ctx.shape.n_stream;
    shape.n_cells          = ctx.shape.n_cells;
    shape.page_tokens      = ctx.shape.page_tokens;
    shape.pages_per_stream = ctx.shape.pages_per_stream;
    shape.n_pages          = ctx.shape.n_pages;
    shape.slot_bytes       = ctx.shape.slot_bytes;
    shape.staging_bytes    = staging.bytes();
    shape.budget_bytes     = ctx.params.placement.vram_bytes;
    for (const Layer * layer : ctx.hooked) {
        const ggml_tensor * k = layer->llama.k;
        const ggml_tensor * v = layer->llama.v;

        EngineLayer one = {};
        one.n_head          = layer->info.n_head;
        one.n_head_kv       = layer->info.n_head_kv;
        one.head_dim        = layer->info.head_dim;
        one.k_type          = cell_type(k);
        one.v_type          = cell_type(v);
        one.k               = static_cast<char *>(k->data);
        one.v               = static_cast<char *>(v->data);
        one.k_row_bytes     = layer->k_row_bytes();
        one.v_row_bytes     = layer->v_row_bytes();
        one.k_stride_stream = k->nb[2];
        one.k_stride_cell   = k->nb[1];
        one.k_stride_head   = one.k_row_bytes;
        one.v_stride_stream = v->nb[2];
        one.v_stride_cell   = v->nb[1];
        one.v_stride_head   = one.v_row_bytes;
        one.v_offset        = ctx.shape.page_tokens * one.k_row_bytes;
        shape.layers.push_back(one);
    }
    return shape;
}

// Why the plane cannot take a device, as far as known before any allocation.
Failure DevicePlane::why_not() const {
    const auto refuse = [](const char * why) { return Failure{ EDGEKV_UNSUPPORTED, why }; };
    if (ctx.hooked.empty()) {
        return { EDGEKV_UNSUPPORTED, std::string("none of its layers can be served") + why_none(ctx) };
    }

    ggml_backend_dev_t device = nullptr;
    for (const auto & layer : ctx.layers) {
        if (layer->info.state == EDGEKV_LAYER_DEVICE) {
            return refuse("its layers do not all lie on one GPU: offload all layers (--gpu-layers) or none");
        }
        if (layer->info.index < 0) {
            continue;
        }
        if (on_gpu(*layer) != on_backend) {
            return refuse(on_backend ? "its layers run on the CPU: offload them to the GPU (--gpu-layers)"
                                     : "the emulated device serves models on the CPU only");
        }
        if (device && layer->llama.device != device) {
            return refuse("its layers lie on several GPUs; EdgeKV serves one");
        }
        device = layer->llama.device;
    }
    return {};
}

// Where home grows, it is pinned as tokens come from now on; else the backend pinned it, unless the system refused.
Failure DevicePlane::pin_home() {
    const auto pin = [](void * plane, char * p, size_t n_bytes, char * home, size_t home_bytes) {
        const auto & own = *static_cast<const DevicePlane *>(plane);
        return own.library->pin(own.ctx.params.placement.index, p, n_bytes, home, home_bytes);
    };
    const auto unpin = [](void * plane, char * p) {
        const auto & own = *static_cast<const DevicePlane *>(plane);
        own.library->unpin(own.ctx.params.placement.index, p);
    };
    const auto reached = [this](const Layer * layer) { return library->is_pinned(layer->llama.k->data) && library->is_pinned(layer->llama.v->data); };
    if (!on_backend ||
        (llama_edgekv_pin_rows(ctx.lctx, { kPartBytes, static_cast<uint32_t>(ctx.shape.page_tokens), pin, unpin, this }) && std::all_of(ctx.hooked.begin(), ctx.hooked.end(), reached))) {
        return {};
    }
    const bool grows = pins_later(ctx.params.placement.kind, ctx.hooked.front()->llama.device);
    return { EDGEKV_NOT_PINNED, std::string("the system refused to pin the KV cache in host memory, and the GPU can only read pinned memory (ask for a "
                                            "smaller context, free memory, raise the limit on locked memory with ulimit -l") +
                                (grows ? ")" : ", or unset GGML_CUDA_NO_PINNED)") };
}

// Sized for the widest layer's pieces.
Failure DevicePlane::reserve_staging(ggml_backend_dev_t device, const edgekv_device_info & info) {
    const auto bytes = [](const Layer * layer) { return ggml_nbytes(layer->llama.k) + ggml_nbytes(layer->llama.v); };
    const Layer * widest = *std::max_element(ctx.hooked.begin(), ctx.hooked.end(),
                                             [&](const Layer * a, const Layer * b) { return bytes(a) < bytes(b); });
    const ggml_tensor * k = widest->llama.k;
    const ggml_tensor * v = widest->llama.v;

    Staging::Division division = { engine_pieces(bytes(widest), widest->info.n_head_kv), 1, 0, 0 };
    for (const Layer * layer : ctx.hooked) {
        const int n = engine_piece_heads(layer->info.n_head_kv, division.n_pieces);
        division.k_values = std::max(division.k_values, layer->llama.k->ne[0] / layer->info.n_head_kv * n);
        division.v_values = std::max(division.v_values, layer->llama.v->ne[0] / layer->info.n_head_kv * n);
    }
    const size_t once = k->ne[1] * k->ne[2] * (ggml_row_size(k->type, division.k_values) + ggml_row_size(v->type, division.v_values));
    division.n_buffers = engine_staged(once, ctx.params.placement.vram_bytes, info.free_bytes);

    auto * buft = on_backend ? ggml_backend_dev_buffer_type(device) : ggml_backend_cpu_buffer_type();
    if (!staging.reserve(buft, k, v, division)) {
        return { EDGEKV_NO_MEMORY, "the GPU has no memory for " + mebibytes(once) + ", which a prompt needs for some heads of a layer; " +
                                   mebibytes(info.free_bytes) + " are free. Use a smaller context, a q8_0 or q4_0 cache, or offload fewer layers" };
    }
    return {};
}

Failure DevicePlane::make_engine(ggml_backend_dev_t device) {
    void * stream = nullptr;
    if (on_backend) {
        stream = backend_stream(ctx.lctx, device);
        if (!stream) {
            return { EDGEKV_UNSUPPORTED, "the CUDA backend that is loaded is not the one EdgeKV was built with; reinstall edgekv" };
        }
    }
    engine.reset(library->make(ctx.params.placement.index, engine_shape(), stream));
    return engine ? Failure{} : no_memory();
}

// Reserves workspaces for the widest ubatches that the hook serves, so that none grows later.
Failure DevicePlane::reserve_widest(edgekv_mode mode) {
    for (int layer = 0; mode != EDGEKV_MODE_OFF && layer < ctx.shape.n_layers; ++layer) {
        for (const EngineView & view : engine_widest(ctx.shape.n_stream, ctx.shape.n_cells)) {
            if (!engine->reserve_workspace(layer, view, false) ||
                (mode == EDGEKV_MODE_SPARSE && !engine->reserve_workspace(layer, view, true))) {
                return no_memory();
            }
        }
    }
    return {};
}

Failure DevicePlane::place() {
    edgekv_placement & placement = ctx.params.placement;
    const bool         cuda      = placement.kind == EDGEKV_DEVICE_CUDA;

    library = open_device_library(placement.kind);
    if (!library) {
        return { EDGEKV_UNSUPPORTED, "this build of EdgeKV has no CUDA kernels: install it with EDGEKV_CUDA=on" };
    }
    ggml_backend_dev_t device = nullptr;  // the device that holds the model
    for (const auto & layer : ctx.layers) {
        if (!device && on_gpu(*layer)) {
            device = layer->llama.device;
        }
    }
    on_backend = cuda || (device && runs_nodes(placement.kind, device));
    if (on_backend && device) {
        placement.index = backend_index(device);
    }
    edgekv_device_info info;
    if (!library->info(placement.index, &info)) {
        return { EDGEKV_UNSUPPORTED, library->last_error() };
    }
    if (!info.usable) {
        return { EDGEKV_UNSUPPORTED, info.problem };
    }
    if (Failure failure = why_not()) {
        return failure;
    }
    if (Failure failure = pin_home()) {
        return failure;
    }
    // What llama.cpp reserved is for stock graphs, which copy K and V of a layer to the device; it would lie there beside all of ours.
    llama_edgekv_release(ctx.lctx);
    if (!library->info(placement.index, &info)) {
        return { EDGEKV_UNSUPPORTED, library->last_error() };
    }
    if (Failure failure = reserve_staging(device, info)) {
        return failure;
    }
    if (Failure failure = make_engine(device)) {
        return failure;
    }
    const edgekv_mode mode = ctx.params.mode;
    if (!reserve_mode(mode)) {
        return no_memory();
    }
    if (!llama_edgekv_reserve(ctx.lctx)) {
        return { EDGEKV_NO_MEMORY, "the GPU has no memory for llama.cpp's compute buffers" };
    }
    if (Failure failure = reserve_widest(mode)) {
        return failure;
    }
    if (mode == EDGEKV_MODE_OFF) {
        return {};
    }
    if (placement.vram_bytes == 0) {  // the arena takes what backend and driver leave free when they have computed something
        llama_edgekv_rehearse(ctx.lctx);  // what fails there fails again with the first prompt, which tells
        if (!engine->forget_selected()) {
            return no_memory();
        }
    }
    return reserve_arena() ? Failure{} : no_memory();
}

bool DevicePlane::serves(int index) const { return on_backend && ctx.params.placement.index == index; }

int DevicePlane::next_layer(const Layer & layer) const {
    for (int next = layer.info.index + 1; next < ctx.shape.n_layers; ++next) {
        if (ctx.hooked[next]->info.state == EDGEKV_LAYER_HOOKED) {
            return next;
        }
    }
    return -1;
}

}  // namespace edgekv
