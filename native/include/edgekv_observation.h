/* libedgekv: the sums of a run: attention mass, selection, the rows read. */
#ifndef EDGEKV_OBSERVATION_H
#define EDGEKV_OBSERVATION_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Tokens of one stream in a run. */
typedef struct {
    int n_tokens;
    int n_observed; /* those that added to the mass */
    int n_prompt;   /* those of a prompt */
} edgekv_stream_tokens;

/* The sums over the ubatches of a run, which is one ubatch unless edgekv_set_run_every() says otherwise. Mass is [n_layers][n_heads][n_pages]
   floats, hooked layers in their order, zero for pages that were not attended. It adds up until the first ubatch of the next run. */
typedef struct {
    const float * mass_max;
    const float * mass_sum;
    int n_layers;
    int n_heads;          /* the most KV heads of any hooked layer */
    int n_pages;          /* of all streams: stream s begins at page s * pages_per_stream */
    int pages_per_stream;
    int page_tokens;
    int n_ubatches;
    int n_ubatches_hooked;
    int n_tokens;
    int n_tokens_hooked;
    int n_tokens_observed; /* tokens that added to the mass; 0: mass is all zero */
    int n_tokens_prompt;  /* tokens of ubatches with prompt tokens: by edgekv_set_prompts(), or by the ubatch's length */
    const int32_t * changed; /* [n_changed] pages with a cell that changed since the last run, ascending; includes stored pages */
    int n_changed;
    int newest;           /* the newest position in a changed page, -1: none */
    bool ends_run;        /* the newest ubatch was the run's last */
    const edgekv_stream_tokens * streams; /* [n_streams] in host memory; none: there is one stream */
    int n_streams;
    int n_refused;        /* layers that stock nodes attend, because memory for ours is lacking */
} edgekv_observation;
EDGEKV_API edgekv_status edgekv_get_observation(const edgekv_context * ctx, edgekv_observation * out);

/* A run ends after n_ubatches ubatches that the hook attended (at first 1); 0: never, until the next call. It also ends after each other ubatch, after each prompt-sized
   one and, if a context has fewer cells than tokens, after each that leaves less room than the largest batch needs. The ubatch callback
   comes at the end of a run. This call restarts counts and sums. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_run_every(edgekv_context * ctx, int n_ubatches);
/* Whether the ubatch callback comes after each ubatch; runs and their sums stay as they are. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_watched(edgekv_context * ctx, bool watched);

/* The sums of selection in one KV head since the context was attached, over those ubatches of mode sparse that attended listed rows.
   Observed mass is a consistent estimate of the attention to every page, read or not. */
typedef struct {
    double n_tokens;     /* query tokens */
    double n_visible;    /* tokens that they see */
    double n_read;       /* rows of K and V */
    double n_certain;    /* of these, rows that are read for certain */
    double n_hits;       /* rows read from the arena */
    double mass;         /* weighted attention mass on the rows, if it is observed */
    double mass_hits;
    double error;        /* sum of n_errors estimated relative errors, each of one query head's output for one token */
    double n_errors;
    double covered;      /* estimated shares of the attention on the read rows, summed over n_covered query tokens; the share
                            of the model's attention sinks counts as read */
    double n_covered;    /* query tokens whose shares come from sketches */
} edgekv_selected;
/* out: [n_layers][n_heads]. sequence: below 0 for all. Of one of several sequences that share a cache, the sums of what was read (n_read to n_errors)
   are zeros; a device gives zeros for one of several sequences. */
EDGEKV_API void edgekv_get_selected(const edgekv_context * ctx, int sequence, edgekv_selected * out);

/* The cells that a query token of stream 0 read in one layer and KV head in the last ubatch, and their weights; needs
   edgekv_selection.keep_rows. n_rows is their number; at most `capacity` are written. None if the ubatch had no such token or did not
   select. EDGEKV_INVALID for a layer, head or token that cannot exist. */
EDGEKV_API edgekv_status edgekv_last_rows(const edgekv_context * ctx, int layer, int head, int token, int32_t * cells, float * weights,
                                          int capacity, int * n_rows);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
