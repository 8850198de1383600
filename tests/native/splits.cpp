// Cuts texts as llama.cpp's pre-tokenizers do. Input, each ended by a zero byte: expressions, nothing, texts.
// Output, a line each: for each text the bytes of its words, and the milliseconds that cutting it took.
#include "unicode.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

int main() {
    std::vector<std::string> expressions;
    std::string line;
    while (std::getline(std::cin, line, '\0') && !line.empty()) {
        expressions.push_back(line);
    }
    while (std::getline(std::cin, line, '\0')) {
        const auto begin = std::chrono::steady_clock::now();
        const auto words = unicode_regex_split(line, expressions, false);
        const auto spent = std::chrono::steady_clock::now() - begin;
        for (const auto & word : words) {
            std::printf("%zu ", word.size());
        }
        std::printf("\n%.3f\n", std::chrono::duration<double, std::milli>(spent).count());
    }
}
