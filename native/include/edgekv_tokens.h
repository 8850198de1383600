/* K and V of whole tokens, and snapshots, are read from a context's home and put back, so that nothing is computed twice.
 *
 * A block is the rows of n tokens: for each layer with a cache K [n][k_bytes] and then V [n][v_bytes], without gaps, as the cache holds
 * them. The keys of an index follow V and count as part of it. A snapshot is the rest of a sequence's state: windows of sliding layers,
 * recurrent states. Unless stated otherwise, the functions belong to the decoding thread, between two llama_decode().
 */
#ifndef EDGEKV_TOKENS_H
#define EDGEKV_TOKENS_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Bytes of a token's row of K and of V in each layer: [n_layer], 0 for a layer without rows. EDGEKV_UNSUPPORTED if the context keeps
   anything besides rows and snapshots, such as a cache shared with another context. */
EDGEKV_API edgekv_status edgekv_token_bytes(const edgekv_context * ctx, size_t * k_bytes, size_t * v_bytes);

/* Writes to the sink, in pieces, all that a token's K and V depend on besides the weights in the model's file and the tokens up to it: this
   build of llama.cpp and of EdgeKV, and the context's graph with its hyperparameters, its cache, and the content of a control vector. Contexts
   with equal rows write equal bytes. adapter: null, or the address of a llama_adapter_lora, whose content then counts at scale 1; adapters in
   force do not count. EDGEKV_UNSUPPORTED as for edgekv_token_bytes(). */
typedef void (*edgekv_sink)(void * user, const void * bytes, size_t n);
EDGEKV_API edgekv_status edgekv_describe(const edgekv_context * ctx, uintptr_t adapter, edgekv_sink sink, void * user);

/* Copies the rows of cells [n] of a stream into a block. */
EDGEKV_API edgekv_status edgekv_read_tokens(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, void * block);

/* Holds cells [n] of a stream, whose tokens are computed: calls that would move or remove them, or free the context, call needed(users) on their
   thread, unless it is null, with all holds that they need, and wait for the end of these. It may be called once more right behind that end.
   EDGEKV_UNSUPPORTED if rows are not in host memory. Any thread may use the hold, one at a time, without the context: edgekv_read_held_tokens() copies
   the part of their block that some of the layers with a cache have, while ubatches are computed; edgekv_free_hold() ends the hold.
   parks: where the cells lose their tokens, the rows may be parked, with the memory that they have, if edgekv_may_park(): nobody waits, needed() is told,
   and the hold goes on, without cells and without the context. */
typedef struct edgekv_hold edgekv_hold;
typedef void (*edgekv_needed)(void * const * users, int n, bool parked);
EDGEKV_API edgekv_status edgekv_hold_tokens(edgekv_context * ctx, int stream, const uint32_t * cells, int n, int parks, edgekv_needed needed, void * user,
                                            edgekv_hold ** out);
EDGEKV_API int edgekv_may_park(const edgekv_hold * hold);
EDGEKV_API edgekv_status edgekv_read_held_tokens(const edgekv_hold * hold, int first_layer, int end_layer, void * block);
EDGEKV_API void edgekv_free_hold(edgekv_hold * hold);

/* copied [n]: whether somebody must copy the rows of these holds before a sequence loses tokens: those of its cells that no other sequence has, and that would
   not be parked if the holds that lose all of their tokens (whole [n]) lost them together now. */
EDGEKV_API edgekv_status edgekv_must_copy(const edgekv_context * ctx, int seq_id, edgekv_hold * const * holds, int n, const uint8_t * whole, uint8_t * copied);

/* Parked rows come back with their memory: those of holds [n_holds], in order, into cells [n] of a stream, which edgekv_add_tokens() placed for as many
   tokens. back [n_holds]: 1: they did, and the hold holds these cells; 0: they stay parked, since whole pages do not fit there, or would not pay. */
EDGEKV_API edgekv_status edgekv_unpark_tokens(edgekv_context * ctx, int stream, edgekv_hold * const * holds, int n_holds, const uint32_t * cells, int n,
                                              uint8_t * back);

/* Whether the context keeps snapshots besides rows. A context without a cache keeps only snapshots, and has no cells. */
EDGEKV_API int edgekv_keeps_snapshots(const edgekv_context * ctx);

/* The sequence's snapshot after its newest token. n_bytes is its size; `out`, unless null, gets the bytes if `capacity` is enough. A snapshot
   does not depend on the numbers of slots and cells. EDGEKV_UNSUPPORTED if the context keeps none. */
EDGEKV_API edgekv_status edgekv_read_snapshot(edgekv_context * ctx, int seq_id, void * out, size_t capacity, size_t * n_bytes);

/* Puts in a snapshot that was taken before the token at `position`. Rows of earlier tokens must be there; rows from `position` on are removed.
   EDGEKV_UNSUPPORTED: the snapshot does not fit a context like this one, and the sequence is now empty. */
EDGEKV_API edgekv_status edgekv_write_snapshot(edgekv_context * ctx, int seq_id, int position, const void * snapshot, size_t n_bytes);

/* Places n tokens of a sequence at positions from first_pos on; the sequence's tokens from there on are removed. cells [n] returns the new
   tokens' cells, which were empty and get labels [n]. tokens [n]: token numbers, which some models look back at, below 0 for embeddings; null if
   no model looks. at [3][n]: position, line and column of each token, if an image's tokens share a position (M-RoPE); null if positions count
   up. EDGEKV_NO_MEMORY: too few free cells. The rows must be written before the next llama_decode(), or come while it computes. If the context keeps
   snapshots, one must be put in after the last of these tokens before that. parked [n_parked]: holds whose tokens are some of these, from the
   parked_first-th on; their memory comes with them (edgekv_unpark_tokens()), and free memory is asked for that of the others. */
EDGEKV_API edgekv_status edgekv_add_tokens(edgekv_context * ctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at,
                                          const uint8_t * labels, edgekv_hold * const * parked, const int * parked_first, int n_parked,
                                          uint32_t * cells);

/* Lines and columns [n] of the tokens in cells [n] of a stream, as `at` gives them; zeros if positions have one dimension. */
EDGEKV_API edgekv_status edgekv_in_image(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns);

/* tokens of a block, and their cells */
typedef struct edgekv_block_rows {
    const uint32_t * cells; /* [n] */
    int n;
    int skip;    /* tokens left out at the block's beginning */
    int n_block; /* tokens of the block */
    const void * rows; /* of the block, in the layers that are written alone */
} edgekv_block_rows;

/* Writes the rows of some blocks in the layers [first_layer, end_layer), counted among layers with a cache. The thread that brings rows (below) may call
   it while a ubatch is computed. */
EDGEKV_API edgekv_status edgekv_write_tokens(edgekv_context * ctx, int stream, const edgekv_block_rows * blocks, int n_blocks, int first_layer,
                                            int end_layer);

/* Rows may come while earlier layers are computed. After edgekv_expect_rows() one thread brings the rows of cells that
   edgekv_add_tokens() placed: it calls edgekv_write_tokens(), then edgekv_rows_came() for the layers before end_layer, counted likewise. The
   next llama_decode() waits in each layer for its rows, and does not end before all came. edgekv_rows_failed(): no more rows come; the
   decode fails, and its results are lost. edgekv_expect_no_rows() ends it, on the decoding thread. */
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
