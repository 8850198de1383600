// All layers' sketches in host memory.
#pragma once

#include "cache/buffer.h"
#include "cache/stale.h"

#include <functional>
#include <vector>

namespace edgekv {

class Sketches {
public:
    void shape(const PageShape & shape);  // frees the sketches of all layers

    // Reserves memory for a layer's sketches. made: the layer is new, and all sketches must be built. false: out of memory
    bool reserve(int layer, int head_dim, int n_head_kv, bool & made);
    Sketch of(int layer, int stream) const;  // data null: there is none
    void give_back(int stream, int first, int end);  // the memory of groups that hold no keys
    size_t bytes() const;

private:
    struct OfLayer {
        int head_dim = 0, n_head_kv = 0;
        size_t stream_bytes = 0;
        Buffer data;
    };

    PageShape dims = {};
    std::vector<OfLayer> layers;
};

// Counts the groups of `own`, a layer's sketches [stream] in host memory, that differ from a rebuild from `keys`, [stream]. It leaves out
// groups that hold no keys, are stale now, or would be marked by the next sync, and those with pages whose keys the layer gave back
// (gone). -1: out of memory.
int count_wrong_sketches(const llama_context * lctx, const PageShape & shape, const Cells & cells, const StaleGroups & stale,
                         const std::vector<Sketch> & own, const std::vector<SketchKeys> & keys, const std::function<bool(int page)> & gone,
                         int & n_compared);

}  // namespace edgekv
