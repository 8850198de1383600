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

void check_form(const std::string & form, const std::string & field) {
    const std::string why = llama_edgekv_check_form(form);
    if (!why.empty()) {
        decline("the field '" + field + "' cannot hold for the answer: " + why);
    }
}

bool take_form(const json & task, common_params_sampling & sampling) {
    const json  schema    = task.value("json_schema", json());
    const json  grammar   = task.value("grammar", json());
    const bool  is_schema = !schema.is_null() && !asks(grammar);
    std::string form      = is_schema ? form_of(schema) : grammar.is_string() ? grammar.get<std::string>() : "";
    if (!llama_edgekv_is_form(form)) {
        return false;
    }
    check_form(form, is_schema ? "json_schema" : "grammar");
    const bool begins_with_prompt = task.value("grammar_type", json()) == "tool_calls";
    sampling.grammar = { begins_with_prompt ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : COMMON_GRAMMAR_TYPE_USER, std::move(form) };
    return true;
}

}  // namespace edgekv_server
