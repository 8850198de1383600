/* libedgekv: the KV cache of a llama.cpp context, attended and observed by EdgeKV.
 *
 * Roles. libllama (patched, see patches/) owns contexts, cells and the K/V tensors: the home of every page. libedgekv owns what
 * hangs on a context: the graph nodes that store and attend, the workspace they need, the observation buffer. The caller (the
 * Python layer) decides what to attach, reads the observation after each run, and changes the mode.
 *
 * Life. edgekv_init() once; then every llama_context that is created gets an edgekv_context with the current defaults (none after
 * edgekv_set_defaults(NULL)); edgekv_attach() does the same for a context that already exists. The handle dies with its
 * llama_context, or earlier by edgekv_detach(). Nothing is ever freed by the caller except through these two.
 *
 * Ownership. Every pointer handed out points into memory of libedgekv or libllama, is to be read only, and says how long it lives:
 * "ubatch": until the ubatch callback returns; "context": until the detached callback of its handle.
 *
 * Threads. A llama_context is decoded by one thread at a time, as upstream demands. Callbacks run on that thread (or on the one that
 * creates or frees the context). edgekv_set_observe() may be called from any thread and takes effect at the next ubatch. Every other
 * function that takes a handle belongs to the decoding thread, which is in the ubatch callback or between two ubatches, or to any thread
 * while nothing decodes. Those that change what is attended, edgekv_set_mode() and edgekv_set_selection(), allocate and may wait for a
 * device; from another thread they are refused with EDGEKV_INVALID while a ubatch is under way. Between the ubatches of one
 * llama_decode() nobody can see that, and the caller must.
 * The graph nodes run on the threads of ggml's compute pool and touch no caller.
 *
 * Errors. A function that can fail returns an edgekv_status; edgekv_last_error() then gives the sentence, per thread. Nothing throws,
 * nothing prints, nothing aborts.
 *
 * The memory hierarchy. Home is llama.cpp's own K/V. In mode sparse a ubatch reads, for each layer, KV head and query token, the rows that
 * selection takes: what is pinned, the first, the newest and those that matter most by their sketches for certain, the others by chance and
 * with a weight, so that what is attended estimates attention to all without bias. Without sketches it reads the best pages by
 * `priority`, which the caller writes between ubatches. Sketches are kept true by the nodes that store K. The arena is a second place for copies of pages: the caller decides which (edgekv_copy_pages, edgekv_publish_pages, edgekv_release_pages), the page table
 * says which slot holds which page, and a page whose cells change leaves the table at once, before the ubatch that changes them is computed.
 * In mode evict there are no sketches and no selection: the caller drops pages for a head, or frees them for all, and everything that is
 * left is attended.
 *
 * Words. A page is page_tokens consecutive cells of one layer and one KV head. Attention mass is the softmax weight that falls on a
 * page, summed over the query tokens of a run; per KV head the maximum and the sum over the query heads of its group are kept. A token
 * is one position decoded. A ubatch is the tokens that libllama computes at once. A run is one run of the caller's policy, over the tokens
 * since the last run: edgekv_set_run_every().
 *
 * EDGEKV=0 in the environment: every context runs stock and no ubatch is reported; handles are still attached, to look at cells.
 * EDGEKV_ISA=portable|avx2|avx512 selects the kernels; the best one is the default.
 */
#ifndef EDGEKV_H
#define EDGEKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    ifdef EDGEKV_BUILD
#        define EDGEKV_API __declspec(dllexport)
#    else
#        define EDGEKV_API __declspec(dllimport)
#    endif
#else
#    define EDGEKV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi reads the declarations between these two marks; they are plain C without preprocessor lines */
/* cffi: begin */

struct llama_context;
typedef struct edgekv_context edgekv_context;

typedef enum {
    EDGEKV_OK          = 0,
    EDGEKV_INVALID     = 1, /* an argument is not allowed */
    EDGEKV_ABI         = 2, /* the loaded libllama is not the one this library was built with */
    EDGEKV_UNSUPPORTED = 3, /* the machine or the context cannot do this */
    EDGEKV_DISABLED    = 4, /* EDGEKV=0 */
    EDGEKV_NO_MEMORY   = 5,
    EDGEKV_NOT_PINNED  = 6, /* host memory that a device should read was not pinned */
} edgekv_status;

