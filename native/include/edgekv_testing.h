/* libedgekv: functions for tests. The rules of edgekv.h hold here too. */
#ifndef EDGEKV_TESTING_H
#define EDGEKV_TESTING_H

#include "edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Counts breaches of two rules: the sketch of every group of 64 cells, unless about to be rebuilt, equals one built from the keys in home, and
   every slot in the page table holds the bytes of its page. Slow; call it between ubatches. */
typedef struct {
    int n_groups_wrong;
    int n_groups;      /* compared */
    int n_slots_wrong;
    int n_slots;
} edgekv_check_result;
EDGEKV_API edgekv_check_result edgekv_check(const edgekv_context * ctx);

/* The n-th call from now on, by libllama or a caller, of a function that may allocate finds no memory; 0: none fails. */
EDGEKV_API void edgekv_throw_in(int n);

/* Which weights graphs built from now on multiply in our kernels: 0: none; 1: all that have one; 2: those that were not left to ggml, as at first.
   Returns the number of products that our kernels made in this process. */
EDGEKV_API int64_t edgekv_use_products(int use);

/* Leaves layers that every mode attends whole to stock nodes, as a device does. Call it while nothing decodes. */
EDGEKV_API void edgekv_leave_whole_layers(edgekv_context * ctx);

/* Cells that were looked at for changes since the context was attached: those that changed, and their neighbours. */
EDGEKV_API uint64_t edgekv_cells_looked(const edgekv_context * ctx);

/* Sparse prompts since the context was attached: blocks of 64 cells that some token of a work item saw, and those of them that the item
   attended, summed over items, KV heads and layers. */
EDGEKV_API void edgekv_get_prompt_blocks(const edgekv_context * ctx, int64_t * seen, int64_t * attended);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
