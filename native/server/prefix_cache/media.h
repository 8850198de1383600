// Images and sound in prompts. A medium's tokens have no numbers: server_tokens has LLAMA_TOKEN_NULL for each, and a chunk at the first.
// Prefixes end before or after a medium, never within. Decoding thread.
#pragma once

#include "server-common.h"

#include <string>
#include <vector>

namespace edgekv_server {

// A server loads its projector, which computes embeddings of media; empty: it has none.
void projector_in(const std::string & path);

// The text that stands for a medium in a prompt that is not cut into tokens yet. It begins with the marker in /props, which clients write into a
// "prompt_string", and nobody can guess its end: a marker in a message of a chat is text. Any thread.
const char * media_marker();

// a client's "prompt_string" with our markers, and a prompt with a client's
std::string marked_by_us(const std::string & prompt);
std::string marked_by_client(const std::string & prompt);

// Puts a data URL in the place of an address, whose content the program around the server fetches. Does nothing to data
// URLs, plain base64, and file:// (upstream refuses it without --media-path). Throws std::invalid_argument if the address may not be fetched. A
// thread of a request; it waits.
void fetch_medium(std::string & url);

// Throws std::invalid_argument for a file that cannot be read, if its format is known.
void refuse_format(const std::vector<unsigned char> & file);

// Throws std::invalid_argument for an image that is too thin, or a sound that is too short, for all that upstream does with it.
void check_size(const mtmd_bitmap * bitmap);

// Throws std::invalid_argument if a prompt ends with a medium, because an answer cannot begin after it. Any thread.
void check_media(const server_tokens & prompt);

// the largest number of tokens, at most n, that does not end within a medium
int whole_media(const server_tokens & tokens, int n);

// Appends tokens [first, end) of a prompt to a sequence's tokens; media become placeholders, as upstream makes them.
void append_tokens(server_tokens & held, const server_tokens & prompt, int first, int end);

// Computes tokens [first, end) of a sequence; the prompt has the contents of their media. false: it failed.
bool compute_tokens(llama_context * lctx, mtmd_context * mctx, int seq_id, const server_tokens & held, const server_tokens & prompt, int first, int end);

}  // namespace edgekv_server
