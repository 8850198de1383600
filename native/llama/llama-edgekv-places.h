// Where the tokens of several sequences in one cache go, for the patched call site (llama-edgekv-places.cpp).
#pragma once

#include <cstdint>
#include <vector>

struct llama_ubatch;
class  llama_kv_cache;

constexpr int llama_edgekv_group = 64;  // cells of which a sketch is made

// Chooses a cell for each token of a ubatch, in its order, so that sequences share no group of 64 cells but with tokens that belong to both.
// false: upstream's search serves. It is upstream's alone where a cache has one sequence, streams, or an index beside it.
bool llama_edgekv_place(const llama_kv_cache & kv, const llama_ubatch & ubatch, std::vector<uint32_t> & cells);

// Cells of a sequence, at positions [p0, p1), that others have too become its own, as copies, before what follows moves them.
void llama_edgekv_own(llama_kv_cache & kv, int seq_id, int p0, int p1);
