#pragma once

#include <cstddef>
#include <regex>
#include <string>

// Patterns and words that start a lazy grammar, searched in the whole answer behind each token. std::regex, as upstream uses it, calls itself
// once a character and takes 2^n steps for some patterns; its other way of matching, which this is, takes steps as the text and the pattern are long.

// Throws std::runtime_error for a pattern that is too long to be read by recursion, its repeats written out, or that would look ahead without end.
void llama_edgekv_check_trigger(const std::string & pattern);

// throws std::runtime_error for a pattern that refers back
std::regex llama_edgekv_trigger(const std::string & pattern);

// where the grammar begins in the text, as upstream decides it, or npos; found: of llama_edgekv_trigger()
size_t llama_edgekv_find_trigger(const std::string & pattern, const std::regex & found, const std::string & text);
