// Reads of rows ahead of the threads that need them, where K and V lie in a file.
//
// The file is mapped, so that a thread that touches a page which is not in memory waits for one read. Here the pages that a node will touch are
// asked for together, and the kernel reads them in parallel: those of a token's listed rows before they are attended. What reads all rows asks
// for them as they lie, and for those of the next layer before it is computed.
#pragma once

#include "kernels/decode/attend.h"

#include <cstddef>
#include <cstdint>
#include <vector>

struct ggml_tensor;

namespace edgekv {

struct State;

// Asking is a hint: rows that were not asked for are read when they are touched. Each of nth threads asks for its own part of the pages; threads
// may ask and attend at the same time. Layers are hooked layers, streams those of the cache. Nothing happens for rows in memory.
class ReadAhead {
public:
    explicit ReadAhead(const State & ctx);  // throws std::bad_alloc

    void enter(bool reads_rows) const;  // whether nodes that ask will attend; otherwise the kernel guesses what is read next
    void enter(int layer, bool reads_rows) const;

    // The rows of [n_tokens][n_heads] lists.
    void rows(int layer, int stream, const AttendRows & rows, int n_tokens, int n_heads, int ith, int nth);
    void whole(int layer, int stream, int n_cells, int ith, int nth) const;  // the first cells

    int next(int layer) const { return static_cast<size_t>(layer) + 1 < layers.size() ? layer + 1 : 0; }

private:
    // K or V of a layer and stream.
    struct Part {
        Part(const ggml_tensor * rows, int stream, size_t head_bytes);

        uintptr_t base;                // of the stream's first row
        size_t cell_bytes, head_bytes; // from one cell to the next, and of one head's row
        size_t n_pages;                // of the system, from that of `base` on
        std::vector<uint64_t> wanted;  // a bit for each of them

        uintptr_t page_of(uintptr_t address) const;
        void mark(const AttendRows & rows, int n_tokens, int n_heads, size_t first_word, size_t end_word);
        void ask(size_t first_word, size_t end_word) const;
    };

    std::vector<std::vector<std::vector<Part>>> layers;  // [hooked layer][stream]: K and V; no streams if they lie in memory
};

}  // namespace edgekv
