// Drafts from what was said before: where the last tokens of an answer stood earlier, those that followed them there are guessed to follow
// again, and a step checks them together with the next token. Only the decoding thread calls these functions.
#pragma once

#include <cstdint>
#include <vector>

namespace edgekv_server {

// call it before a server starts
void begin_drafts(bool on);

bool drafts_from_text();

// The draft of a slot that answers `task`, at most n_most tokens: one, or three behind a longer match, since three more tokens cost what two
// do, and up to four in a step have the bits that each gets alone. Empty: nothing alike was said, guesses of late were wrong, or drafts do not
// pay here. said: the tokens of the slot; newest: the one behind them.
std::vector<int32_t> draft_from_text(int slot, int task, const std::vector<int32_t> & said, int32_t newest, int n_most);

// A step of the slot brought the next token and n_taken of n_drafted tokens, at now_us; the token before them came at since_us. n_gen: tokens
// that the answer had before this step.
void step_ended(int slot, int n_gen, int n_drafted, int n_taken, int64_t since_us, int64_t now_us);

}  // namespace edgekv_server
