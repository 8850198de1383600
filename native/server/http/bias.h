// Biases of tokens in a request. Threads of requests.
#pragma once

#include "server-common.h"

#include <vector>

namespace edgekv_server {

// Reads the field logit_bias where upstream does not: [{"token": id or text, "bias": number or false}, ...]. Throws std::invalid_argument for
// what nobody can read, which upstream passes over.
void read_biases(const json & given, const llama_vocab * vocab, std::vector<llama_logit_bias> & biases);

}  // namespace edgekv_server
