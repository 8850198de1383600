// Tells which sequences of a batch read a prompt: where prompts are read exactly, the planes read their tokens so, however few of them a
// ubatch holds. On the thread that decodes.
#pragma once

#include "llama-edgekv.h"

#include <cstdint>
#include <vector>

namespace edgekv_server {

// before the decoding of the `n` tokens of the batch from `first` on
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
