/* libedgekv: the settings of a context, and how they change. */
#ifndef EDGEKV_SETTINGS_H
#define EDGEKV_SETTINGS_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

typedef enum {
    EDGEKV_MODE_OFF   = 0, /* stock nodes */
    EDGEKV_MODE_EXACT = 1, /* every visible page for each token */
    EDGEKV_MODE_SPARSE = 2, /* the selected rows; in prompts every visible page, or a part: prompt_resolution */
    EDGEKV_MODE_EVICT  = 3, /* all pages except dropped ones, or a sample of them: sample_kept; host plane only */
} edgekv_mode;

/* The rows that mode sparse reads, and the tokens that mode evict keeps. */
typedef struct {
    float resolution;   /* a token with more than 1/resolution of the estimated attention is read for certain, others by chance; at least 1 */
    int exact_tokens;   /* a token that sees at most so many cells reads them all, and a view with at most so many cells is not scanned */
    int sink_tokens;    /* the first so many positions are always read, in whole runs of page_tokens, ... */
    int recent_tokens;  /* ... and the newest so many, besides up to 63 of the newest that have no sketch yet */
    int error_every;    /* each head's error is estimated for one in so many tokens, the heads in turn; 0: never */
    bool keep_rows;     /* keep the rows that the last ubatch read, for edgekv_last_rows() */
    float prompt_resolution; /* mode sparse: ubatches too long for the hook attend blocks of 64 cells: a block with more than
                                1/prompt_resolution of the estimated attention for certain, others by chance; 0: all visible blocks */
    int positions;      /* mode evict: gaps close before a token would be rotated by this position or a later one; 0: half way from the cells to
                           the trained length */
    int keep_tokens;    /* mode evict: a cache made under these defaults has K and V of so many tokens, rounded up to 256; 0: no bound */
    bool sample_kept;   /* mode evict: steps read what mode sparse would read of the pages that a head has not dropped */
} edgekv_selection;

/* The place where a context's data plane runs. */
typedef enum {
    EDGEKV_DEVICE_HOST     = 0, /* on the processor's cores */
    EDGEKV_DEVICE_CUDA     = 1,
    EDGEKV_DEVICE_EMULATED = 2, /* the CUDA plane's own kernels on an emulated device, for tests */
} edgekv_device_kind;

typedef struct {
    edgekv_device_kind kind;
    int index;
    size_t vram_bytes; /* for sketches, tables, attention mass, staging and arena together; 0: the free memory, less a margin */
} edgekv_placement;

typedef struct {
    edgekv_mode mode;
    int page_tokens; /* a multiple of 16 */
    bool observe;    /* keep attention mass */
    bool observe_prompts; /* in modes sparse and evict, keep it for the last tokens of prompts too, 16 of each stream; host plane only */
    edgekv_selection selection;
    edgekv_placement placement;
} edgekv_params;

/* Sets the settings of contexts created from now on; null: these contexts are not attached. */
EDGEKV_API edgekv_status edgekv_set_defaults(const edgekv_params * params);

/* Sets the types of K and V by layer of the model, values of `enum ggml_type` [n_layers], for contexts created from now on, if defaults attach them
   and their parameters name quantised types: all layers rotate K and V then, or none. n_layers 0: all layers have the types of the
   context's parameters. Models with another number of layers ignore the call. The function copies the arrays. */
EDGEKV_API edgekv_status edgekv_set_layer_types(const int32_t * k, const int32_t * v, int n_layers);

/* Sets the folder for K and V on the processor, of contexts created from now on: each KV cache lies in a file there that has no name, takes its
   whole space at once and ends with the context or the process. null or "": K and V lie in memory. The function copies the path. */
EDGEKV_API edgekv_status edgekv_set_home(const char * folder);
/* Why the newest such file could not be made, an errno: its context was not created. 0: every one since a folder was set could. */
EDGEKV_API int edgekv_home_failure(void);

/* begin: what the three functions above set is this thread's own, for contexts that it creates, until the call with false; none are attached
   before they are called. Pairs of calls nest. */
EDGEKV_API void edgekv_own_defaults(bool begin);

/* Sets the mode from the next ubatch on. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_mode(edgekv_context * ctx, edgekv_mode mode);
/* Takes effect at the next ubatch. Any thread. */
EDGEKV_API edgekv_status edgekv_set_observe(edgekv_context * ctx, bool observe, bool observe_prompts);
/* Names the sequences that read a prompt, from the next ubatch until the next call. Their tokens are read as a prompt's, however few a
   ubatch holds. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_prompts(edgekv_context * ctx, const int32_t * seq_ids, int n);
/* Takes effect at the next ubatch. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_selection(edgekv_context * ctx, const edgekv_selection * selection);
/* From the next ubatch on, mode sparse samples each KV head of each hooked layer at its own resolution: resolutions
   [n_layers][n_heads], shaped like the observation; 0: the selection's resolution. null: the selection's for all heads, as before the first
   call. The function copies the array. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_resolutions(edgekv_context * ctx, const float * resolutions, int n_layers, int n_heads);
EDGEKV_API edgekv_params edgekv_get_params(const edgekv_context * ctx);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
