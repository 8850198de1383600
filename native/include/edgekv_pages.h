/* libedgekv: pages, their sketches and the arena. */
#ifndef EDGEKV_PAGES_H
#define EDGEKV_PAGES_H

#include "edgekv_settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Arrays by page: [n_layers][n_heads][n_pages], as in the observation. They live until the arena or the sketches are set again or the
   context is freed. The library writes them. */
typedef struct {
    const int32_t * slots;     /* the page table; -1: only in home. On a device, pages being filled have slots after the caller's */
    const int32_t * newest;    /* [n_pages] newest position in the page, -1: empty */
    const uint8_t * dropped;   /* mode evict; not zero: the head does not attend the page; see edgekv_drop_pages(). Null on a device */
    int n_layers;
    int n_heads;
    int n_pages;
    int n_slots;
    size_t slot_bytes;
} edgekv_page_arrays;
EDGEKV_API edgekv_status edgekv_get_page_arrays(const edgekv_context * ctx, edgekv_page_arrays * out);

/* positions of a sequence, `last` included */
typedef struct {
    int seq_id;
    int first;
    int last;
} edgekv_span;
/* From the next ubatch on, mode sparse reads these positions for certain, in whole runs of page_tokens. They replace earlier pins; their
   tokens may come later. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_pins(edgekv_context * ctx, const edgekv_span * spans, int n);

typedef struct {
    int layer;
    int head;
    int page;
    int slot;
} edgekv_move;

/* Sets the arena's size: n_slots slots, 0 for none; only a device has an arena (EDGEKV_UNSUPPORTED). Pages in remaining slots stay there; the caller must have released the others. */
EDGEKV_API edgekv_status edgekv_set_arena(edgekv_context * ctx, int n_slots);

/* With K and V in a file (edgekv_set_home()): memory for copies of the rows that steps read most lately, in so many bytes. Rows that are not among
   them are read from a second file of the same size beside the first, in which each head's rows lie together. 0: there is neither. Earlier copies
   are lost. EDGEKV_NO_MEMORY: as before, also if the file could not be made (edgekv_home_failure()).
   On a device: so many bytes of the arena, behind the slots in use, hold copies of the rows that steps read most lately in mode sparse, with sketches;
   fewer while slots take them. A row that is read and has no copy gets one, and is read over the link once. EDGEKV_NO_MEMORY: the arena is smaller.
   EDGEKV_UNSUPPORTED: K and V lie in memory, and there is no device. No ubatch is under way. */
EDGEKV_API edgekv_status edgekv_set_hot_rows(edgekv_context * ctx, size_t n_bytes);

/* Enters copied pages in the table, from the next ubatch on; ok[i] is false for a page that changed since it was copied. */
EDGEKV_API edgekv_status edgekv_publish_pages(edgekv_context * ctx, const edgekv_move * moves, int n, bool * ok);
/* Takes pages out of the table; their slots may then be used again. */
EDGEKV_API edgekv_status edgekv_release_pages(edgekv_context * ctx, const edgekv_move * moves, int n);

/* ---- mode evict ----
   A head does not attend a page dropped for it until one of the page's cells changes; the new content is
   attended. A freed page is empty in all layers and heads, and llama.cpp stores other tokens in its cells. The caller
   makes room: before each llama_decode at least as many cells must be empty as its batch has tokens. */
EDGEKV_API edgekv_status edgekv_drop_pages(edgekv_context * ctx, const edgekv_move * moves, int n); /* ignores the moves' slots */
/* Empties the cells of pages [n] and adds their number to n_cells. Call it between ubatches or in the ubatch callback. */
EDGEKV_API edgekv_status edgekv_free_pages(edgekv_context * ctx, const int32_t * pages, int n, int * n_cells);
/* The same for cells [n], counted through all streams. */
EDGEKV_API edgekv_status edgekv_free_cells(edgekv_context * ctx, const int32_t * cells, int n, int * n_cells);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
