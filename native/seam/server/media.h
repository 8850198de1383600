// Images and sound in prompts. A medium's tokens have no numbers: they stand in server_tokens as LLAMA_TOKEN_NULL, with a chunk at the first of them.
// Prefixes end before a medium or behind it, never within. On the thread that decodes.
#pragma once

#include "edgekv_server.h"
#include "server-common.h"

#include <string>
#include <vector>

namespace edgekv_server {

// A server loads its projector, which makes embeddings of media; empty: it has none.
void projector_in(const std::string & path);

// Throws std::invalid_argument where a prompt ends with a medium: nothing is computed from which an answer could begin. Any thread's.
void check_media(const server_tokens & prompt);

// the most of the first n tokens that end within no medium
int whole_media(const server_tokens & tokens, int n);

// Appends tokens [first, end) of a prompt to those that a sequence holds; media as placeholders, as upstream does.
void append_tokens(server_tokens & held, const server_tokens & prompt, int first, int end);

// the number of a sequence's tokens that are computed, by its newest position; below 0: none
int n_tokens_to(const server_tokens & held, int newest);

// The first n of some tokens as the keeper of prefixes is told of them: numbers, media and, where those of a medium do not count up, positions. The
// tokens must outlive it.
class told_media {
public:
    told_media(const server_tokens & tokens, int n, mtmd_context * mctx);

    told_media(const told_media &) = delete;
    told_media & operator=(const told_media &) = delete;

    void put_into(edgekv_prefix_tokens & told) const;

private:
    std::vector<int32_t> numbers;
    std::vector<edgekv_medium> media;
    std::vector<int32_t> at;
};

// Computes tokens [first, end) of those that a sequence holds; the prompt has the contents of their media. false: it failed.
bool compute_tokens(llama_context * lctx, mtmd_context * mctx, int seq_id, const server_tokens & held, const server_tokens & prompt, int first, int end);

}  // namespace edgekv_server
