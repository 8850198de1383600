/* libedgekv: the KV cache of a llama.cpp context, attended and observed by EdgeKV.
 *
 * Roles. libllama (patched, see patches/) owns contexts, cells and the K/V tensors: the home of every page. libedgekv owns its own
 * parts of a context: the graph nodes that store and attend, their workspace, the observation buffer. The caller (the
 * Python layer) decides which contexts to attach, reads the observation after each run, and changes the mode.
 *
 * Life. Call edgekv_init() once. Then every new llama_context gets an edgekv_context with the current defaults (none after
 * edgekv_set_defaults(NULL)); edgekv_attach() does the same for an existing context. The handle dies with its
 * llama_context, or earlier by edgekv_detach(). The caller frees nothing in any other way.
 *
 * Ownership. Every returned pointer points into memory of libedgekv or libllama and is for reading, unless its comment says otherwise. The
 * comment also gives its life: "ubatch": until the ubatch callback returns; "context": until the detached callback of its handle.
 *
 * Threads. A llama_context is decoded by one thread at a time, as upstream demands. Callbacks run on that thread (or on the one that
 * creates or frees the context). edgekv_set_observe() may be called from any thread and takes effect at the next ubatch. Every other
 * function that takes a handle belongs to the decoding thread, in the ubatch callback or between two ubatches, or to any thread
 * while nothing decodes. edgekv_set_mode(), edgekv_set_selection() and edgekv_set_resolutions() allocate; the first two may wait for a
 * device. While a ubatch is under way, they refuse other threads with EDGEKV_INVALID. They cannot detect a call between two ubatches of one
 * llama_decode(): the caller must avoid it.
 * The graph nodes run on the threads of ggml's compute pool and touch no caller.
 *
 * Errors. A function that can fail returns an edgekv_status; edgekv_last_error() then gives the sentence, per thread. No function throws,
 * prints or aborts.
 *
 * The memory hierarchy. Home is llama.cpp's own K/V. In mode sparse a ubatch reads, for each layer, KV head and query token, the rows that
 * selection lists. Selection always takes pinned, first and newest tokens and those that matter most by their sketches. It samples the
 * others, with weights, so that the output is a consistent estimate of attention to all tokens. The nodes that store K keep the sketches up to
 * date. The arena holds copies of pages: the caller decides which (edgekv_publish_pages, edgekv_release_pages), and the page table says
 * which slot holds which page. A page whose cells change leaves the table at once, before the ubatch that changes them is computed.
 * In mode evict the caller drops pages for a head, or frees them for all heads. All remaining pages are attended, without sketches and
 * selection, or a sample of them (sample_kept).
 *
 * Headers. edgekv_base.h: status and errors; edgekv_settings.h: a context's settings; edgekv_context.h: a context's
 * parts; edgekv_observation.h: the sums of a run; edgekv_pages.h: pages and the arena; edgekv_tokens.h: rows computed earlier;
 * edgekv_device.h: a plane on a device; edgekv_sizes.h: the bytes that a context will take. This header: the library, and attaching.
 *
 * Words. A page is page_tokens consecutive cells of one layer and one KV head. Attention mass is the softmax weight that falls on a
 * page, summed over the query tokens of a run; each KV head keeps the maximum and the sum over the query heads of its group. A token
 * is one decoded position. A ubatch is the tokens that libllama computes at once. A run is one run of the caller's policy, over the tokens
 * since the last run: edgekv_set_run_every().
 *
 * EDGEKV=0 in the environment: every context runs stock and no ubatch is reported; handles are still attached and show cells.
 * EDGEKV_ISA=portable|avx2|avx512|avx512bf16|amx|neon selects the kernels. The default, until edgekv_use_isa(), is the instruction set that
 * is usually the fastest.
 */
#ifndef EDGEKV_H
#define EDGEKV_H

#include "edgekv_base.h"
#include "edgekv_context.h"
#include "edgekv_device.h"
#include "edgekv_observation.h"
#include "edgekv_pages.h"
#include "edgekv_settings.h"
#include "edgekv_sizes.h"
#include "edgekv_tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Called with `user` as last argument. They must not throw and must not free the context. */
typedef struct {
    void (*attached)(edgekv_context * ctx, void * user);
    void (*detached)(edgekv_context * ctx, void * user); /* the handle is gone when this returns */
    bool (*ubatch)(edgekv_context * ctx, void * user);   /* after a completely computed ubatch: at the end of a run, or after each. true: as
                                                            edgekv_stop() with true */
    int64_t (*free_bytes)(void * user);                  /* host memory that can be taken now, asked before a cache takes more; below 0: not known */
    void * user;
} edgekv_callbacks;
EDGEKV_API edgekv_status edgekv_set_callbacks(const edgekv_callbacks * callbacks);

