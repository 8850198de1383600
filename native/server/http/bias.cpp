#include "server/http/bias.h"

#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace edgekv_server {
namespace {

[[noreturn]] void refuse(const json & entry, const char * why) {
    throw std::invalid_argument("the field 'logit_bias' has " + entry.dump().substr(0, 100) + ": " + why);
}

void check_bias(const json & entry, const json & bias) {
    if (!bias.is_number() && !(bias.is_boolean() && !bias.get<bool>())) {
        refuse(entry, "a bias is a number, or false for a token that must not come");
    }
}

void check_token(const json & entry, const json & token, const llama_vocab * vocab) {
    if (!token.is_string() && !token.is_number_integer()) {
        refuse(entry, "a token is a number or a text");
    }
    const int64_t id = token.is_string() ? 0 : token.get<int64_t>();
    if (id < 0 || id >= llama_vocab_n_tokens(vocab)) {
        refuse(entry, "the model has no such token; /tokenize tells the numbers of its tokens");
    }
}

}  // namespace

void read_biases(const json & given, const llama_vocab * vocab, std::vector<llama_logit_bias> & biases) {
    if (given.is_object()) {
        for (const auto & item : given.items()) {
            char * end = nullptr;
            const json entry = {{ item.key(), item.value() }};
            const long id    = std::strtol(item.key().c_str(), &end, 10);
            check_token(entry, item.key().empty() || *end ? json(item.key()) : json(static_cast<int64_t>(id)), vocab);
            check_bias(entry, item.value());
        }
        return;
    }
    if (!given.is_array()) {
        refuse(given, "write {\"token\": bias, ...} or [[token, bias], ...]");
    }
    for (const auto & entry : given) {
        const bool is_pair = entry.is_array() && entry.size() == 2;
        if (!is_pair && !(entry.is_object() && entry.contains("token") && entry.contains("bias"))) {
            refuse(entry, "write [token, bias] or {\"token\": token, \"bias\": bias}");
        }
        const json & token = is_pair ? entry[0] : entry.at("token");
        const json & bias  = is_pair ? entry[1] : entry.at("bias");
        check_token(entry, token, vocab);
        check_bias(entry, bias);
        if (!is_pair) {
            const float by = bias.is_boolean() ? -INFINITY : bias.get<float>();
            const auto tokens = token.is_string() ? common_tokenize(vocab, token.get<std::string>(), false) : std::vector<llama_token>{ token.get<llama_token>() };
            for (const llama_token one : tokens) {
                biases.push_back({ one, by });
            }
        }
    }
}

}  // namespace edgekv_server
