/* K and V of whole tokens, and snapshots, taken out of a context's home and put back, so that nothing is computed twice.
 *
 * A block is the rows of n tokens: for each layer with a cache K [n][k_bytes] and then V [n][v_bytes], without gaps, as the cache holds
 * them. The keys by which an index finds tokens stand behind V, and count as part of it. A snapshot is what a sequence keeps besides: windows
 * of sliding layers, recurrent states. Where nothing else is said the functions belong to the decoding thread, between two llama_decode().
 */
#ifndef EDGEKV_TOKENS_H
#define EDGEKV_TOKENS_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Bytes of a token's row of K and of V in each layer: [n_layer], 0 where a layer keeps none. EDGEKV_UNSUPPORTED where the context keeps
   something else of its tokens than rows and snapshots, such as a cache that is shared with another context. */
EDGEKV_API edgekv_status edgekv_token_bytes(const edgekv_context * ctx, size_t * k_bytes, size_t * v_bytes);

/* Tells the sink, in pieces, all that K and V of a token depend on besides the weights in the model's file and the tokens up to it: this build
   of llama.cpp and of EdgeKV, and the graph as the context computes it, with its hyperparameters, its cache, and the content of a control
   vector. Contexts whose rows are the same are told alike. adapter: null, or the llama_adapter_lora at an address, which then counts with its
   content at scale 1; those that are in force do not. EDGEKV_UNSUPPORTED as edgekv_token_bytes(). */
typedef void (*edgekv_sink)(void * user, const void * bytes, size_t n);
EDGEKV_API edgekv_status edgekv_describe(const edgekv_context * ctx, uintptr_t adapter, edgekv_sink sink, void * user);

/* Copies the rows of cells [n] of a stream into a block. */
EDGEKV_API edgekv_status edgekv_read_tokens(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, void * block);

/* Holds cells [n] of a stream, whose tokens are computed: whatever would move or remove them, or free the context, waits until they are released.
   EDGEKV_UNSUPPORTED where rows are not in host memory. What is held belongs to any thread, one at a time, and needs the context no more:
   edgekv_read_held_tokens() copies the rows of n of the cells from the first-th on into a block, while others are computed;
   edgekv_release_held_tokens() gives up the first n; edgekv_free_hold() what is left, and the handle. */
typedef struct edgekv_hold edgekv_hold;
EDGEKV_API edgekv_status edgekv_hold_tokens(edgekv_context * ctx, int stream, const uint32_t * cells, int n, edgekv_hold ** out);
EDGEKV_API edgekv_status edgekv_read_held_tokens(const edgekv_hold * hold, int first, int n, void * block);
EDGEKV_API void edgekv_release_held_tokens(edgekv_hold * hold, int n);
EDGEKV_API void edgekv_free_hold(edgekv_hold * hold);

/* Whether rows are all that the context keeps, or there are snapshots too. A context without a cache has snapshots alone, and no cells. */
EDGEKV_API int edgekv_keeps_snapshots(const edgekv_context * ctx);

/* The sequence's snapshot behind its newest token: n_bytes are its bytes, and `out`, unless null, gets them where `capacity` is enough. It
   does not depend on the numbers of slots and cells. EDGEKV_UNSUPPORTED where there are none. */
EDGEKV_API edgekv_status edgekv_read_snapshot(edgekv_context * ctx, int seq_id, void * out, size_t capacity, size_t * n_bytes);

/* Puts in a snapshot that was taken before the token at `position`. Rows of those before are there already; rows from there on go.
   EDGEKV_UNSUPPORTED: it is none of a context like this one, and the sequence is empty now. */
EDGEKV_API edgekv_status edgekv_write_snapshot(edgekv_context * ctx, int seq_id, int position, const void * snapshot, size_t n_bytes);

/* Places n tokens of a sequence at positions first_pos and on, in place of what it has there and behind; cells [n] are theirs, empty until
   now, and get the label. tokens [n]: their numbers, which some models look back at, below 0 for embeddings; null where nobody does. at [3][n]:
   position, line and column of each token, where those of an image have the same position (M-RoPE); null where positions count up. Only with it
   first_pos may be -1: the tokens go on behind what was placed last, perhaps at the same position. EDGEKV_NO_MEMORY: there are not so many cells. Their rows must be written before the next llama_decode(), or come while it computes; where the context keeps snapshots, one
   must be put in behind the last of them before that. */
EDGEKV_API edgekv_status edgekv_add_tokens(edgekv_context * ctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at,
                                          uint8_t label, uint32_t * cells);

/* Lines and columns [n] of the tokens in cells [n] of a stream, as `at` gives them; zeros where positions have one dimension. */
EDGEKV_API edgekv_status edgekv_in_image(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns);

/* rows of a block in the layers [first_layer, end_layer), counted among those with a cache: of these and of no others */
typedef struct edgekv_block_rows {
    const void * rows;
    int n_block; /* its tokens */
    int skip;    /* of these are left out, from the first */
    int first_layer;
    int end_layer;
} edgekv_block_rows;

/* Sets the rows of cells [n]. The thread that brings rows (below) may call it while a ubatch is computed. */
EDGEKV_API edgekv_status edgekv_write_tokens(edgekv_context * ctx, int stream, const uint32_t * cells, int n, const edgekv_block_rows * from);

/* Rows that come while the layers before theirs are computed. Behind edgekv_expect_rows() one thread brings those of cells that
   edgekv_add_tokens() placed: edgekv_write_tokens(), then edgekv_rows_came() for the layers before end_layer, counted in the same way. The
   next llama_decode() waits in each layer for its rows, and does not end before all came. edgekv_rows_failed(): no more come; the
   decode fails, and whatever it would have computed is lost. It is over with edgekv_expect_no_rows(), on the decoding thread. */
EDGEKV_API int edgekv_can_wait_for_rows(const edgekv_context * ctx); /* 0: a decode waits for all of them at its beginning */
EDGEKV_API edgekv_status edgekv_expect_rows(edgekv_context * ctx);
EDGEKV_API void edgekv_rows_came(edgekv_context * ctx, int end_layer);
EDGEKV_API void edgekv_rows_failed(edgekv_context * ctx);
EDGEKV_API edgekv_status edgekv_expect_no_rows(edgekv_context * ctx);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
