/* libedgekv: a data plane on a device. */
#ifndef EDGEKV_DEVICE_H
#define EDGEKV_DEVICE_H

#include "edgekv_pages.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Home of one layer by device address: stream 0, cell 0, head 0. Strides in bytes; row bytes are those of one head of one cell. */
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
} edgekv_device_layer;

/* A context's data plane on a device. Addresses are the device's (emulated: host memory), and live as long as the context. */
typedef struct {
    edgekv_device_kind kind;
    int index;
    void * stream;       /* cudaStream_t of the ubatches; kernels that touch observation or pins must run on it too */
    char * arena;
    size_t slot_bytes;
    int n_slots;         /* in use: edgekv_set_arena() */
    int n_slots_max;     /* the budget's slots; their memory is allocated at the start and freed in mode off */
    int n_cells;         /* of a stream; the last page may have fewer rows than the others */
    const edgekv_device_layer * layers; /* [n_layers] in device memory */
    size_t budget_bytes;  /* the budget that follows from vram_bytes */
    size_t fixed_bytes;   /* the budget without the arena */
    size_t staging_bytes; /* part of fixed_bytes, for prompts: K and V of one layer, or of two */
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
    bool has_display; /* it may draw a screen */
    bool usable;
    char problem[256]; /* why it is not usable */
    bool pins_later; /* kernels read memory in place that was mapped first and pinned later, as K and V are when tokens come */
} edgekv_device_info;
/* The folder of the libraries for NVIDIA's GPUs: ours in a build with CUDA, else that of a plug-in (edgekv-cuda13, edgekv-cuda12) beside the
   package; "": there is none. The text lives as long as the process, and so does the next one: why a plug-in is refused, as a clause; "": none is. */
EDGEKV_API const char * edgekv_device_folder(void);
EDGEKV_API const char * edgekv_plugin_problem(void);
EDGEKV_API int edgekv_device_count(edgekv_device_kind kind); /* 0 also if the build does not serve such devices */
EDGEKV_API edgekv_status edgekv_get_device_info(edgekv_device_kind kind, int index, edgekv_device_info * out);
/* Whether the system pins so much host memory for a device now: it is pinned and given back. EDGEKV_NOT_PINNED: it does not */
EDGEKV_API edgekv_status edgekv_try_pinning(edgekv_device_kind kind, int index, size_t n_bytes);

/* Bytes per second. */
typedef struct {
    double link_copy;     /* from pinned host memory, one large copy */
    double link_gather;   /* the same page by page, by a kernel that reads host memory in place */
    double link_rows;     /* the same row by row: of 128 to 272 bytes, the slowest size */
    double link_pageable; /* one large copy from memory that is not pinned */
    double vram;          /* device memory, read */
    double dram;          /* host memory, read by the processor's cores */
    double launch_us;     /* microseconds from launch to launch */
} edgekv_rates;
/* Takes some seconds. host_bytes: how much host memory may be pinned meanwhile, so that pages and rows lie as far apart as in a home. */
EDGEKV_API edgekv_status edgekv_measure_rates(edgekv_device_kind kind, int index, size_t host_bytes, edgekv_rates * out);

/* Milliseconds, for what is pinned in 64 pieces, as K and V of 32 layers are. */
typedef struct {
    bool works;        /* kernels may use the host's addresses of memory that was pinned later */
    bool crosses;      /* a copy may go from what was pinned by one call into what another one pinned beside it */
    double fresh_ms;   /* to pin memory that nobody has touched */
    double touched_ms; /* memory that was written before */
    double unpin_ms;
    double beside_ms;  /* as touched_ms, while a stream works for busy_ms: about as long if the call waits for it */
    double busy_ms;
} edgekv_pinning;
/* Pins twice n_bytes of host memory, a multiple of the system's page, and gives it back. EDGEKV_NOT_PINNED: the system does not */
EDGEKV_API edgekv_status edgekv_time_pinning(edgekv_device_kind kind, int index, size_t n_bytes, edgekv_pinning * out);

/* Kernels on random inputs, three times, against the reference of the processor's kernels; buffers lie between bands of poison. */
typedef enum {
    EDGEKV_KERNEL_ATTEND       = 0, /* every page, a third of them in the arena; merge and mass */
    EDGEKV_KERNEL_ATTEND_LISTS = 1, /* an eighth of the rows, weighed */
    EDGEKV_KERNEL_STORE        = 2, /* rows and their sketches */
    EDGEKV_KERNEL_SCAN         = 3, /* of the sketches */
} edgekv_kernel;
typedef struct {
    int head_dim, n_head, n_head_kv;
    int n_tokens; /* that attend; 16 at most */
    int n_cells;
    int type_k, type_v; /* enum ggml_type: f16, q8_0 or q4_0 */
    uint64_t seed;
} edgekv_kernel_case;
typedef struct {
    double error; /* the largest, in units of what is allowed: 1 and less is right */
    bool same;    /* three runs gave the same bits */
    bool inside;  /* nothing was written beside a buffer */
} edgekv_kernel_result;
EDGEKV_API edgekv_status edgekv_try_kernel(edgekv_device_kind kind, int index, edgekv_kernel kernel, const edgekv_kernel_case * c,
                                           edgekv_kernel_result * out);

/* EDGEKV_SOURCES: a digest of all sources that compute. */
EDGEKV_API const char * edgekv_sources(void);

/* On a device the observation's mass is a device address; slots and newest stay on the host.
   The caller copies pages with its own kernels on a side stream. It calls edgekv_begin_copies(), lets the side stream wait for
   the ubatches' stream (a ubatch in flight may still read a released slot), copies, and publishes the pages when the copies are
   complete. */
EDGEKV_API bool edgekv_get_device(const edgekv_context * ctx, edgekv_device * out); /* false: the host plane */
/* Takes all pages out of the arena and frees its memory beyond n_slots slots for other uses. edgekv_set_arena() then sets the
   number of used slots. Mode off frees the whole arena; the next mode allocates it again. Decoding thread, with no copy under way. */
EDGEKV_API edgekv_status edgekv_limit_arena(edgekv_context * ctx, int n_slots);
EDGEKV_API edgekv_status edgekv_begin_copies(edgekv_context * ctx, const edgekv_move * moves, int n);
/* Saves a copy: if the next ubatch is a prompt, which brings all pages to the device anyway, it leaves these in their slots. After
   that ubatch over[i] is true, and filled[i] says whether page i is in its slot; if not, the caller copies it. */
EDGEKV_API edgekv_status edgekv_fill_pages(edgekv_context * ctx, const edgekv_move * moves, int n);
EDGEKV_API edgekv_status edgekv_filled_pages(const edgekv_context * ctx, const edgekv_move * moves, int n, bool * over, bool * filled);
/* The sentence says why a context meant for a device runs on the host plane or stock. For a context on a device it names the first
   failure there and its node; from then on llama_decode fails, and the log says why. So it is where the disk of a home failed (EDGEKV_DISK).
   EDGEKV_OK and empty: nothing of it happened. */
EDGEKV_API edgekv_status edgekv_device_problem(const edgekv_context * ctx, const char ** sentence);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
