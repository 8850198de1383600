// Forms of answers, such as JSON schemas, that the program around llama.cpp holds answers to: a sampler that asks it which tokens may follow.
#pragma once

#include "../include/edgekv_server.h"

#include "llama.h"

#include <string>
#include <vector>

// Only while no sampler of ours exists.
void llama_edgekv_set_forms(const edgekv_forms & forms);

// Whether a grammar is a form: begins with "%edgekv" or "%llguidance".
bool llama_edgekv_is_form(const std::string & grammar);

// Why answers cannot be held to a form; empty: they can. Any thread. null: no vocabulary, and the form has no calls.
std::string llama_edgekv_check_form(const std::string & form, const llama_vocab * vocab);

// A sampler that allows what a form allows; null: the grammar is none, or is lazy. It throws std::runtime_error, with a sentence, where an answer cannot
// go on. A client's form (%llguidance) is never lazy.
llama_sampler * llama_edgekv_form(const llama_vocab * vocab, const std::string & grammar, bool is_lazy);

// The same of a lazy form, which holds from where the answer has one of the patterns (llama-edgekv-triggers.h) or tokens, if it goes on behind it.
llama_sampler * llama_edgekv_form(const llama_vocab * vocab, const std::string & grammar, const std::vector<std::string> & patterns,
                                  const std::vector<llama_token> & tokens);
