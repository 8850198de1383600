#include "cache/sketches.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace edgekv {

void Sketches::shape(const PageShape & shape) {
    dims = shape;
    layers.clear();
    layers.resize(dims.n_layers);
}

bool Sketches::reserve(int layer, int head_dim, int n_head_kv, bool & made) {
    assert(layer >= 0 && layer < dims.n_layers && n_head_kv <= dims.n_heads);
    OfLayer & r = layers[layer];
    made = r.data.data() == nullptr;
    if (!made) {
        return true;
    }

    const size_t stream_bytes = sketch_bytes(head_dim, n_head_kv, dims.n_groups());

    Buffer fresh;
    if (!fresh.reserve(stream_bytes * dims.n_stream)) {
        made = false;
        return false;
    }
    fresh.in_small_pages();  // a head's sketches lie apart from the next one's
    r = { head_dim, n_head_kv, stream_bytes, std::move(fresh) };
    return true;
}

Sketch Sketches::of(int layer, int stream) const {
    assert(layer >= 0 && layer < dims.n_layers && dims.has_stream(stream));
    const OfLayer & r = layers[layer];
    return { r.head_dim, r.n_head_kv, dims.n_groups(), r.data.data() ? r.data.data() + stream * r.stream_bytes : nullptr };
}

void Sketches::give_back(int stream, int first, int end) {
    assert(dims.has_stream(stream) && first >= 0 && first <= end && end <= dims.n_groups());
    for (OfLayer & r : layers) {
        if (!r.data.data()) {
            continue;
        }
        for (int head = 0; head < r.n_head_kv; ++head) {
            for (const SketchBytes & bytes : sketch_bytes_of_groups(r.head_dim, dims.n_groups(), head, first, end)) {
                r.data.give_back(stream * r.stream_bytes + bytes.offset, bytes.n);
            }
        }
    }
}

size_t Sketches::bytes() const {
    size_t n = 0;
    for (const OfLayer & r : layers) {
        n += r.data.size();
    }
    return n;
}

int count_wrong_sketches(const llama_context * lctx, const PageShape & shape, const Cells & cells, const StaleGroups & stale,
                         const std::vector<Sketch> & own, const std::vector<SketchKeys> & keys, const std::function<bool(int page)> & gone,
                         int & n_compared) {
    assert(static_cast<int>(own.size()) == shape.n_stream && static_cast<int>(keys.size()) == shape.n_stream);
    int n_wrong = 0;

    Buffer rebuilt;
    for (int stream = 0; stream < shape.n_stream; ++stream) {
        llama_edgekv_cells seen;
        const Sketch & mine = own[stream];
        if (!mine.data || !llama_edgekv_get_cells(lctx, static_cast<uint32_t>(stream), &seen)) {
            continue;
        }
        const size_t n_bytes = sketch_bytes(mine.head_dim, mine.n_head_kv, mine.n_groups);
        if (!rebuilt.reserve(n_bytes)) {
            return -1;
        }
        for (int group = 0; group < mine.n_groups; ++group) {
            const int first   = group * kGroupCells;
            bool     is_stale = stale.is_stale(stream, group);
            uint64_t valid    = 0;
            for (int c = first; c < std::min(first + kGroupCells, static_cast<int>(seen.n_cells)); ++c) {
                is_stale = is_stale || seen.changed[c] > cells.time_of_stream(stream) || gone(stream * shape.pages_per_stream + c / shape.page_tokens);
                valid   |= seen.pos[c] >= 0 ? uint64_t{1} << (c - first) : 0;
            }
            if (is_stale || valid == 0) {
                continue;
            }
            // rebuilds the group in a copy, which must stay the same
            std::memcpy(rebuilt.data(), mine.data, n_bytes);
            Sketch copy = mine;
            copy.data   = rebuilt.data();
            for (int head = 0; head < mine.n_head_kv; ++head) {
                sketch_build(copy, keys[stream], head, group, valid, Isa::portable);
            }
            n_compared += 1;
            n_wrong    += std::memcmp(rebuilt.data(), mine.data, n_bytes) != 0;
        }
    }
    return n_wrong;
}

}  // namespace edgekv
