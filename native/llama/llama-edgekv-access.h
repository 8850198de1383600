// Shared by the glue's files: the hook table, and the only code that reads llama.cpp's private state.
#pragma once

#include "llama-edgekv.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache-msa.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdint>
#include <vector>

using llama_edgekv_sequences = llama_kv_cells::seq_set_t;  // a bit for each

// null: no table is registered
const llama_edgekv_hooks * llama_edgekv_get_hooks();

// waits until no other thread reads cells of the context
void llama_edgekv_wait_for_holds(const llama_context * lctx);

// K or V of a layer, for the cells of a stream
llama_edgekv_held_rows llama_edgekv_rows_of(const ggml_tensor * rows, uint32_t stream);

// whether held rows can leave their cells with their memory
bool llama_edgekv_moves(const llama_edgekv_hold & hold, const std::vector<const ggml_tensor *> & rows);

// the context whose ubatch this thread is building and computing; null: none
llama_context * llama_edgekv_current();

// Removes a sequence's rows from a position on; its windows and states stay.
void llama_edgekv_remove_cells(llama_context * lctx, int seq_id, int first_pos);

// the memories in which a context keeps more than rows; null: none
struct llama_edgekv_besides {
    llama_kv_cache         * windows = nullptr;
    llama_memory_recurrent * states  = nullptr;
};

// llama.cpp's classes declare it a friend
struct llama_edgekv_access {
    // the plain cache of a context: its only one, the non-SWA half of iSWA, the rows beside an index, or the attention part of a hybrid memory
    static llama_kv_cache * cache(const llama_context * lctx) { return cache(lctx->get_memory()); }