typedef enum {
    EDGEKV_MODE_OFF   = 0, /* stock nodes */
    EDGEKV_MODE_EXACT = 1, /* every visible page for each token */
    EDGEKV_MODE_SPARSE = 2, /* the selected rows; prompts every visible page, or a part: prompt_resolution */
    EDGEKV_MODE_EVICT  = 3, /* all pages but those that were dropped; host plane only */
} edgekv_mode;

typedef enum {
    EDGEKV_SKETCH_NONE = 0,
    EDGEKV_SKETCH_B3   = 1, /* 3 bits for each key channel, ranges shared by 64 tokens */
} edgekv_sketch;

/* What mode sparse reads, and how much mode evict keeps. */
typedef struct {
    edgekv_sketch sketch;
    float resolution;   /* a token with more than 1/resolution of the estimated attention is read for certain, others by chance; at least 1 */
    float share;        /* without sketches: a head attends its best pages by priority, this share of the visible ones, ... */
    int tokens;         /* ... or where not 0, so many tokens */
    int exact_tokens;   /* a view of the cache of at most so many cells is attended whole */
    int sink_tokens;    /* pages with a position below this are always read, ... */
    int recent_tokens;  /* ... and those with one of the newest so many; also what has no sketch yet, up to 63 of the newest */
    int error_every;    /* the error of a head is estimated for one in so many tokens, the heads in turn; 0: never */
    bool keep_rows;     /* edgekv_last_rows() knows what the last ubatch read */
    float prompt_resolution; /* mode sparse with sketches: ubatches too long for the hook attend blocks of 64 cells; one with more than
                                1/prompt_resolution of the estimated attention for certain, others by chance; 0: all that they see */
    int keep_tokens;    /* mode evict: a cache made under these defaults has so many cells a stream, rounded up to 256; 0: no bound */
} edgekv_selection;

/* why a layer runs on the stock path */
typedef enum {
    EDGEKV_LAYER_HOOKED       = 0,
    EDGEKV_LAYER_DISABLED     = 1,  /* EDGEKV=0 */
    EDGEKV_LAYER_NO_CACHE     = 2,  /* no KV cache of a known kind */
    EDGEKV_LAYER_SWA          = 3,  /* sliding window: its cache is short already */
    EDGEKV_LAYER_RECURRENT    = 4,
    EDGEKV_LAYER_MLA          = 5,
    EDGEKV_LAYER_SHARED       = 6,  /* reads another layer's cache, or shares another context's cells */
    EDGEKV_LAYER_V_TRANSPOSED = 7,  /* flash attention is off */
    EDGEKV_LAYER_ALIBI        = 8,
    EDGEKV_LAYER_HEAD_DIM     = 9,  /* no kernel for this head size */
    EDGEKV_LAYER_CACHE_TYPE   = 10, /* no kernel for this cache type */
    EDGEKV_LAYER_DEVICE       = 11, /* K and V do not lie in host memory */
    EDGEKV_LAYER_GRAPH        = 12, /* its attention has an input the kernel does not serve; seen when its graph is built */
} edgekv_layer_state;

/* Where the data plane of a context runs. */
typedef enum {
    EDGEKV_DEVICE_HOST     = 0, /* on the processor's cores */
    EDGEKV_DEVICE_CUDA     = 1,
    EDGEKV_DEVICE_EMULATED = 2, /* the CUDA plane's own kernels on an emulated device, for tests */
} edgekv_device_kind;

typedef struct {
    edgekv_device_kind kind;
    int index;
    size_t vram_bytes; /* for all of ours on the device: sketches, tables, attention mass, staging, arena; 0: what is free, less a margin */
} edgekv_placement;

typedef struct {
    edgekv_mode mode;
    int page_tokens; /* a multiple of 16 */
    bool observe;    /* keep attention mass */
    bool observe_prompts; /* in modes sparse and evict also that of the last tokens of prompts, 16 of each stream; host plane only */
    edgekv_selection selection;
    edgekv_placement placement;
} edgekv_params;

