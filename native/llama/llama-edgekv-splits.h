#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Splits each piece of a text (offsets are their lengths, in characters) into the matches of an expression and what lies between them,
// as unicode_regex_split_stl does, whose std::regex calls itself once a character. This takes time and memory that grow with the text,
// and no stack. False: the expression has something that no pre-tokenizer's has, and found is unchanged.
bool llama_edgekv_split(const std::u32string & text, const std::u32string & expression, const std::vector<size_t> & offsets,
                        std::vector<size_t> & found);

template <typename CharT>
std::u32string llama_edgekv_codes(const std::basic_string<CharT> & text) {
    std::u32string codes;
    codes.reserve(text.size());
    for (const CharT c : text) {
        codes.push_back(sizeof(CharT) == 1 ? static_cast<unsigned char>(c) : static_cast<char32_t>(c));
    }

    return codes;
}
