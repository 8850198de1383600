// What clients write into requests for other servers than this one. Threads of requests.
#pragma once

#include "server-common.h"

#include <string>

namespace edgekv_server {

// Drops the header that Claude Code puts before its system prompt, "x-anthropic-billing-header: name=value; ...": it tells the model nothing, and
// its values change with each conversation, so that no conversation would begin like another.
void drop_billing_header(std::string & system_text);

// the same for system messages in OpenAI's form
void drop_billing_headers(json & messages);

// Takes fields of a request to /v1/messages into its converted form, which upstream's conversion leaves behind.
void carry_over(const json & request, json & converted);

}  // namespace edgekv_server