typedef struct {
    edgekv_layer_state state;
    int row;          /* this layer's row in the observation, -1 if not hooked */
    int n_head;
    int n_head_kv;
    int head_dim;     /* of K */
    int k_type;       /* enum ggml_type, -1 without a cache */
    int v_type;
} edgekv_layer;

/* What the ubatches of a run came to: one, unless edgekv_set_run_every() says otherwise. Mass is [n_rows][n_heads][n_pages] floats,
   rows in the order of the hooked layers, zero where nothing was attended. It adds up until the first ubatch of the next run. */
typedef struct {
    const float * mass_max;
    const float * mass_sum;
    int n_rows;
    int n_heads;          /* the most KV heads of any hooked layer */
    int n_pages;          /* of all streams: stream s begins at page s * pages_per_stream */
    int pages_per_stream;
    int page_tokens;
    int n_ubatches;
    int n_ubatches_hooked;
    int n_tokens;
    int n_tokens_hooked;
    int n_tokens_observed; /* the tokens whose mass this is; 0: mass is all zero */
    const int32_t * changed; /* [n_changed] pages with a cell that changed since the last run, ascending; the stored ones are among them */
    int n_changed;
    int newest;           /* the newest position in a changed page, -1: none */
    bool ends_run;        /* the newest ubatch was the run's last */
} edgekv_observation;

/* What selection came to in one KV head, summed up since the context was attached; of mode sparse only, and of what the hook attended by
   rows. Observed mass is an estimate without bias of the attention to every page, also to those that were not read. */
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
} edgekv_selected;

/* The caller's side of the hierarchy. Arrays are [n_rows][n_heads][n_pages], as in the observation, and live until the arena or the
   sketches are set anew or the context is freed. The caller writes priority and pinned, between ubatches; the library writes the others. */
typedef struct {
    float * priority;          /* what the policy says a page is worth, in units of attention mass a token */
    uint8_t * pinned;          /* not zero: always read */
    const int32_t * slots;     /* the page table; -1: only in home. On a device the pages being filled have slots behind the caller's */
    const int32_t * newest;    /* [n_pages] newest position in the page, -1: empty */
    const uint8_t * dropped;   /* mode evict: not zero: the head does not attend the page; see edgekv_drop_pages(). Null on a device */
    int n_rows;
    int n_heads;
    int n_pages;
    int n_slots;
    size_t slot_bytes;
} edgekv_hierarchy;

typedef struct {
    int row;
    int head;
    int page;
    int slot;
} edgekv_move;

/* Home of one row, as the device addresses it: stream 0, cell 0, head 0. Strides in bytes; row bytes are of one head of one cell. */
typedef struct {
    uint64_t k;
    uint64_t v;
    uint64_t k_stride_stream;
    uint64_t k_stride_cell;
    uint64_t k_stride_head;
    uint64_t v_stride_stream;
    uint64_t v_stride_cell;
    uint64_t v_stride_head;
    uint64_t k_row_bytes;
    uint64_t v_row_bytes;
    uint64_t v_offset; /* of V in a slot */
    uint64_t n_heads;
} edgekv_device_row;

/* A context's data plane on a device. Addresses are the device's (emulated: host memory), and live as long as the context. */
typedef struct {
    edgekv_device_kind kind;
    int index;
    void * stream;       /* that ubatches run on (cudaStream_t): kernels on observation, priority and pins belong there */
    char * arena;
    size_t slot_bytes;
    int n_slots;         /* in use: edgekv_set_arena() */
    int n_slots_max;     /* what the budget has room for; the memory is there from the start, and in mode off it is not */
    int n_cells;         /* of a stream: rows of a last page behind it do not exist */
    const edgekv_device_row * rows; /* [n_rows] in device memory */
    size_t budget_bytes;  /* what vram_bytes came to */
    size_t fixed_bytes;   /* of it: everything but the arena */
    size_t staging_bytes; /* of that: K and V of one layer, or of two, for prompts */
} edgekv_device;

