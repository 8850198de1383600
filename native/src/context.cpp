#include "context.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace edgekv {

void Buffer::Free::operator()(char * p) const {
    std::free(p);
}

bool Buffer::reserve(size_t n_bytes) {
    if (n_bytes <= n) {
        return true;
    }

    const size_t rounded = (n_bytes + 63)/64*64;
    char * p = static_cast<char *>(std::aligned_alloc(64, rounded));
    if (!p) {
        return false;
    }

    std::memset(p, 0, rounded);
    ptr.reset(p);
    n = rounded;

    return true;
}

void Buffer::zero(size_t offset, size_t n_bytes) {
    std::memset(ptr.get() + offset, 0, n_bytes);
}

static bool cell_type(ggml_type type, CellType & out) {
    switch (type) {
        case GGML_TYPE_F16:  out = CellType::f16;  return true;
        case GGML_TYPE_Q8_0: out = CellType::q8_0; return true;
        default:             return false;
    }
}

// why a layer cannot be served, or EDGEKV_LAYER_HOOKED
static edgekv_layer_state classify(const llama_edgekv_layer & seam) {
    if (!hooks_enabled()) {
        return EDGEKV_LAYER_DISABLED;
    }

    switch (seam.kind) {
        case LLAMA_EDGEKV_LAYER_ATTENTION: break;
        case LLAMA_EDGEKV_LAYER_SWA:       return EDGEKV_LAYER_SWA;
        case LLAMA_EDGEKV_LAYER_RECURRENT: return EDGEKV_LAYER_RECURRENT;
        case LLAMA_EDGEKV_LAYER_MLA:       return EDGEKV_LAYER_MLA;
        case LLAMA_EDGEKV_LAYER_SHARED:    return EDGEKV_LAYER_SHARED;
        case LLAMA_EDGEKV_LAYER_NONE:      return EDGEKV_LAYER_NO_CACHE;
    }

    if (!seam.host) {
        return EDGEKV_LAYER_DEVICE;
    }
    if (seam.v_transposed) {
        return EDGEKV_LAYER_V_TRANSPOSED;
    }
    if (seam.alibi) {
        return EDGEKV_LAYER_ALIBI;
    }

    CellType k_type, v_type;
    if (!cell_type(seam.k->type, k_type) || !cell_type(seam.v->type, v_type)) {
        return EDGEKV_LAYER_CACHE_TYPE;
    }
    if (seam.head_dim_k != seam.head_dim_v || seam.n_head % std::max(1, seam.n_head_kv) != 0 ||
        !attend_supports(seam.head_dim_k, k_type, v_type)) {
        return EDGEKV_LAYER_HEAD_DIM;
    }

    return EDGEKV_LAYER_HOOKED;
}

}  // namespace edgekv

using namespace edgekv;

edgekv_context::edgekv_context(llama_context * lctx, const edgekv_params & params) :
    lctx(lctx), params(params), wanted_mode(params.mode), wanted_observe(params.observe), attended(false) {
    llama_edgekv_cells cells;
    if (llama_edgekv_get_cells(lctx, 0, &cells)) {
        n_stream         = (int) cells.n_stream;
        n_cells          = (int) cells.n_cells;
        pages_per_stream = (n_cells + params.page_tokens - 1)/params.page_tokens;
        n_pages          = n_stream*pages_per_stream;
    }

    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        auto layer = std::make_unique<Layer>();
        layer->owner = this;
        layer->il    = il;

        llama_edgekv_get_layer(lctx, il, &layer->seam);

        auto & info = layer->info;
        info.state     = classify(layer->seam);
        info.row       = -1;
        info.n_head    = layer->seam.n_head;
        info.n_head_kv = layer->seam.n_head_kv;
        info.head_dim  = layer->seam.head_dim_k;
        info.k_type    = layer->seam.k ? (int) layer->seam.k->type : -1;
        info.v_type    = layer->seam.v ? (int) layer->seam.v->type : -1;
        if (info.state == EDGEKV_LAYER_HOOKED) {
            info.row = n_rows++;
            n_heads  = std::max(n_heads, info.n_head_kv);
        }

        layers.push_back(std::move(layer));
    }

    workspaces.resize(n_stream);

    if (!observation.reserve(2*sizeof(float)*n_rows*n_heads*n_pages)) {
        throw std::bad_alloc();
    }
}

void edgekv_context::begin_ubatch(int n_tokens_ubatch) {
    n_tokens = n_tokens_ubatch;

    if (observation_dirty) {
        clear_observation();
    }
    attended.store(false, std::memory_order_relaxed);

    const edgekv_mode mode    = wanted_mode.load(std::memory_order_relaxed);
    const bool        observe = wanted_observe.load(std::memory_order_relaxed);
    const int         threads = std::max(llama_n_threads(lctx), llama_n_threads_batch(lctx));

    // the graph depends on the mode and on what is observed, the workspace on the number of threads
    if (mode != params.mode || observe != params.observe || threads > n_threads) {
        llama_edgekv_invalidate_graph(lctx);
    }

    params.mode    = mode;
    params.observe = observe;
    n_threads      = std::max(n_threads, threads);
}

void edgekv_context::end_ubatch(bool ok) {
    observation_dirty = attended.load(std::memory_order_relaxed);

    if (ok) {
        counters.n_ubatches += 1;
        counters.n_tokens   += n_tokens;
        if (observation_dirty) {
            counters.n_hooked        += 1;
            counters.n_tokens_hooked += n_tokens;
        }
    }
}

Layer * edgekv_context::served_layer(int il, const ggml_tensor * k, int n_tokens_graph) {
    if (params.mode == EDGEKV_MODE_OFF || il < 0 || il >= (int) layers.size()) {
        return nullptr;
    }

    Layer * layer = layers[il].get();
    if (layer->info.state != EDGEKV_LAYER_HOOKED || k->view_src != layer->seam.k) {
        return nullptr;
    }

    const int64_t n_stream_graph = k->ne[3];
    if (n_tokens_graph % n_stream_graph != 0 || n_tokens_graph/n_stream_graph > kMaxQueryTokens) {
        return nullptr;
    }

    return layer;
}

bool edgekv_context::reserve_workspace(AttendProblem problem, int n_stream_graph) {
    if (params.observe) {
        problem.mass_max = problem.mass_sum = reinterpret_cast<float *>(observation.data());
    }

    const size_t n_bytes = attend_workspace_bytes(problem, n_threads);

    for (int s = 0; s < n_stream_graph; ++s) {
        if (!workspaces[s].reserve(n_bytes)) {
            return false;
        }
    }

    return true;
}

float * edgekv_context::mass(int which, const Layer & layer, int stream) const {
    if (!params.observe) {
        return nullptr;
    }

    float * base = reinterpret_cast<float *>(observation.data());

    return base + ((size_t) (which*n_rows + layer.info.row)*n_heads)*n_pages + (size_t) stream*pages_per_stream;
}

float * edgekv_context::mass_max(const Layer & layer, int stream) const {
    return mass(0, layer, stream);
}

float * edgekv_context::mass_sum(const Layer & layer, int stream) const {
    return mass(1, layer, stream);
}

void edgekv_context::clear_observation() {
    observation.zero(0, 2*sizeof(float)*n_rows*n_heads*n_pages);
    observation_dirty = false;
}
