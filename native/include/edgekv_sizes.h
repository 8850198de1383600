/* libedgekv: the bytes that a context will take, from plain numbers, without loading or attaching anything. */
#ifndef EDGEKV_SIZES_H
#define EDGEKV_SIZES_H

#include "edgekv_settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* A layer that EdgeKV attends on the host. A kernel serves its head size. */
typedef struct {
    edgekv_mode mode;
    edgekv_sketch sketch;
    int n_head;
    int n_head_kv;
    int head_dim;    /* of K */
    int v_in_k;      /* 0: V has rows of its own. Else the first v_in_k channels of a row of K are its V: compressed KV (MLA) */
    int n_listed;    /* cells that an index lists for a token; the layer attends them in every mode; 0: no index */
    int n_cells;     /* of a stream */
    int page_tokens;
    int n_threads;
} edgekv_layer_size;

/* Sketches of the layer for one stream. 0 with EDGEKV_SKETCH_NONE, and if an index lists cells. */
EDGEKV_API size_t edgekv_sketch_bytes(const edgekv_layer_size * of);
/* Buffers between the nodes for a stream's longest step with observed mass. All layers use them in turn. */
EDGEKV_API size_t edgekv_step_bytes(const edgekv_layer_size * of);
/* Scratch of all threads that read a prompt: with mass in modes sparse and evict, and for sparse prompts if there are sketches. */
EDGEKV_API size_t edgekv_prompt_bytes(const edgekv_layer_size * of);
/* A slot of the arena, if K and V of one token and head take row_bytes. */
EDGEKV_API size_t edgekv_slot_bytes(size_t row_bytes, int page_tokens);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