/* stop: llama_decode() computes no further ubatch and returns 2, as where an abort callback of llama.cpp returns true, until the call with false.
   It then has the abort callback again that it had before. Decoding thread. */
EDGEKV_API void edgekv_stop(edgekv_context * ctx, bool stop);

EDGEKV_API const char * edgekv_version(void);
EDGEKV_API const char * edgekv_upstream(void); /* version of the loaded libllama */

/* Checks that the loaded libllama fits, reads EDGEKV and EDGEKV_ISA, registers the hooks. Further calls do nothing. */
EDGEKV_API edgekv_status edgekv_init(void);
/* Whether this thread's newest llama_decode() failed because there was no memory for its rows. Other tokens stay as they are. */
EDGEKV_API bool edgekv_refused(void);
EDGEKV_API bool edgekv_enabled(void); /* false before edgekv_init() and with EDGEKV=0 */

/* For a program that owns its process. From now on an abort, a fatal signal or an uncaught exception in any native code prints one
   sentence to the present standard error; earlier handlers run afterwards. Further calls do nothing. */
EDGEKV_API void edgekv_tell_crashes(void);
/* The sentence points to this file for details; null: to none. */
EDGEKV_API void edgekv_set_crash_details(const char * path);

EDGEKV_API edgekv_status edgekv_attach(struct llama_context * lctx, const edgekv_params * params, edgekv_context ** out);
EDGEKV_API void edgekv_detach(edgekv_context * ctx);
EDGEKV_API edgekv_context * edgekv_find(const struct llama_context * lctx); /* null: not attached */
EDGEKV_API struct llama_context * edgekv_llama(const edgekv_context * ctx);

/* Instruction sets by number, portable first; the name is null past the last. */
EDGEKV_API const char * edgekv_isa_name(int isa);
EDGEKV_API bool edgekv_isa_supported(int isa);
EDGEKV_API int edgekv_isa(void); /* in use */
/* Uses another one from the next ubatch on. Call it while nothing decodes. EDGEKV_UNSUPPORTED: this processor lacks it. */
EDGEKV_API edgekv_status edgekv_use_isa(int isa);
/* Measures an instruction set's prompt kernel: seconds for a small problem, the fastest of three runs; a few milliseconds in all. */
EDGEKV_API edgekv_status edgekv_time_prompts(int isa, double * seconds);

/* How a kernel fetches weights before it multiplies them, which changes no result: each row into the first cache, ahead by the bytes of `near` chunks of
 * sixteen rows (0: not at all), and the next block of rows, as one piece, into the second. */
typedef struct {
    int near;
    bool stream;
} edgekv_fetch;
/* A kind of weights: their enum ggml_type, and the name of ggml's buffer type, if ggml keeps them in a layout of its own; NULL: they lie as in the file. */
typedef struct {
    int type;
    const char * layout;
} edgekv_weights;
/* The kinds of the model's weights that EdgeKV's kernels multiply, at most `capacity`; their number. The names belong to ggml. */
EDGEKV_API int edgekv_get_weights(const edgekv_context * ctx, edgekv_weights * kinds, int capacity);
/* The order in which kernels read such weights, which several kinds share; NULL: EdgeKV multiplies none here. */
EDGEKV_API const char * edgekv_walk(edgekv_weights kind);
/* Measures ways to fetch: seconds for 64 MiB of weights and one token, of each the fastest of five runs, in turns; a quarter of a second in all. The
 * last way stays in use. EDGEKV_UNSUPPORTED: EdgeKV multiplies no such weights here. */
EDGEKV_API edgekv_status edgekv_time_fetches(edgekv_weights kind, const edgekv_fetch * ways, int n_ways, double * seconds);
/* Kernels fetch all weights of that order in this way from the next ubatch on. */
EDGEKV_API edgekv_status edgekv_use_fetch(edgekv_weights kind, edgekv_fetch way);
/* Measures a product on one thread: seconds[0] of ours, seconds[1] of ggml's, of each the fastest of five runs, in turns. One token meets 64 MiB of
 * weights, and stands for up to four; several are 64, and meet 2,048 rows. EDGEKV_UNSUPPORTED: EdgeKV multiplies no such weights here. */
EDGEKV_API edgekv_status edgekv_time_products(edgekv_weights kind, bool several, double * seconds);
/* Whether graphs built from now on leave products of such weights with up to four tokens (of a mixture's, with one), or with several, to ggml. At first
 * they leave none. */
EDGEKV_API edgekv_status edgekv_leave_products(edgekv_weights kind, bool several, bool leave);
EDGEKV_API int64_t edgekv_weight_bytes(const edgekv_context * ctx); /* of the model's weights */

/* Whether EdgeKV has kernels that multiply such weights here. */
EDGEKV_API bool edgekv_multiplies(edgekv_weights kind);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
