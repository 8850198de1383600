#include "server/chat/schemas.h"

#include "common.h"
#include "llama-edgekv-forms.h"
#include "server/http/fields.h"

namespace edgekv_server {

std::string form_of(const json & schema, const json & before, const std::string & begun, const json & calls) {
    const json any = {{ "type", "object" }};  // of an empty schema, as clients of llama.cpp know it
    const json form = {{ "schema", schema.is_object() && schema.empty() ? any : schema }, { "before", before }, { "begun", begun },
                        { "calls", calls }};
    return "%edgekv " + form.dump();
}

void check_form(const std::string & form, const std::string & field, const llama_vocab * vocab) {
    const std::string why = llama_edgekv_check_form(form, vocab);
    if (!why.empty()) {
        decline("the field '" + field + "' cannot hold for the answer: " + why);
    }
}

static std::string asked_form(const json & task) {
    const json  schema  = task.value("json_schema", json());
    const json  grammar = task.value("grammar", json());
    std::string form    = !schema.is_null() && !asks(grammar) ? form_of(schema) : grammar.is_string() ? grammar.get<std::string>() : "";
    return llama_edgekv_is_form(form) ? form : "";
}

void check_task(const json & task, const llama_vocab * vocab) {
    const std::string form = asked_form(task);
    if (!form.empty()) {
        check_form(form, json_value(task, ASKED_BY, std::string(asks(task.value("grammar", json())) ? "grammar" : "json_schema")), vocab);
    }
}

bool take_form(const json & task, common_params_sampling & sampling) {
    std::string form = asked_form(task);
    if (form.empty()) {
        return false;
    }
    const bool begins_with_prompt = task.value("grammar_type", json()) == "tool_calls";
    sampling.grammar = { begins_with_prompt ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : COMMON_GRAMMAR_TYPE_USER, std::move(form) };
    return true;
}

}  // namespace edgekv_server
