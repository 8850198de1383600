// Where the tokens of several sequences in one cache go, for the patched call site (llama-edgekv-places.cpp).
#pragma once

#include <cstdint>
#include <vector>

struct llama_ubatch;
class  llama_kv_cache;
struct llama_edgekv_returning;

constexpr int llama_edgekv_group = 64;  // cells of which a sketch is made

// Chooses a cell for each token of a ubatch, in its order, so that sequences share no group of 64 cells but with tokens that belong to both.
// false: upstream's search serves. It is upstream's alone where a cache has one sequence, streams, or an index beside it.
bool llama_edgekv_place(const llama_kv_cache & kv, const llama_ubatch & ubatch, std::vector<uint32_t> & cells);

// Empty cells for n tokens of a sequence, one behind the other, where the pages of these rows fit, in groups that have no others' tokens; empty: there are
// none.
std::vector<uint32_t> llama_edgekv_cells_for(
    const llama_kv_cache & kv, uint32_t stream, int seq_id, const llama_edgekv_returning & parked, uint32_t n);

// Cells of a sequence, at positions [p0, p1), that others have too become its own, as copies, before what follows moves them.
void llama_edgekv_own(llama_kv_cache & kv, int seq_id, int p0, int p1);
