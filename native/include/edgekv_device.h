/* libedgekv: a data plane on a device. */
#ifndef EDGEKV_DEVICE_H
#define EDGEKV_DEVICE_H

#include "edgekv_pages.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Home of one layer, as the device addresses it: stream 0, cell 0, head 0. Strides in bytes; row bytes are of one head of one cell. */
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
    void * stream;       /* cudaStream_t: ubatches run on it, and kernels on observation, priority and pins must */
    char * arena;
    size_t slot_bytes;
    int n_slots;         /* in use: edgekv_set_arena() */
    int n_slots_max;     /* the budget has room for these; their memory is taken at the start, and given back in mode off */
    int n_cells;         /* of a stream; a last page may have fewer rows than the others */
    const edgekv_device_layer * layers; /* [n_layers] in device memory */
    size_t budget_bytes;  /* the budget that vram_bytes gave */
    size_t fixed_bytes;   /* the part of the budget that is not the arena's */
    size_t staging_bytes; /* the part of these for prompts: K and V of one layer, or of two */
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
EDGEKV_API int edgekv_device_count(edgekv_device_kind kind); /* 0 where the build has no such devices */
EDGEKV_API edgekv_status edgekv_get_device_info(edgekv_device_kind kind, int index, edgekv_device_info * out);

/* Bytes per second. */
typedef struct {
    double link_copy;     /* from pinned host memory, one large copy */
    double link_gather;   /* the same page by page, by a kernel that reads host memory in place */
    double link_pageable; /* one large copy from memory that is not pinned */
    double vram;          /* device memory, read */
    double dram;          /* host memory, read by the processor's cores */
    double launch_us;     /* microseconds from launch to launch */
} edgekv_rates;
EDGEKV_API edgekv_status edgekv_measure_rates(edgekv_device_kind kind, int index, edgekv_rates * out); /* about a second */

/* On a device the observation's mass and the pages' priority and pinned are device addresses; slots and newest stay on the host.
   The caller copies pages itself, with kernels of its own on a side stream: it tells edgekv_begin_copies(), lets the side stream wait for
   what is on the ubatches' stream (one in flight may still read a slot that was released), copies, and publishes when the copies are
   complete. edgekv_copy_pages() is refused. */
EDGEKV_API bool edgekv_get_device(const edgekv_context * ctx, edgekv_device * out); /* false: the host plane */
/* Takes all pages out of the arena, and gives its memory beyond n_slots slots back, because others need it. edgekv_set_arena()
   then says how many slots are used. Mode off gives all of it back, and a mode after it takes it again. Decoding thread, with no copy under
   way. */
EDGEKV_API edgekv_status edgekv_limit_arena(edgekv_context * ctx, int n_slots);
EDGEKV_API edgekv_status edgekv_begin_copies(edgekv_context * ctx, const edgekv_move * moves, int n);
/* In place of a copy: if the next ubatch is a prompt, which brings all pages to the device, it leaves these in their slots. After
   that ubatch over[i] is true, and filled[i] says whether page i is in its slot; if not, the caller copies it. */
EDGEKV_API edgekv_status edgekv_fill_pages(edgekv_context * ctx, const edgekv_move * moves, int n);
EDGEKV_API edgekv_status edgekv_filled_pages(const edgekv_context * ctx, const edgekv_move * moves, int n, bool * over, bool * filled);
/* The sentence says why a context that was to be placed on a device runs on the host plane or stock. Of a context that is placed it names the
   first failure there and its node: llama_decode fails from then on, and the log says it too. EDGEKV_OK and empty: neither happened. */
EDGEKV_API edgekv_status edgekv_device_problem(const edgekv_context * ctx, const char ** sentence);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