typedef struct {
    edgekv_device_kind kind;
    int index;
    char name[128];
    int arch;    /* 89: compute capability 8.9 */
    int driver;  /* 13000: supports CUDA 13.0 */
    int runtime;
    int n_sm;
    size_t total_bytes;
    size_t free_bytes;
    bool usable;
    char problem[256]; /* why not */
} edgekv_device_info;

/* Bytes per second. */
typedef struct {
    double link_copy;     /* from pinned host memory, one large copy */
    double link_gather;   /* the same page by page, by a kernel that reads host memory in place */
    double link_pageable; /* one large copy from memory that is not pinned */
    double vram;          /* device memory, read */
    double dram;          /* host memory, read by the processor's cores */
    double launch_us;     /* microseconds from launch to launch */
} edgekv_rates;

/* The cells of one stream in place; contents change with every decode and llama_memory_* call. Lives as long as the context. */
typedef struct {
    int n_cells;
    int n_stream;
    int n_used;
    int used_end;             /* the last used cell + 1 */
    int n_seq_words;
    const int32_t * pos;      /* [n_cells], -1: empty */
    const uint64_t * seq;     /* [n_cells][n_seq_words] */
    const uint64_t * changed; /* [n_cells], clock time of the last change of position, sequences or K/V data */
    uint64_t now;             /* clock time */
    const uint8_t * labels;   /* [n_cells], bits: 1: read by a sparse prompt, 2: by a decode step that sampled, so that K and V behind the first
                                 layer are approximate. Copies in other streams are labelled too; saved states keep the first bit only */
} edgekv_cells;

/* K or V rows of one layer, in place: element (stream, cell, head) at data + strides. Lives as long as the context. */
typedef struct {
    const void * data;
    int type;              /* enum ggml_type */
    int n_stream;
    int n_cells;
    int n_heads;
    int head_dim;
    size_t stride_stream;  /* bytes */
    size_t stride_cell;
    size_t stride_head;
} edgekv_rows;

typedef struct {
    size_t home_bytes;        /* K and V of all layers the seam knows */
    size_t observation_bytes;
    size_t workspace_bytes;
    size_t sketch_bytes;
    size_t arena_bytes;
    size_t table_bytes;       /* priority, pins, page table, selection */
    size_t device_bytes;      /* of observation, workspace, sketches, arena and tables: on the device; with the staging buffer */
    bool pinned;              /* home is pinned memory */
    int n_cells;              /* of all streams */
    int n_cells_used;
} edgekv_memory;

/* Called with `user` as last argument. They must not throw and must not free the context. */
typedef struct {
    void (*attached)(edgekv_context * ctx, void * user);
    void (*detached)(edgekv_context * ctx, void * user); /* the handle is gone when this returns */
    void (*ubatch)(edgekv_context * ctx, void * user);   /* after one that was computed to its end: where a run ends, or after each */
    void * user;
} edgekv_callbacks;

EDGEKV_API const char * edgekv_version(void);
EDGEKV_API const char * edgekv_upstream(void); /* of the loaded libllama */
EDGEKV_API const char * edgekv_last_error(void);

/* Checks that the loaded libllama fits, reads EDGEKV and EDGEKV_ISA, registers the hooks. Again: no-op. */
EDGEKV_API edgekv_status edgekv_init(void);
/* For a program that owns its process: an abort, a fatal signal or an exception that nobody catches, in any native code, is told in one
   sentence on what is standard error now; handlers that were installed before run afterwards. Again: no-op. */
EDGEKV_API void edgekv_tell_crashes(void);
/* The file that the sentence names for details; null: none. */
EDGEKV_API void edgekv_set_crash_details(const char * path);
EDGEKV_API bool edgekv_enabled(void); /* false before edgekv_init() and with EDGEKV=0 */

/* What contexts created from now on are attached with; null: they are not. */
EDGEKV_API edgekv_status edgekv_set_defaults(const edgekv_params * params);
EDGEKV_API edgekv_status edgekv_set_callbacks(const edgekv_callbacks * callbacks);