    static llama_kv_cache * cache(llama_memory_i * mem) {
        if (auto * kv = dynamic_cast<llama_kv_cache *>(mem)) {
            return kv;
        }
        if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
            return iswa->get_base();
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
            return hybrid->get_mem_attn();
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
            return hybrid->get_mem_attn()->get_base();
        }
        if (auto * dsa = dynamic_cast<llama_kv_cache_dsa *>(mem)) {
            return dsa->get_mla();
        }
        if (auto * dsa = dynamic_cast<llama_kv_cache_dsa_iswa *>(mem)) {
            return dsa->get_dsa()->get_mla();
        }
        if (auto * msa = dynamic_cast<llama_kv_cache_msa *>(mem)) {
            return msa->get_base();
        }
        return nullptr;
    }

    // the cache of an index's keys, with the same cells as the plain cache; null: there is no index
    static llama_kv_cache * index(const llama_context * lctx) {
        auto * mem = lctx->get_memory();
        if (auto * dsa = dynamic_cast<llama_kv_cache_dsa *>(mem)) {
            return dsa->get_lid();
        }
        if (auto * dsa = dynamic_cast<llama_kv_cache_dsa_iswa *>(mem)) {
            return dsa->get_dsa()->get_lid();
        }
        if (auto * msa = dynamic_cast<llama_kv_cache_msa *>(mem)) {
            return msa->get_idx();
        }
        const auto * hybrid = dynamic_cast<llama_memory_hybrid_idx *>(mem);
        return hybrid ? hybrid->get_mem_idx() : nullptr;
    }

    // all caches of a context: plain, of an index, of windows
    static std::vector<llama_kv_cache *> caches(const llama_context * lctx) {
        std::vector<llama_kv_cache *> found;
        for (auto * kv : { cache(lctx), index(lctx), besides(lctx).windows }) {
            if (kv) {
                found.push_back(kv);
            }
        }
        return found;
    }

    static llama_edgekv_besides besides(const llama_context * lctx) {
        auto * memory = lctx->get_memory();
        if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
            return { iswa->get_swa(), nullptr };
        }
        if (auto * dsa = dynamic_cast<llama_kv_cache_dsa_iswa *>(memory)) {
            return { dsa->get_swa(), nullptr };
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
            return { hybrid->get_mem_attn()->get_swa(), hybrid->get_mem_recr() };
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
            return { nullptr, hybrid->get_mem_recr() };
        }
        return { nullptr, dynamic_cast<llama_memory_recurrent *>(memory) };
    }

    // whether an index lists the cells that a layer with rows attends; the graph then makes a llama_edgekv_choice
    static bool is_listed(const llama_context * lctx, int il) {
        const auto * mem   = lctx->get_memory();
        const auto & model = lctx->get_model();
        if (const auto * blocks = dynamic_cast<const llama_memory_hybrid_idx *>(mem)) {
            return model.arch == LLM_ARCH_QWEN4EXP && blocks->get_mem_idx() && model.hparams.dsv4_compress_ratios[il] > 0;
        }
        return dynamic_cast<const llama_kv_cache_dsa *>(mem) || dynamic_cast<const llama_kv_cache_dsa_iswa *>(mem);
    }

    static bool has_sequence(const llama_context * lctx, int seq_id) { return seq_id >= 0 && seq_id < static_cast<int>(lctx->n_seq_max()); }

    static const llama_kv_cache::kv_layer * layer(const llama_kv_cache & kv, int il) {
        const auto it = kv.map_layer_ids.find(il);
        return it == kv.map_layer_ids.end() ? nullptr : &kv.layers[it->second];
    }

    // the cache uses another context's cells, and its K and V in some or all layers
    static bool is_guest(const llama_kv_cache & kv) { return kv.other != nullptr; }

    static bool copies_wait(const llama_kv_cache & kv) { return !kv.sc_info.empty(); }

    static const std::vector<llama_kv_cache::kv_layer> & layers(const llama_kv_cache & kv) { return kv.layers; }

    static llama_edgekv_clock & clock(llama_kv_cells & cells) { return cells.edgekv_clock; }

    static ggml_tensor * shifted(
            const llama_kv_cache & kv, const llama_cparams & cparams, ggml_context * ctx, ggml_tensor * k, ggml_tensor * shift,
            const llama_edgekv_shift & how) {
        return kv.build_rope_shift(cparams, ctx, k, shift, how.rot, how.factors, how.freq_base, how.freq_scale, how.il);
    }

    static uint32_t n_streams(const llama_kv_cache & kv) { return static_cast<uint32_t>(kv.v_cells.size()); }

    static llm_graph_params graph_params(
            const llama_context & lctx, llm_graph_result & result, const llama_ubatch & ubatch, const llama_memory_context_i * memory) {
        return lctx.graph_params(&result, ubatch, memory, LLM_GRAPH_TYPE_DEFAULT);
    }

    // whether one stream holds the cells of several sequences, and no index has the same cells
    static bool mixes_sequences(const llama_kv_cache & kv) {
        return n_streams(kv) == 1 && kv.n_seq_max > 1 && !is_guest(kv) && kv.hparams.indexer_head_size == 0;
    }

    // whether a token at `p1` does not see one at `p0`, in a cache of windows
    static bool is_masked(const llama_kv_cache & kv, llama_pos p0, llama_pos p1) {
        return llama_hparams::is_masked_swa(kv.n_swa, kv.swa_type, p0, p1);
    }

    // The token of cell `from` also lies in `to`, for one of its sequences. A shift that waits stays with it.
    static void copy_cell(llama_kv_cells & cells, uint32_t from, uint32_t to, llama_seq_id seq_id) {
        if (!cells.is_empty(to)) {
            cells.rm(to);
        }
        cells.pos_set(to, cells.pos_get(from));
        cells.ext_set(to, cells.ext_get(from));
        cells.seq_add(to, seq_id);
        cells.shift[to] = cells.shift[from];
        cells.edgekv_clock.labels[to] = cells.edgekv_clock.labels[from];
    }

    // Takes all tokens out of a stream.
    static void forget(llama_kv_cache & kv, uint32_t stream) {
        kv.v_cells[stream].reset();
        kv.v_heads[stream] = 0;
    }

    static const llama_edgekv_sequences & sequences(const llama_kv_cells & cells, uint32_t i) { return cells.seq[i]; }

    static bool slides(const llama_kv_cache & kv) { return kv.swa_type != LLAMA_SWA_TYPE_NONE; }

    static size_t output_bytes(const llama_context * lctx) { return lctx->buf_output ? ggml_backend_buffer_get_size(lctx->buf_output.get()) : 0; }

    static bool v_transposed(const llama_kv_cache & kv) { return kv.v_trans; }

    static llama_kv_cells & cells(const llama_kv_cache & kv, uint32_t stream) { return kv.v_cells[stream]; }

    static void fill(llama_kv_cells & cells, llama_edgekv_cells & out) {
        out.n_cells     = cells.size();
        out.n_used      = cells.get_used();
        out.used_end    = cells.used_max_p1();
        out.n_seq_words = sizeof(llama_kv_cells::seq_set_t)/sizeof(uint64_t);
        out.pos         = cells.pos.data();
        out.seq         = reinterpret_cast<const uint64_t *>(cells.seq.data());
        out.changed     = cells.edgekv_clock.times().data();
        out.now         = cells.edgekv_clock.now();
        out.n_turned    = cells.edgekv_clock.n_turned;
        out.n_copied    = cells.edgekv_clock.n_copied;
        out.copied_from = cells.edgekv_clock.copied_from;
        out.labels      = cells.edgekv_clock.labels.data();
    }

    // Queues a turn of a cell's K by some positions; its position stays.
    static void turn(llama_kv_cells & cells, uint32_t i, int32_t by) {
        if (by != 0) {
            cells.shift[i] += by;
            cells.has_shift = true;
            cells.edgekv_clock.turns = true;
        }
    }

    // Queues a turn of a cell's K, as if the cell moved by so many positions to the one that it has.
    static void shift(llama_kv_cells & cells, uint32_t i, int32_t by) {
        cells.shift[i] += by;
        cells.has_shift = true;
    }

    // whether K of a sequence can turn without the keys of another
    static bool can_turn(const llama_kv_cache & kv) {
        return kv.hparams.rope_type != LLAMA_ROPE_TYPE_NONE && n_streams(kv) == kv.n_seq_max && kv.get_can_shift();
    }

    static bool gaps(const llama_kv_cache & kv) { return kv.v_cells[0].edgekv_clock.gaps; }  // the same in all streams

    static int free_cells(llama_kv_cache & kv, uint32_t stream, const uint32_t * idxs, int n) {
        auto & cells = kv.v_cells[stream];
        auto & head  = kv.v_heads[stream];

        int n_freed = 0;
        for (int i = 0; i < n; ++i) {
            if (idxs[i] < cells.size() && !cells.is_empty(idxs[i])) {
                cells.rm(idxs[i]);
                head = std::min(head, idxs[i]);  // the search for room begins here, as after seq_rm
                n_freed += 1;
            }
        }
        return n_freed;
    }

    // The callback that stops is the backends' alone: the context still knows its own.
    static void stop(llama_context * lctx, bool stop) {
        const auto  callback = lctx->abort_callback;
        auto * const data    = lctx->abort_callback_data;
        if (stop) {
            lctx->set_abort_callback([](void *) { return true; }, nullptr);
            lctx->abort_callback      = callback;
            lctx->abort_callback_data = data;
        } else {
            lctx->set_abort_callback(callback, data);
        }
    }

    static void invalidate_graph(llama_context * lctx) { lctx->gf_res_prev_active = nullptr; }

    static ggml_backend_t backend(llama_context * lctx, ggml_backend_dev_t device) {
        for (const auto & backend : lctx->backends) {
            if (ggml_backend_get_device(backend.get()) == device) {
                return backend.get();
            }
        }
        return nullptr;
    }

    static void release(llama_context * lctx) {
        lctx->synchronize();
        lctx->sched_need_reserve = true;
        lctx->gf_res_prev_active = nullptr;
        lctx->sched.reset(ggml_backend_sched_new(lctx->backend_ptrs.data(), lctx->backend_buft.data(), lctx->backend_ptrs.size(),
                                                 lctx->graph_max_nodes(std::min(lctx->cparams.n_ctx, lctx->cparams.n_ubatch)),
                                                 lctx->cparams.pipeline_parallel, lctx->cparams.op_offload));
    }

    static void reserve(llama_context * lctx) {
        lctx->sched_need_reserve = true;
        lctx->sched_reserve();
    }
};
