// What of a file and of further files stands in the prompt of /infill: upstream takes as much as a batch holds. Threads of requests.
#pragma once

#include "llama.h"

#include <vector>

namespace edgekv_server {

using token_list = std::vector<llama_token>;

// The tokens before the cursor, behind it, and of further files, cut to a context. The nearest to the cursor stay, and of further files the last.
struct infill {
    token_list prefix;
    token_list suffix;
    token_list extra;
};

// Takes the tokens out of upstream's lists, so that it finds nothing to cut. n_prompt: tokens behind the prefix; n_predict: those of the answer,
// below 1 an eighth of the context.
infill take_infill(token_list & prefix, token_list & suffix, token_list & extra, size_t n_prompt, int n_predict, int n_ctx);

}  // namespace edgekv_server