EDGEKV_API edgekv_status edgekv_attach(struct llama_context * lctx, const edgekv_params * params, edgekv_context ** out);
EDGEKV_API void edgekv_detach(edgekv_context * ctx);
EDGEKV_API edgekv_context * edgekv_find(const struct llama_context * lctx); /* null: not attached */
EDGEKV_API struct llama_context * edgekv_llama(const edgekv_context * ctx);

/* How ubatches attend from the next one on. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_mode(edgekv_context * ctx, edgekv_mode mode);
/* From the next ubatch on. Any thread. */
EDGEKV_API edgekv_status edgekv_set_observe(edgekv_context * ctx, bool observe, bool observe_prompts);
/* A run ends after every so many ubatches that the hook attended, and after each other one, each prompt-sized one, and where a context
   has fewer cells than tokens each that leaves less room than the largest batch needs; 1 at first. The ubatch callback comes where a
   run ends. Counting and summing up begin anew. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_run_every(edgekv_context * ctx, int n_ubatches);
/* Whether the ubatch callback comes after each ubatch; runs, and what is summed up for them, stay as they are. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_watched(edgekv_context * ctx, bool watched);
EDGEKV_API edgekv_params edgekv_get_params(const edgekv_context * ctx);

/* Rotary position embedding as the context applies it; false: the model has none. */
EDGEKV_API bool edgekv_get_rope(const edgekv_context * ctx, int * n_rot, float * freq_base, float * freq_scale);

/* Takes effect at the next ubatch, which then also builds the sketches of a kind that is new. Decoding thread. */
EDGEKV_API edgekv_status edgekv_set_selection(edgekv_context * ctx, const edgekv_selection * selection);

/* The arena: n_slots slots, 0 for none. Pages in slots that remain stay where they are; the caller has released the others. */
EDGEKV_API edgekv_status edgekv_set_arena(edgekv_context * ctx, int n_slots);
EDGEKV_API edgekv_status edgekv_get_hierarchy(const edgekv_context * ctx, edgekv_hierarchy * out);
/* Bytes of the sketches of one layer and one stream, also before there is a context. 0 with EDGEKV_SKETCH_NONE. `head_dim`: one that a
   kernel serves. */
EDGEKV_API size_t edgekv_sketch_bytes(edgekv_sketch kind, int head_dim, int n_head_kv, int n_cells);
EDGEKV_API void edgekv_get_selected(const edgekv_context * ctx, edgekv_selected * out); /* [n_rows][n_heads] */

/* Copies pages from home into their slots; nobody reads them there yet. */
EDGEKV_API edgekv_status edgekv_copy_pages(edgekv_context * ctx, const edgekv_move * moves, int n);
/* Enters copied pages in the table, from the next ubatch on; ok[i] is false for a page that changed since it was copied. */
EDGEKV_API edgekv_status edgekv_publish_pages(edgekv_context * ctx, const edgekv_move * moves, int n, bool * ok);
/* Takes pages out of the table; their slots may then be used again. */
EDGEKV_API edgekv_status edgekv_release_pages(edgekv_context * ctx, const edgekv_move * moves, int n);

/* ---- mode evict ----
   A page that is dropped for a head is not attended by it any more, until one of its cells changes: what is there then is another
   content, and attended. A page that is freed is empty in all layers and heads, and llama.cpp stores other tokens in its cells. The caller
   makes room: before each llama_decode as many cells must be empty as its batch has tokens. */
EDGEKV_API edgekv_status edgekv_drop_pages(edgekv_context * ctx, const edgekv_move * moves, int n); /* slots are not looked at */
/* Empties the cells of pages [n]; their number is added to n_cells. Between ubatches, and within the ubatch callback. */
EDGEKV_API edgekv_status edgekv_free_pages(edgekv_context * ctx, const int32_t * pages, int n, int * n_cells);

/* What a context was made with. */
typedef struct {
    int n_ctx_seq; /* tokens of a sequence: llama_n_ctx_seq() */
    int n_seq_max;
    int n_batch;   /* tokens of the largest llama_decode */
    int n_ubatch;
} edgekv_limits;
EDGEKV_API edgekv_limits edgekv_get_limits(const edgekv_context * ctx);

