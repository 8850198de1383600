// Ways to say the same conversation so that a chat template takes it: a message that it cannot take where it stands goes to the nearest place that
// can hold it. None drops a text.
#pragma once

#include "chat.h"

#include <string>
#include <vector>

namespace edgekv_server {

struct wording {
    std::vector<common_chat_msg> messages;
    std::vector<size_t>          numbers;  // of each message, as the request has them, from 1 on
    std::vector<std::string>     moved;    // "3 system into 1 system", for the reply and the log

    explicit wording(const std::vector<common_chat_msg> & given);
};

// Ids of calls as Mistral's templates want them: nine letters and digits, the same for the same id in every turn. Whether any changed.
bool shorten_ids(std::vector<common_chat_msg> & messages);

using repair = void (*)(wording &);

// in the order in which they are tried, each on what the ones before it left
const std::vector<repair> & all_repairs();

}  // namespace edgekv_server
