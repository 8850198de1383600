/* K and V of whole tokens, taken out of a context's home and put back: what was computed once is not computed again.
 *
 * A block is the rows of n tokens: for each layer with a cache K [n][k_bytes] and then V [n][v_bytes], without gaps, as the cache holds
 * them. Only where edgekv_token_bytes() succeeds is that all that the context keeps of a token. The functions belong to the decoding
 * thread, between two llama_decode().
 */
#ifndef EDGEKV_TOKENS_H
#define EDGEKV_TOKENS_H

#include "edgekv_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Bytes of a token's row of K and of V in each layer: [n_layer], 0 where a layer keeps none. EDGEKV_UNSUPPORTED where the context keeps
   more of its tokens than rows in one plain cache: sliding windows, recurrent states, compressed or shared caches. */
EDGEKV_API edgekv_status edgekv_token_bytes(const edgekv_context * ctx, size_t * k_bytes, size_t * v_bytes);

/* Copies the rows of cells [n] of a stream into a block. */
EDGEKV_API edgekv_status edgekv_read_tokens(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, void * block);

/* Places n tokens of a sequence at positions first_pos and on, in place of what it has there and behind; cells [n] are theirs, empty until
   now. EDGEKV_NO_MEMORY: there are not so many. Their rows must be written before the next llama_decode(). */
EDGEKV_API edgekv_status edgekv_add_tokens(edgekv_context * ctx, int seq_id, int first_pos, int n, uint32_t * cells);

/* Sets the rows of cells [n] from a block of n_block tokens, its first `skip` left out, and the cells' labels. */
EDGEKV_API edgekv_status edgekv_write_tokens(edgekv_context * ctx, int stream, const uint32_t * cells, int n, int skip, int n_block,
                                         const void * block, uint8_t label);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
