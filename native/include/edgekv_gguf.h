/* libedgekv: the header of a GGUF file, read by ggml. gguf.h says what it holds; gguf_free() frees it. */
#ifndef EDGEKV_GGUF_H
#define EDGEKV_GGUF_H

#include "edgekv_base.h"

#include <gguf.h>
#include <llama.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Needs no edgekv_init(). EDGEKV_UNSUPPORTED if ggml cannot read it: the sentence is the first line that ggml would have logged. Lines of other
   threads go where they went before. */
EDGEKV_API edgekv_status edgekv_read_gguf(const char * path, struct gguf_context ** out);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
