#include "server/chat/response_format.h"

#include "server/chat/schemas.h"

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
    check_form(form_of(schema), field);
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

}  // namespace edgekv_server
