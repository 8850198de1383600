/* libedgekv: the sums of a run: attention mass, selection, the rows that were read. */
#ifndef EDGEKV_OBSERVATION_H
#define EDGEKV_OBSERVATION_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* The sums over the ubatches of a run, which is one ubatch unless edgekv_set_run_every() says otherwise. Mass is [n_layers][n_heads][n_pages]
   floats of the hooked layers in their order, zero where nothing was attended. It adds up until the first ubatch of the next run. */
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
    int n_tokens_observed; /* the tokens whose mass this is; 0: mass is all zero */
    int n_tokens_prompt;  /* tokens of ubatches that held a prompt's: edgekv_set_prompts() told so, or the ubatch was long */
    const int32_t * changed; /* [n_changed] pages with a cell that changed since the last run, ascending; the stored ones are among them */
    int n_changed;
    int newest;           /* the newest position in a changed page, -1: none */
    bool ends_run;        /* the newest ubatch was the run's last */
    int n_refused;        /* layers that stock nodes attend, because there is no memory for ours */
} edgekv_observation;
EDGEKV_API edgekv_status edgekv_get_observation(const edgekv_context * ctx, edgekv_observation * out);

/* A run ends after every so many ubatches that the hook attended, and after each other one, each prompt-sized one, and where a context
   has fewer cells than tokens each that leaves less room than the largest batch needs; 1 at first. The ubatch callback comes where a
   run ends. Counting and summing up begin anew. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_run_every(edgekv_context * ctx, int n_ubatches);
/* Whether the ubatch callback comes after each ubatch; runs, and what is summed up for them, stay as they are. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_watched(edgekv_context * ctx, bool watched);

/* The sums of selection in one KV head since the context was attached: of mode sparse only, and only of ubatches that attended rows.
   Observed mass is a consistent estimate of the attention to every page, also to those that were not read. */
typedef struct {
    double n_tokens;     /* query tokens */
    double n_visible;    /* tokens that they see */
    double n_read;       /* rows of K and V */
    double n_certain;    /* of these, for certain */
    double n_hits;       /* rows that were read from the arena */
    double mass;         /* attention mass on the rows, weighted; where it is observed */
    double mass_hits;
    double error;        /* estimated relative errors of the outputs of n_errors query heads of tokens, summed up */
    double n_errors;
    double covered;      /* estimated shares of the attention on the rows that were read, summed up over n_covered query tokens; the share
                            of the model's attention sinks counts as read */
    double n_covered;    /* query tokens for which sketches told the shares */
} edgekv_selected;
/* out: [n_layers][n_heads]. stream: below 0 for all of them; one of several on a device gives zeros, which do not count apart there. */
EDGEKV_API void edgekv_get_selected(const edgekv_context * ctx, int stream, edgekv_selected * out);

/* The cells that a query token of stream 0 read in one layer and KV head in the last ubatch, with edgekv_selection.keep_rows,
   and their weights; n_rows is their number, and at most `capacity` are written. None where the ubatch had no such token or did not
   select. EDGEKV_INVALID for a layer, head or token that there cannot be. */
EDGEKV_API edgekv_status edgekv_last_rows(const edgekv_context * ctx, int layer, int head, int token, int32_t * cells, float * weights,
                                          int capacity, int * n_rows);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
