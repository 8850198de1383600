// Bounds on the nesting, names, patterns, stop words and biases of a request: for the patches `guards` and `http`. Threads of requests.
#pragma once

#include "server-common.h"

#include <string>
#include <vector>

namespace edgekv_guards {

// Throws std::invalid_argument for a JSON body that nests deeper, or has longer names, than any sensible request. Upstream walks JSON, all
// data built from it, and names in schemas by recursion, and a stack overflow ends the process; chat_parser, which is the server's own, too. A
// body that is not JSON passes.
void check_body(const std::string & body);

// Throws std::invalid_argument for a trigger of a lazy grammar whose type is unknown or whose word or pattern is too long.
void check_trigger(const common_grammar_trigger & trigger);

// Leaves the stop words that are not empty.
void drop_empty(std::vector<std::string> & words);

// An empty list of a request becomes one of an empty text, which upstream passes over; an empty list it would refuse.
void take_none(const json & given, std::vector<std::string> & words);

// Reads the field logit_bias where upstream does not: [{"token": id or text, "bias": number or false}, ...]. Throws std::invalid_argument for
// what nobody can read, which upstream passes over.
void read_biases(const json & given, const llama_vocab * vocab, std::vector<llama_logit_bias> & biases);

// Penalties reach back over the tokens of a slot at most, and over all of them where -1 is asked for: upstream has room for as many as it is told.
void bound_reach(common_params_sampling & sampling, int32_t n_ctx);

}  // namespace edgekv_guards
