// Cells that are held for libedgekv (llama-edgekv-holds.h): exports of libllama.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

class llama_kv_cache;

// Holds cells of a stream for who reads their `rows`, K and V of each layer, beside ubatches: a call that would move or remove them, or free the context,
// calls needed(users), unless null, and waits for the end of the hold; right behind it that may come once more. parks: where the cells lose their tokens,
// the rows may leave with their memory instead; the hold then has no cells, and needed() says so (llama_edgekv_unpark()). Decoding thread; any may read
// the i-th rows, and free the hold. Null: no plain cache, or no such stream.
struct llama_edgekv_hold;
typedef void (*llama_edgekv_needed)(void * const * users, int n, bool parked);
LLAMA_API llama_edgekv_hold * llama_edgekv_hold_cells(
    llama_context * lctx, uint32_t stream, const uint32_t * cells, int n, const ggml_tensor * const * rows, int n_rows, bool parks,
    llama_edgekv_needed needed, void * user);
LLAMA_API bool llama_edgekv_may_park(const llama_edgekv_hold * hold);
// edgekv_must_copy() (edgekv_tokens.h). Decoding thread.
LLAMA_API void llama_edgekv_must_copy(
    const llama_context * lctx, int seq_id, llama_edgekv_hold * const * holds, int n, const uint8_t * whole, uint8_t * copied);
LLAMA_API void llama_edgekv_read_hold(llama_edgekv_hold * hold, int i, void * out);
LLAMA_API void llama_edgekv_free_hold(llama_edgekv_hold * hold);

// Parked rows that are to come back: the tokens of the i-th hold begin at first[i] of those that are placed. `rows` as above, of these cells' context.
struct llama_edgekv_returning {
    llama_edgekv_hold * const * holds;
    const int * first;
    int n;
    const ggml_tensor * const * rows;
};
// how many of the tokens will have the memory that their rows bring
uint32_t llama_edgekv_return(const llama_kv_cache & kv, uint32_t stream, const llama_edgekv_returning & parked, const std::vector<uint32_t> & cells);

// Parked rows of n holds come back, each into as many cells of a stream as it had, in order; `rows` as above, but of these cells' context. back [n]: 1
// where the memory moved: the hold has these cells now; 0: it stays parked. Decoding thread.
LLAMA_API void llama_edgekv_unpark(
    llama_context * lctx, uint32_t stream, llama_edgekv_hold * const * holds, int n, const uint32_t * cells,
    const ggml_tensor * const * rows, uint8_t * back);
