// The ring: home pages that mode exact reads pass through it, copied on the side stream. One half fills while the other is read. Copies under
// way belong to one graph; see nodes.cu.
#include "cuda/engine/gpu_engine.h"

#include <algorithm>

namespace edgekv::gpu {
namespace {

// fresh[page of the cache] = 1 for pages with a token of this ubatch
__global__ void mark_pages(const int64_t * cells, int n, int n_cells, int page_tokens, int pages_per_stream, uint8_t * fresh) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t cell = cells[i];
        fresh[cell/n_cells*pages_per_stream + cell%n_cells/page_tokens] = 1;
    }
}

}  // namespace

void GpuEngine::begin_graph(const EngineGraph & now) {
    graph = now;
    forget_ring();
}

// Forgets which halves were used: the side stream joins the next graph and so follows all earlier work of the main one.
void GpuEngine::forget_ring() {
    side_joined  = false;
    half_used[0] = half_used[1] = false;
    n_fills      = 0;
}

bool GpuEngine::comes(int layer, const std::vector<bool> & layers) const { return layer >= 0 && (layers.empty() || layers[layer]); }

int GpuEngine::n_chunks(int layer, const EngineView & view) const {
    return (pages_in_view(view) + ring_pages(layer) - 1)/ring_pages(layer);
}

void GpuEngine::mark_fresh(const EngineView & view, const int64_t * k_idxs, Stream stream) {
    zero_async(fresh.data(), fresh.size(), stream);
    launch(mark_pages, { 1 }, 64, 0, stream, k_idxs, view.n_tokens*view.n_streams, shape.n_cells, shape.page_tokens, shape.pages_per_stream,
           fresh.as<uint8_t>());
}

Ring GpuEngine::ring_of(int layer, int half, const EngineView & view, int chunk) const {
    const int    first = chunk*ring_pages(layer);
    const int    end   = std::min(first + ring_pages(layer), pages_in_view(view));
    return { ring_memory.data() + half*(ring_memory.size()/2), first, end, shape.layers[layer].n_head_kv,
             ring_held.as<uint8_t>() + half*(ring_held.size()/2) };
}

// Copies on the side stream, as soon as kernels have read this half of the ring.
void GpuEngine::fill_ring(const Fill & fill, const EngineView & view, Stream stream) {
    const EngineLayer & r = shape.layers[fill.layer];
    const int half = n_fills++%2;
    const Ring ring = ring_of(fill.layer, half, view, fill.chunk);

    if (!side_joined) {
        event_record(fork, stream);
        event_wait(side, fork);
        side_joined = true;
    }
    if (half_used[half]) {
        event_wait(side, half_free[half]);
    }
    half_used[half] = true;

    RingProblem p = {};
    p.layer        = home_of(r);
    p.stream       = fill.stream;
    p.n_cells      = shape.n_cells;
    p.page_tokens  = shape.page_tokens;
    p.first        = ring.first_page;
    p.end          = ring.end_page;
    p.slots        = slots_of(fill.layer, fill.stream);
    p.slots_stride = shape.n_pages;
    p.newest       = mirror(mirrors.newest) + static_cast<size_t>(fill.stream)*shape.pages_per_stream;
    p.fresh        = fresh.as<uint8_t>() + static_cast<size_t>(fill.stream)*shape.pages_per_stream;
    p.ring         = ring.data;
    p.slot_bytes   = shape.slot_bytes;
    p.held         = const_cast<uint8_t *>(ring.held);
    launch_gather_ring(p, side);

    event_record(half_filled[half], side);
    filling.push_back({ fill, half });
}

}  // namespace edgekv::gpu
