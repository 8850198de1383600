// Puts a context's data plane on a device.
#include "context.h"
#include "device_library.h"

#include <algorithm>

using namespace edgekv;

namespace {

CellType cell_type(const ggml_tensor * cache) {
    return cache->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : CellType::f16;
}

bool on_gpu(const Layer & layer) {
    return ggml_backend_dev_type(layer.seam.device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

std::string mebibytes(size_t n_bytes) {
    return std::to_string((n_bytes + (1u << 20) - 1) >> 20) + " MiB";
}

}  // namespace

EngineShape edgekv_context::plane_shape() const {
    EngineShape shape = {};
    shape.n_heads          = n_heads;
    shape.n_stream         = n_stream;
    shape.n_cells          = n_cells;
    shape.page_tokens      = params.page_tokens;
    shape.pages_per_stream = pages_per_stream;
    shape.n_pages          = n_pages;
    shape.slot_bytes       = hierarchy.dims.slot_bytes;
    shape.staging_bytes    = staging.bytes();
    shape.budget_bytes     = params.placement.vram_bytes;
    for (const auto & layer : layers) {
        if (layer->info.row < 0) {
            continue;
        }
        const ggml_tensor * k = layer->seam.k;
        const ggml_tensor * v = layer->seam.v;

        EngineRow row = {};
        row.n_head          = layer->info.n_head;
        row.n_head_kv       = layer->info.n_head_kv;
        row.head_dim        = layer->info.head_dim;
        row.k_type          = cell_type(k);
        row.v_type          = cell_type(v);
        row.k               = static_cast<char *>(k->data);
        row.v               = static_cast<char *>(v->data);
        row.k_row_bytes     = ggml_row_size(k->type, layer->seam.head_dim_k);
        row.v_row_bytes     = ggml_row_size(v->type, layer->seam.head_dim_v);
        row.k_stride_stream = k->nb[2];
        row.k_stride_cell   = k->nb[1];
        row.k_stride_head   = row.k_row_bytes;
        row.v_stride_stream = v->nb[2];
        row.v_stride_cell   = v->nb[1];
        row.v_stride_head   = row.v_row_bytes;
        row.v_offset        = params.page_tokens*row.k_row_bytes;
        shape.rows.push_back(row);
    }

    return shape;
}

// what can be known before anything is allocated
std::string edgekv_context::why_not_placed(edgekv_status & status) const {
    const bool emulated = params.placement.kind == EDGEKV_DEVICE_EMULATED;
    if (n_rows == 0) {
        return "none of its layers can be served";
    }

    ggml_backend_dev_t device = nullptr;
    for (const auto & layer : layers) {
        if (layer->info.state == EDGEKV_LAYER_DEVICE) {
            return "its layers do not all lie on one GPU: offload all layers (--gpu-layers) or none";
        }
        if (layer->info.row < 0) {
            continue;
        }
        if (on_gpu(*layer) == emulated) {
            return emulated ? "the emulated device serves models on the CPU only"
                            : "its layers run on the CPU: offload them to the GPU (--gpu-layers)";
        }
        if (device && layer->seam.device != device) {
            return "its layers lie on several GPUs; EdgeKV serves one";
        }
        device = layer->seam.device;
        if (!emulated && !library->is_pinned(layer->seam.k->data)) {
            status = EDGEKV_NOT_PINNED;
            return "the system refused to pin the KV cache in host memory, without which the GPU cannot read it (free memory, raise the limit "
                   "on locked memory with ulimit -l, and unset GGML_CUDA_NO_PINNED)";
        }
    }

    return "";
}

bool edgekv_context::place() {
    if (params.placement.kind == EDGEKV_DEVICE_HOST) {
        return true;
    }
    const auto refuse = [this](const std::string & why, edgekv_status status = EDGEKV_UNSUPPORTED) {
        problem        = why;
        problem_status = status;
        plane.reset();
        staging.release();
        hierarchy.return_from_plane();
        llama_edgekv_invalidate_graph(lctx);
        if (!reserve_host()) {
            problem += "; and there is no memory to attend on the CPU";
            wanted_mode.store(EDGEKV_MODE_OFF, std::memory_order_release);
        }
        return false;
    };

    library = open_device_library(params.placement.kind);
    if (!library) {
        return refuse("this build of EdgeKV has no CUDA kernels: install it with EDGEKV_CUDA=on");
    }
    ggml_backend_dev_t device = nullptr;  // where the model lies
    for (const auto & layer : layers) {
        if (!device && (params.placement.kind != EDGEKV_DEVICE_CUDA || on_gpu(*layer))) {
            device = layer->seam.device;
        }
    }
    if (params.placement.kind == EDGEKV_DEVICE_CUDA && device) {
        params.placement.index = cuda_index(device);
    }
    edgekv_device_info info;
    if (!library->info(params.placement.index, &info)) {
        return refuse(library->last_error());
    }
    if (!info.usable) {
        return refuse(info.problem);
    }
    edgekv_status status = EDGEKV_UNSUPPORTED;
    if (const std::string why = why_not_placed(status); !why.empty()) {
        return refuse(why, status);
    }

    // the widest layer; two buffers where they are cheap, so that one fills while the other is read
    const Layer * widest = nullptr;
    for (const auto & layer : layers) {
        if (layer->info.row >= 0 && (!widest || Staging::bytes(layer->seam.k, layer->seam.v, 1) > Staging::bytes(widest->seam.k, widest->seam.v, 1))) {
            widest = layer.get();
        }
    }
    const size_t budget  = params.placement.vram_bytes ? params.placement.vram_bytes : info.free_bytes;
    const size_t twice   = Staging::bytes(widest->seam.k, widest->seam.v, 2);
    auto *       buft    = params.placement.kind == EDGEKV_DEVICE_CUDA ? ggml_backend_dev_buffer_type(device) : ggml_backend_cpu_buffer_type();
    if (!staging.reserve(buft, widest->seam.k, widest->seam.v, twice <= budget/4 ? 2 : 1)) {
        return refuse("the GPU has no memory for " + mebibytes(twice/2) + ", which prompts need to attend one layer; " + mebibytes(info.free_bytes) +
                      " are free. Use a smaller context, a q8_0 cache, or offload fewer layers", EDGEKV_NO_MEMORY);
    }

    void * stream = nullptr;
    if (params.placement.kind == EDGEKV_DEVICE_CUDA) {
        stream = cuda_stream(lctx, device);
        if (!stream) {
            return refuse("the CUDA backend that is loaded is not the one EdgeKV was built with; reinstall edgekv");
        }
    }
    plane.reset(library->make(params.placement.index, plane_shape(), stream));
    if (!plane) {
        return refuse(library->last_error(), EDGEKV_NO_MEMORY);
    }
    hierarchy.leave_to_plane();
    const bool sparse = params.mode == EDGEKV_MODE_SPARSE;
    if ((sparse && !reserve_sparse()) || (!sparse && !plane->reserve_ring())) {
        return refuse(library->last_error(), EDGEKV_NO_MEMORY);
    }

    // the graphs that run need less than the stock ones, which would copy K and V
    if (!llama_edgekv_reserve(lctx)) {
        return refuse("the GPU has no memory for llama.cpp's compute buffers", EDGEKV_NO_MEMORY);
    }
    // the widest ubatches that the hook serves, so that nothing has to grow later
    for (const auto & layer : layers) {
        EngineView wide = {};
        wide.n_cells   = n_cells;
        wide.n_streams = 1;
        wide.n_tokens  = kEngineTokens;
        EngineView many = wide;
        many.n_streams = n_stream;
        many.n_tokens  = 1;
        const int row = layer->info.row;
        for (const EngineView & view : { wide, many }) {
            if (row >= 0 && (!plane->reserve_workspace(row, view, SketchKind::none, false) ||
                             (sparse && !plane->reserve_workspace(row, view, (SketchKind) params.selection.sketch, true)))) {
                return refuse(library->last_error(), EDGEKV_NO_MEMORY);
            }
        }
    }
    if (params.mode != EDGEKV_MODE_OFF && !reserve_arena()) {
        return refuse(library->last_error(), EDGEKV_NO_MEMORY);
    }

    return true;
}

bool edgekv_context::reserve_arena() {
    release_arena();
    const bool reserved = plane->reserve_arena(most_slots, most_slots > 0 ? hierarchy.n_tail_slots() : 0);
    hierarchy.set_tail(plane->bytes().tail_slot);

    return reserved;
}

void edgekv_context::release_arena() {
    hierarchy.set_tail(0);
    hierarchy.set_arena(0);  // no page is in a slot
    plane->reserve_arena(0, 0);
    llama_edgekv_invalidate_graph(lctx);
}

int edgekv_context::next_row(const Layer & layer) const {
    for (size_t il = layer.il + 1; il < layers.size(); ++il) {
        if (layers[il]->info.row >= 0 && layers[il]->info.state == EDGEKV_LAYER_HOOKED) {
            return layers[il]->info.row;
        }
    }

    return -1;
}

const char * edgekv_context::failure() {
    const char * sentence = plane ? plane->failure() : nullptr;
    if (sentence && problem.empty()) {
        problem        = std::string(sentence) + "; what it was told since then is lost: make the context anew";
        problem_status = EDGEKV_UNSUPPORTED;
    }

    return sentence ? problem.c_str() : nullptr;
}

// before the graph: what changed, and the numbers of this ubatch
void edgekv_context::begin_plane(bool clear) {
    std::vector<EngineStale> stale;
    for (const StaleGroup & group : hierarchy.stale_groups()) {
        stale.push_back({ group.stream, group.group, group.valid });
    }

    EngineStep step = {};
    step.updates           = hierarchy.updates().data();
    step.n_updates         = hierarchy.updates().size();
    step.stale             = stale.data();
    step.n_stale           = (int) stale.size();
    step.n_ubatch          = (uint32_t) n_ubatch;
    step.clear_observation = clear;
    plane->begin(step);  // where it fails, failure() says so
    hierarchy.updates_delivered();
}
