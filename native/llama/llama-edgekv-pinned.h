// Rows at home that a device reads in place. They are pinned as tokens come, in parts of all layers, and stay so until the device lets go of them: a part
// that went and came again would wait for the device twice.
#pragma once

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

class llama_kv_cache;

//
// exports of libllama, for libedgekv
//

// How host memory is pinned: whole pages of the system, of `home`.
struct llama_edgekv_pinner {
    size_t part_bytes;  // that are pinned at a time, of all layers together; less where the cache is small
    uint32_t page_tokens;  // cells that kernels read together
    bool (*pin)(void * user, char * p, size_t n_bytes, char * home, size_t home_bytes);
    void (*unpin)(void * user, char * p);
    void * user;
};

// From now on rows of the context's plain cache are pinned before a device may touch them: the first ones at once, those of a batch before it is placed.
// Nothing is given back meanwhile. false: the first ones were refused, and none is pinned. Rows in other than growing memory stay as they are. Decoding thread.
LLAMA_API bool llama_edgekv_pin_rows(llama_context * lctx, const llama_edgekv_pinner & pinner);
LLAMA_API void llama_edgekv_unpin_rows(llama_context * lctx);  // no device works with them. Nothing happens where none are pinned
LLAMA_API bool llama_edgekv_pins_rows(const llama_context * lctx);  // so emptied cells give no memory back
LLAMA_API bool llama_edgekv_is_reached(const llama_context * lctx, uint32_t stream, uint32_t end);  // whether a device may read a stream's first cells
// Pins rows for tokens that come in n sequences. true also where nothing is pinned so. false: there is no memory, the system refused, or the sequence lost its
// rows; the log says which.
LLAMA_API bool llama_edgekv_pin_tokens(const llama_context * lctx, const int * seq_ids, const int * n_tokens, int n);

//
// for the glue
//

// The pinned parts of a mapping.
class llama_edgekv_pinned {
public:
    llama_edgekv_pinner how = {};
    std::vector<uint32_t> cells;  // of each stream, from the first on
    std::vector<bool> lost;  // the stream had tokens whose rows were not pinned

    bool on() const { return how.pin != nullptr; }
    // Pins what is not pinned of these bytes of a buffer, in whole pages. false: something was refused, and what came before it stays.
    bool pin(uintptr_t first, uintptr_t end, ggml_backend_buffer_t buffer);
    void unpin();

    uintptr_t piece_end(uintptr_t p) const;  // where the part ends in which p lies, or what lies between two; UINTPTR_MAX: behind all

    template <class F>
    void each_rest(uintptr_t first, uintptr_t end, F && visit) const {  // what is not pinned of these bytes
        while (first < end) {
            const uintptr_t to = std::min(piece_end(first), end);
            if (!holds(first)) {
                visit(first, to);
            }
            first = to;
        }
    }

    template <class F>
    void each_part(F && visit) const {
        for (const auto & [first, end] : parts) {
            visit(first, end);
        }
    }

private:
    bool holds(uintptr_t p) const;

    std::map<uintptr_t, uintptr_t> parts;  // first -> end
};

llama_edgekv_pinned * llama_edgekv_pins_of(ggml_backend_buffer_t buffer);  // null: it is no growing memory
bool llama_edgekv_is_pinned(const ggml_tensor * rows);  // as tokens come
bool llama_edgekv_is_pinned(const llama_kv_cache & kv);

// The cells of streams that a graph views together, by stream: the end of those with tokens.
using llama_edgekv_ends = std::map<uint32_t, uint32_t>;
// The bytes that rows take if these are pinned, beyond what is. The cache is pinned.
size_t llama_edgekv_to_pin(const llama_kv_cache & kv, const llama_edgekv_ends & ends);
// Pins them, if there is memory. false: the log says why not, and llama_edgekv_refused() holds.
bool llama_edgekv_pin_cells(const llama_kv_cache & kv, const llama_edgekv_ends & ends, size_t n_tokens);
// Pins rows of tokens that came otherwise than by find_slot(): copies of streams, whole states. A stream whose rows are not pinned loses its tokens: it could
// not be read, and policies move pages of all streams.
void llama_edgekv_pin_used(llama_kv_cache & kv);
