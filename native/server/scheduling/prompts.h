// Tells the planes which sequences of a batch read a prompt. If prompts are read exactly, the planes then read these tokens exactly, however
// few a ubatch holds. Decoding thread.
#pragma once

#include "llama-edgekv.h"

#include <cstdint>
#include <vector>

namespace edgekv_server {

// call it before the batch's `n` tokens from `first` on are decoded
template <typename Tokens>
void tell_prompts(llama_context * lctx, const Tokens & tokens, int first, int n) {
    std::vector<int32_t> seq_ids;
    for (int i = first; i < first + n; ++i) {
        if (tokens[i].is_prompt && (seq_ids.empty() || seq_ids.back() != tokens[i].id_slot)) {
            seq_ids.push_back(tokens[i].id_slot);
        }
    }
    llama_edgekv_set_prompts(lctx, seq_ids.data(), static_cast<int>(seq_ids.size()));
}

}  // namespace edgekv_server
