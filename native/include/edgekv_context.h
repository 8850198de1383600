/* libedgekv: a context's limits, layers, cells, K and V, and memory. The functions may be called at any time. */
#ifndef EDGEKV_CONTEXT_H
#define EDGEKV_CONTEXT_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* The limits that a context was made with; closes_gaps may change with the mode. */
typedef struct {
    int n_ctx_seq; /* tokens of a sequence: llama_n_ctx_seq() */
    int n_seq_max;
    int n_batch;   /* tokens of the largest llama_decode */
    int n_ubatch;
    bool closes_gaps; /* mode evict: a sequence may be longer than the model was trained for, because positions of rotation stay in range */
    int n_kept;        /* tokens of a stream whose K and V the cache may have, means of the layers; 0: as many as it has cells */
    bool gives_back;   /* mode evict: layers give the rows of pages back that all their heads drop */
} edgekv_limits;
EDGEKV_API edgekv_limits edgekv_get_limits(const edgekv_context * ctx);

/* Rotary position embedding as the context applies it; false: the model has none. */
EDGEKV_API bool edgekv_get_rope(const edgekv_context * ctx, int * n_rot, float * freq_base, float * freq_scale);

/* The reason why a layer runs on the stock path. */
typedef enum {
    EDGEKV_LAYER_HOOKED       = 0,
    EDGEKV_LAYER_DISABLED     = 1,  /* EDGEKV=0 */
    EDGEKV_LAYER_NO_CACHE     = 2,  /* no KV cache of a known kind */
    EDGEKV_LAYER_SWA          = 3,  /* sliding window, on a device or in a cache that none of our nodes reads */
    EDGEKV_LAYER_RECURRENT    = 4,
    EDGEKV_LAYER_MLA          = 5,  /* compressed KV, on a device or in mode evict */
    EDGEKV_LAYER_SHARED       = 6,  /* reads another layer's cache, or shares another context's cells */
    EDGEKV_LAYER_V_TRANSPOSED = 7,  /* flash attention is off */
    EDGEKV_LAYER_ALIBI        = 8,  /* ALiBi, on a device */
    EDGEKV_LAYER_HEAD_DIM     = 9,  /* no kernel for this head size */
    EDGEKV_LAYER_CACHE_TYPE   = 10, /* no kernel for this cache type */
    EDGEKV_LAYER_DEVICE       = 11, /* K and V do not lie in host memory */
    EDGEKV_LAYER_GRAPH        = 12, /* its graph has an attention input that no kernel serves */
    EDGEKV_LAYER_NO_MEMORY    = 13, /* memory for its nodes was lacking when a graph was built; the next graph tries again */
    EDGEKV_LAYER_INDEX        = 14, /* an index beside the cache decides what it attends, but lists no cells */
    EDGEKV_LAYER_IDLE         = 15, /* has neither attention nor a state */
    EDGEKV_LAYER_LISTED       = 16, /* an index lists the cells that it attends, on a device or in mode evict */
    /* Not hooked, because they have no pages; a node of ours attends them, whole in every mode: */
    EDGEKV_LAYER_WINDOW       = 17, /* sliding window */
    EDGEKV_LAYER_BIASED       = 18, /* ALiBi adds to the logits */
} edgekv_layer_state;

typedef struct {
    edgekv_layer_state state;
    int index;        /* among the hooked layers, as in all arrays by page; -1 if not hooked */
    int n_head;
    int n_head_kv;
    int head_dim;     /* of K */
    int k_type;       /* enum ggml_type, -1 without a cache */
    int v_type;
} edgekv_layer;
EDGEKV_API int edgekv_n_layer(const edgekv_context * ctx);
EDGEKV_API edgekv_status edgekv_get_layer(const edgekv_context * ctx, int il, edgekv_layer * out);
EDGEKV_API const char * edgekv_layer_state_text(edgekv_layer_state state);

/* The cells of one stream in place; contents change with every decode and llama_memory_* call. Lives as long as the context. */
typedef struct {
    int n_cells;
    int n_stream;
    int n_used;
    int used_end;             /* the last used cell + 1 */
    int n_seq_words;
    const int32_t * pos;      /* [n_cells], -1: empty */
    const uint64_t * seq;     /* [n_cells][n_seq_words] */
    const uint64_t * changed; /* [n_cells], clock time of the last change of position, sequences or K/V data */
    uint64_t now;             /* clock time */
    const uint8_t * labels;   /* [n_cells], bits: 1: the token was read by a sparse prompt, 2: by a decode step that sampled; either makes K and V
                                 after the first layer approximate. Copies in other streams have labels too; saved states keep only the first bit */
    uint64_t n_copied;        /* times that another stream's cells and rows replaced all of this one's */
    int copied_from;          /* that stream, the last time */
} edgekv_cells;
EDGEKV_API edgekv_status edgekv_get_cells(const edgekv_context * ctx, int stream, edgekv_cells * out);
EDGEKV_API int edgekv_stream_of(const edgekv_context * ctx, int seq_id); /* -1: no cache */

/* K or V rows of one layer, in place: element (stream, cell, head) at data + strides. Lives as long as the context. */
typedef struct {
    const void * data;
    int type;              /* enum ggml_type */
    int n_stream;
    int n_cells;
    int n_heads;
    int head_dim;
    size_t stride_stream;  /* bytes */
    size_t stride_cell;
    size_t stride_head;
} edgekv_rows;
EDGEKV_API edgekv_status edgekv_get_rows(const edgekv_context * ctx, int il, bool value, edgekv_rows * out);

typedef struct {
    size_t home_bytes;        /* K and V of all layers that the glue knows */
    size_t observation_bytes;
    size_t workspace_bytes;
    size_t sketch_bytes;
    size_t arena_bytes;
    size_t table_bytes;       /* pins, page table, selection */
    size_t device_bytes;      /* device memory of observation, workspace, sketches, arena, tables and the staging buffer */
    bool pinned;              /* home is pinned memory */
    int n_cells;              /* of all streams; in home_bytes and here at most edgekv_limits.n_kept of each */
    int n_cells_used;         /* where layers give rows back: those whose rows are there, means of the layers */
} edgekv_memory;
EDGEKV_API edgekv_memory edgekv_get_memory(const edgekv_context * ctx);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
