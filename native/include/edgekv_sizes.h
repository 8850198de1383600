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
    bool sketches;   /* not in mode evict, but where it samples what is kept */
    int n_head;
    int n_head_kv;
    int head_dim;    /* of K */
    int v_in_k;      /* 0: V has rows of its own. Otherwise the first v_in_k channels of a row of K are its V: compressed KV (MLA) */
    int n_listed;    /* cells that an index lists for a token; the layer attends them in every mode; 0: no index */
    int n_cells;     /* of a stream */
    int page_tokens;
    int n_threads;
} edgekv_layer_size;

/* The pages of a context on the host. */
typedef struct {
    int n_layers;    /* layers attended by pages */
    int n_heads;     /* the maximum number of KV heads over these layers */
    int n_streams;
    int n_cells;     /* of a stream */
    int page_tokens;
    int n_slots;     /* of the arena */
} edgekv_pages_size;

/* Bytes of the page table, attention mass, and data about cells and pins: the same in every mode. */
EDGEKV_API size_t edgekv_table_bytes(const edgekv_pages_size * of);

/* Mode evict: cells of a stream, in place of n_cells, for a cache with K and V of keep_tokens tokens, means of the layers. by_layer: layers can give
   rows back, and keep different tokens; n_trained: positions that the model was trained for. */
EDGEKV_API int edgekv_kept_cells(int n_cells, int keep_tokens, bool by_layer, int n_trained);

/* Sketches of the layer for one stream. 0 if it has none, and if an index lists cells. */
EDGEKV_API size_t edgekv_sketch_bytes(const edgekv_layer_size * of);
/* Buffers between the nodes for a stream's longest step with observed mass. All layers use them in turn. */
EDGEKV_API size_t edgekv_step_bytes(const edgekv_layer_size * of);
/* Scratch of all threads that read a prompt: with mass in modes sparse and evict, and for sparse prompts if there are sketches. */
EDGEKV_API size_t edgekv_prompt_bytes(const edgekv_layer_size * of);
/* A slot of the arena, if K and V of one token and head take row_bytes. */
EDGEKV_API size_t edgekv_slot_bytes(size_t row_bytes, int page_tokens);

/* A layer that EdgeKV attends on a device. K and V lie in f16, q8_0 or q4_0. */
typedef struct {
    int n_head;
    int n_head_kv;
    int head_dim;
    size_t k_row_bytes; /* of one head of one cell */
    size_t v_row_bytes;
} edgekv_device_heads;

/* A context on a device. */
typedef struct {
    edgekv_mode mode;     /* EDGEKV_MODE_EXACT or EDGEKV_MODE_SPARSE */
    int n_streams;
    int n_cells;          /* of a stream */
    int page_tokens;
    int n_sm;             /* multiprocessors of the device: scratch grows with them */
    bool has_display;     /* of the device */
    size_t total_bytes;   /* of the device's memory */
    size_t free_bytes;    /* of that, beside weights, work buffers and whatever else llama.cpp keeps there */
    size_t later_bytes;   /* of the free bytes, what llama.cpp takes after staging and ring: its work buffers */
    size_t budget_bytes;  /* 0: the free bytes, less those and edgekv_device_margin() */
    int n_layers;
    const edgekv_device_heads * layers;
} edgekv_device_size;

/* The bytes that such a context takes of the device's memory. */
typedef struct {
    size_t budget;
    size_t sketches;
    size_t tables;  /* mirrors of the page table and of cells, attention mass */
    size_t scratch; /* of selection and attention; all layers use it in turn */
    size_t staging; /* K and V of n_staged pieces of a layer, of some KV heads each: prompts are attended there */
    size_t ring;    /* mode exact streams cold pages through it */
    size_t arena;   /* whole slots in the rest of the budget: at most one for each page, and further slots for pages that are being filled */
    int n_staged;
    int n_slots;    /* of the arena, without the slots for pages that are being filled */
} edgekv_device_bytes;

/* Needs no device and no build with CUDA. */
EDGEKV_API void edgekv_get_device_bytes(const edgekv_device_size * of, edgekv_device_bytes * out);
/* The KV heads of a piece: prompts attend a layer in pieces. layer_bytes: K and V of the widest layer, which has n_head_kv heads. */
EDGEKV_API int edgekv_piece_heads(size_t layer_bytes, int n_head_kv);
/* The bytes that a plan with an automatic budget leaves to the driver, CUDA graphs, other programs and a screen. */
EDGEKV_API size_t edgekv_device_margin(size_t total_bytes, bool has_display);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
