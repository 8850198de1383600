#include "server/chat/schemas.h"

#include "common.h"
#include "llama-edgekv-forms.h"

#include <utility>

namespace edgekv_server {
namespace {

[[noreturn]] void decline_form(const std::string & field, const std::string & sentence) { decline("the field '" + field + "' " + sentence); }

// The schema of a form; null: the answer is text. `field`: the form's, as the client knows it.
json schema_of(const json & form, const std::string & field) {
    const json type = form.value("type", json());
    if (type == "text") {
        return json();
    }
    if (type != "json_object" && type != "json_schema") {
        decline_form(field, "has no such type: response_format type must be one of \"text\", \"json_object\" and \"json_schema\"");
    }
    const json within = form.value("json_schema", json());  // chat's place; the other APIs, and some clients of chat, have the schema beside the type
    const json schema = within.is_object() ? within.value("schema", json()) : form.value("schema", json());
    if (schema.is_null() && type == "json_object") {
        return {{ "type", "object" }};
    }
    if (!schema.is_object()) {
        decline_form(field, "asks for a schema and has none; 'schema' must be an object");
    }
    check_form(form_of(schema), field);
    return schema;
}

}  // namespace

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

void take_form(json & request, endpoint where) {
    std::string field = "response_format";
    json        form  = where == endpoint::messages ? json() : request.value(field, json());
    request.erase(field);
    const auto take_from = [&](const char * outer, const char * inner) {
        if (request.contains(outer) && request.at(outer).is_object() && !request.at(outer).value(inner, json()).is_null()) {
            field = std::string(outer) + "." + inner;
            form  = request.at(outer).at(inner);
        }
        request.erase(outer);
    };
    if (where == endpoint::responses) {
        take_from("text", "format");
    } else if (where == endpoint::messages) {
        if (!request.value("output_format", json()).is_null()) {
            field = "output_format";
            form  = request.at(field);
        }
        take_from("output_config", "format");
    }
    json schema = form.is_null() ? json() : schema_of(form, field);
    const json own = request.value("json_schema", json());
    if (!schema.is_null() && (asks(request.value("grammar", json())) || asks(own))) {
        decline_form(field, "and a grammar or a json_schema cannot both hold for one answer; leave one out");
    }
    if (schema.is_null() && !own.is_null()) {
        check_form(form_of(own), "json_schema");
        schema = own;
    }
    if (schema.is_null()) {
        return;
    }
    request.erase("json_schema");
    if (where == endpoint::completions) {
        request["json_schema"] = schema;
    } else {  // upstream's conversions see an object of some kind: shape_answer() takes the schema from within
        const json within = {{ "type", "object" }, { "schema", schema }};
        request["response_format"] = {{ "type", "json_schema" }, { "json_schema", {{ "schema", within }} }};
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
