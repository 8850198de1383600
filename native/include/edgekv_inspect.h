/* libedgekv: a model and the memory of a context, as llama.cpp has them, without weights or K and V. llama.cpp ends the process for some bad files:
   call these in one of their own. */
#ifndef EDGEKV_INSPECT_H
#define EDGEKV_INSPECT_H

#include "edgekv_base.h"

#include <llama.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* A model of which only the header is read; llama_model_free() frees it. EDGEKV_UNSUPPORTED with llama.cpp's own words if it refuses the file. */
EDGEKV_API edgekv_status edgekv_open_header(const char * path, struct llama_model ** out);

typedef struct {
    int n_ctx;    /* tokens of all sequences together */
    int n_seq;
    bool unified; /* the sequences share one cache */
    int n_ubatch;
    int type_k;   /* enum ggml_type */
    int type_v;
} edgekv_context_size;

/* What llama.cpp makes of a context of this size on the processor, with flash attention where it can. `out` is an object in JSON, valid until this
   thread's next call; edgekv/models/inspector.py reads it. EDGEKV_UNSUPPORTED with llama.cpp's own words if it makes none. */
EDGEKV_API edgekv_status edgekv_inspect(struct llama_model * model, const edgekv_context_size * of, const char ** out);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
