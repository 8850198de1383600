// The home of rows in host memory, for the patched call sites (llama-edgekv-home.cpp).
#pragma once

#include "ggml-backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;
struct llama_batch;
struct llama_context;
struct llama_cparams;
struct llama_hparams;
struct llama_model;
class  llama_kv_cache;

// the buffer type for layer il's K and V; upstream's is `buft`
ggml_backend_buffer_type_t llama_edgekv_home(const llama_model & model, int il, bool v_trans, ggml_backend_buffer_type_t buft);

// Whether layers of a context that is being made will be served on their device.
bool llama_edgekv_comes_home(const llama_context * lctx);
// The same while it is not attached: stock graphs would reserve copies of K and V on the device for nothing.
bool llama_edgekv_reserves_later(const llama_context * lctx);

// Where buffers are only simulated, each reservation counts: a real buffer keeps the size of the largest. `sizes`: where the scheduler tells them.
class llama_edgekv_expected {
public:
    llama_edgekv_expected(bool simulated, std::vector<size_t> & largest, size_t *& sizes) : largest(largest) {
        if (simulated && !sizes) {
            told.resize(largest.size());
            sizes = told.data();
        }
    }
    ~llama_edgekv_expected() {
        for (size_t i = 0; i < told.size(); ++i) {
            largest[i] = std::max(largest[i], told[i]);
        }
    }

    llama_edgekv_expected(const llama_edgekv_expected &) = delete;
    llama_edgekv_expected & operator=(const llama_edgekv_expected &) = delete;

private:
    std::vector<size_t> & largest;
    std::vector<size_t>   told;
};

// The same for a layer whose rows lie in host memory and are not pinned: they take memory as tokens come, in huge pages. Or they lie in a file.
ggml_backend_buffer_type_t llama_edgekv_growing(ggml_backend_buffer_type_t buft);

// Gives a layer's K and V, described but not allocated, types of their own. v may be null. A rotated cache must stay one: only a quantised
// type replaces a quantised one. The keys of an index keep theirs.
void llama_edgekv_type_rows(const llama_model & model, const llama_hparams & hparams, int il, ggml_tensor * k, ggml_tensor * v);

// Gives back the memory of cells that have been emptied, in whole huge pages. Their rows then are zeros. Whoever reads cells has been waited for.
void llama_edgekv_give_back(llama_kv_cache & kv);

// A sequence, or every one (-1), is about to lose its tokens at positions p0 to p1: rows that are held leave with their memory, where they may.
void llama_edgekv_park(llama_kv_cache & kv, int32_t seq_id, int32_t p0, int32_t p1);

// Copies the i-th of some streams to another, in a layer of the cache, as far as tokens need the rows. false: upstream's copy of the whole
// stream serves.
bool llama_edgekv_copy_rows(
        const llama_kv_cache & kv, const std::vector<uint32_t> & from, const std::vector<uint32_t> & to, size_t i, uint32_t layer);

// what build_rope_shift() takes besides rows
struct llama_edgekv_shift {
    ggml_tensor * rot;
    ggml_tensor * factors;
    float freq_base;
    float freq_scale;
    uint32_t il;
    llama_context * lctx;
};

// Builds the K-shift of a layer's rows that move; `k` has all rows. false: upstream's shift of all rows serves.
bool llama_edgekv_build_shift(
        const llama_kv_cache & kv, const llama_cparams & cparams, ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * k, ggml_tensor * shift,
        const llama_edgekv_shift & how);

// The last node of a layer's K-shift, which wrote all its keys: those that the layer had given back are given back again.
ggml_tensor * llama_edgekv_behind_shift(llama_context * lctx, int il, ggml_context * ctx, ggml_tensor * shifted);

// whether rows lie in memory that comes with the tokens
bool llama_edgekv_grows(const ggml_tensor * rows);

// Whether there is memory for a batch's rows; the log says if not. No cell has been placed yet.
bool llama_edgekv_admits(llama_context * lctx, const llama_batch & batch);
// Whether a device may read the cells that find_slot() found in some streams, and all that are viewed with them: they are pinned here. The log says if not.
bool llama_edgekv_reaches(const llama_kv_cache & kv, const std::vector<int32_t> & streams, const std::vector<std::vector<uint32_t>> & cells);
// The newest call failed for want of memory for K and V of so many tokens, or because the system refused to pin them (n_bytes 0). The log says so.
void llama_edgekv_refuse(size_t n_tokens, size_t n_bytes);
