// Models whose header alone is opened, for their sizes.
#pragma once

#include <string>

// llama_model_params::kv_overrides has this name where nobody will ask what a model's tokens stand for: merges and pieces, most of the time that
// a header takes, are then left out. All else of a vocabulary is read, and refused, as ever.
#define LLAMA_EDGEKV_SIZES_ALONE "edgekv.sizes"

template <typename Overrides>
bool llama_edgekv_sizes_alone(const Overrides & overrides) {
    return !overrides.empty() && overrides.count(LLAMA_EDGEKV_SIZES_ALONE) > 0;
}

// Whether a token is none that llama.cpp looks for by its text, some forty comparisons for each: these are in brackets (tests/native/test_splits.py).
template <typename Overrides>
bool llama_edgekv_skips(const Overrides & overrides, const std::string & text) {
    return llama_edgekv_sizes_alone(overrides) && text.find('<') == std::string::npos && text.find('[') == std::string::npos;
}
