// Schemas, and grammars that are not GBNF, as forms that the program around the server holds answers to (llama-edgekv-forms.h). Threads of requests.
#pragma once

#include "server/http/fields.h"

#include <string>

struct common_params_sampling;

namespace edgekv_server {

// The form of a schema. `before`: what may stand before the answer, [text, whether it may be missing] each; `begun`: what the answer begins with already;
// `calls`: what may come in its place (edgekv/server/answer_calls.py), or must where the schema is null.
std::string form_of(const json & schema, const json & before = json::array(), const std::string & begun = "", const json & calls = json());

// Throws std::invalid_argument, with the reason, where answers cannot be held to `form`, which the request's field `field` asks for. `vocab`: for calls.
void check_form(const std::string & form, const std::string & field, const llama_vocab * vocab = nullptr);

// Brings the form that a request orders for its answer in the words of its API (chat's and completions' `response_format`, responses' `text.format`,
// messages' `output_config.format`) into the field that upstream's conversion of the endpoint reads. Throws std::invalid_argument for a form that is
// none, and for a schema that cannot be enforced.
void take_form(json & request, endpoint where);

// Takes the form that a task's fields json_schema and grammar ask for. False: none, or GBNF, which is upstream's.
bool take_form(const json & task, common_params_sampling & sampling);

// check_form() of the form that take_form() takes
void check_task(const json & task, const llama_vocab * vocab);

// The task's field that names the request's, for which its grammar was made.
inline constexpr char ASKED_BY[] = "grammar_asked_by";

}  // namespace edgekv_server
