// The mapping in which K and V lie on the processor: memory that comes as it is written, or a file of the folder that is set.
#pragma once

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

//
// exports of libllama, for libedgekv
//

// Sets the folder in whose files caches lie that are made from now on; empty: they lie in memory. own: of this thread's caches, and the text stays
// where it is until the next call; null: they lie where those of the process do. Any thread.
LLAMA_API void llama_edgekv_set_home(const char * folder, bool own);
// why the newest such file could not be made, an errno; 0: every one since a folder was set could
LLAMA_API int  llama_edgekv_home_failure(void);
LLAMA_API bool llama_edgekv_on_disk(const struct ggml_tensor * rows);  // whether they lie in such a file

// A file of so many bytes beside that of `rows`, which has no name either. Below 0: there is none, as llama_edgekv_home_failure() says. The caller closes it.
LLAMA_API int  llama_edgekv_file_beside(const struct ggml_tensor * rows, size_t n_bytes);

//
// for the glue
//

constexpr size_t LLAMA_EDGEKV_HUGE = size_t{2} << 20;

inline size_t llama_edgekv_huge(size_t n) { return (n + LLAMA_EDGEKV_HUGE - 1)/LLAMA_EDGEKV_HUGE*LLAMA_EDGEKV_HUGE; }

// The unit in which rows take memory and give it back, a power of two: a huge page; 64 KiB where a stream has fewer than eight, most used in part.
inline size_t llama_edgekv_unit(const ggml_tensor * rows) { return rows->nb[2] < 8*LLAMA_EDGEKV_HUGE ? size_t{64} << 10 : LLAMA_EDGEKV_HUGE; }

// The bytes that rows of a stream's first n cells take, in whole units.
inline size_t llama_edgekv_taken(const std::vector<const ggml_tensor *> & tensors, size_t n) {
    size_t sum = 0;
    for (const ggml_tensor * rows : tensors) {
        sum += std::min(GGML_PAD(n*rows->nb[1], llama_edgekv_unit(rows)), rows->nb[2]);
    }
    return sum;
}

// the bytes that rows take, so that those behind begin at a huge page, where that costs less than a hundredth
size_t llama_edgekv_padded(const ggml_tensor * rows);

// the type of buffers for caches that are made now; null: the system has no such mappings
ggml_backend_buffer_type_t llama_edgekv_mapped(void);

bool llama_edgekv_is_mapped(const ggml_tensor * rows);  // in memory or a file

// The kernel reads ahead where these rows are read next, until libedgekv says how it reads them. Nothing happens for rows in memory.
void llama_edgekv_will_stream(const ggml_tensor * rows);

// Makes whole pages [first, end) of a mapping zeros, but for what is pinned. In memory they take none any more, a file keeps its space. false: the file system
// cannot, and they stay as they are.
bool llama_edgekv_forget(ggml_backend_buffer_t buffer, uintptr_t first, uintptr_t end);