/* ---- devices ----
   On a device the observation's mass and the hierarchy's priority and pinned are device addresses; slots and newest stay on the host.
   The caller copies pages itself, with kernels of its own on a side stream: it tells edgekv_begin_copies(), lets the side stream wait for
   what is on the ubatches' stream (one in flight may still read a slot that was released), copies, and publishes when the copies are
   complete. edgekv_copy_pages() is refused. */
EDGEKV_API bool edgekv_get_device(const edgekv_context * ctx, edgekv_device * out); /* false: the host plane */
/* Takes all pages out of the arena, and gives back what its memory has beyond n_slots slots, from now on: others need it. edgekv_set_arena()
   then says how many are used. Mode off gives all of it back, and a mode after it takes it again. Decoding thread, with no copy under way. */
EDGEKV_API edgekv_status edgekv_limit_arena(edgekv_context * ctx, int n_slots);
EDGEKV_API edgekv_status edgekv_begin_copies(edgekv_context * ctx, const edgekv_move * moves, int n);
/* In place of a copy: if the next ubatch is a prompt, which brings all pages to the device, it leaves these in their slots too. After
   that ubatch over[i] is true, and filled[i] says whether it did; what it did not is to be copied. */
EDGEKV_API edgekv_status edgekv_fill_pages(edgekv_context * ctx, const edgekv_move * moves, int n);
EDGEKV_API edgekv_status edgekv_filled_pages(const edgekv_context * ctx, const edgekv_move * moves, int n, bool * over, bool * filled);
/* Why a context that was to be placed on a device is not, and runs on the host plane or stock; of one that is placed, what failed there
   first, in which node, so that llama_decode fails from then on (the log says it too). EDGEKV_OK and empty where there is nothing to say. */
EDGEKV_API edgekv_status edgekv_device_problem(const edgekv_context * ctx, const char ** sentence);

EDGEKV_API int edgekv_device_count(edgekv_device_kind kind); /* 0 where the build has no such devices */
EDGEKV_API edgekv_status edgekv_get_device_info(edgekv_device_kind kind, int index, edgekv_device_info * out);
EDGEKV_API edgekv_status edgekv_measure_rates(edgekv_device_kind kind, int index, edgekv_rates * out); /* about a second */

/* What the last ubatch read, with edgekv_selection.keep_rows: the cells of one row of the hierarchy, KV head and query token of stream 0,
   and their weights; n_rows is their number, and at most `capacity` are written. None where the ubatch had no such token or did not
   select. EDGEKV_INVALID for a row, head or token that there cannot be. */
EDGEKV_API edgekv_status edgekv_last_rows(const edgekv_context * ctx, int row, int head, int token, int32_t * cells, float * weights,
                                          int capacity, int * n_rows);

EDGEKV_API int edgekv_n_layer(const edgekv_context * ctx);
EDGEKV_API edgekv_status edgekv_get_layer(const edgekv_context * ctx, int il, edgekv_layer * out);
EDGEKV_API const char * edgekv_layer_state_text(edgekv_layer_state state);

EDGEKV_API edgekv_status edgekv_get_observation(const edgekv_context * ctx, edgekv_observation * out);
EDGEKV_API edgekv_status edgekv_get_cells(const edgekv_context * ctx, int stream, edgekv_cells * out);
EDGEKV_API int edgekv_stream_of(const edgekv_context * ctx, int seq_id); /* -1: no cache */
EDGEKV_API edgekv_status edgekv_get_rows(const edgekv_context * ctx, int il, bool value, edgekv_rows * out);
EDGEKV_API edgekv_memory edgekv_get_memory(const edgekv_context * ctx);

/* Instruction sets by number, portable first; the name is null past the last. */
EDGEKV_API const char * edgekv_isa_name(int isa);
EDGEKV_API bool edgekv_isa_supported(int isa);
EDGEKV_API int edgekv_isa(void); /* in use */

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
