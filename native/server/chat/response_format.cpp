#include "server/chat/response_format.h"

#include "server/chat/schema_words.h"

#include <string>
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
    check_schema(schema, field);
    return schema;
}

}  // namespace

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
    if (request.contains("json_schema")) {
        check_schema(request.at("json_schema"), "json_schema");
    }
    const json schema = form.is_null() ? json() : schema_of(form, field);
    if (schema.is_null()) {
        return;
    }
    if (asks(request.value("grammar", json())) || asks(request.value("json_schema", json()))) {
        decline_form(field, "and a grammar or a json_schema cannot both hold for one answer; leave one out");
    }
    if (where == endpoint::completions) {
        request["json_schema"] = schema;
    } else {
        request["response_format"] = {{ "type", "json_schema" }, { "json_schema", {{ "schema", schema }} }};
    }
}

}  // namespace edgekv_server
