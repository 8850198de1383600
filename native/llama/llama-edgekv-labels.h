// For the patched call sites: labels of cells in saved states, and gaps that close. llama-edgekv.h includes this file.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct llama_memory_i;
struct llama_ubatch;
class  llama_io_read_i;
class  llama_kv_cells;

// Labels in a saved state: more sequences of a cell, with numbers that no sequence has. One says that a sparse prompt read the cell, another by
// how many positions K of the cell is turned because gaps were closed.
void llama_edgekv_add_label(const llama_kv_cells & cells, uint32_t i, std::vector<llama_seq_id> & seq_ids);
// whether some layers gave the cell's rows back
bool llama_edgekv_is_partial(const llama_kv_cells & cells, uint32_t i);
// whether a sequence is a label; if so, sets it on the cell
bool llama_edgekv_take_label(llama_kv_cells & cells, uint32_t i, llama_seq_id seq_id);

// the labels of a state that holds one sequence: they follow the sequence's number
class llama_edgekv_saved_labels {
public:
    explicit llama_edgekv_saved_labels(uint32_t n) : saved(n) {}

    // takes a cell's number of sequences, and lowers it by the labels
    void announce(uint32_t i, uint32_t & n_seq_id);
    // false: another sequence follows; the log says so
    bool read(uint32_t i, llama_io_read_i & io);
    // sets the labels on the cells where the state was placed
    void put_on(llama_kv_cells & to, const std::vector<uint32_t> & cells) const;

private:
    struct of_cell {
        uint32_t n = 0;  // labels
        uint8_t  labels = 0;
        int32_t  offset = 0;
    };
    std::vector<of_cell> saved;
};

// Before a batch is placed: closes gaps if the batch would come to the last positions. The K-shift waits, and llama_context::memory_update applies it.
void llama_edgekv_close_gaps(llama_context * lctx, const llama_batch & batch);
// the ubatch with the positions by which its tokens are rotated; lives until the thread's next call
const llama_ubatch * llama_edgekv_turned(const llama_ubatch * ubatch);

// whether llama_edgekv_allow_gaps() was called for the context of this memory
bool llama_edgekv_has_gaps(const llama_memory_i * memory);
