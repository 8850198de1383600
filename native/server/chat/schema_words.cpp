#include "server/chat/schema_words.h"

#include "json-schema-to-grammar.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

namespace edgekv_server {
namespace {

using words = std::vector<std::string>;

const words FOR_ALL     = { "$ref", "$dynamicRef", "$recursiveRef", "const", "enum", "allOf", "anyOf", "oneOf", "not", "if" };
const words FOR_OBJECTS = { "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
                            "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties" };
const words FOR_ARRAYS  = { "items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems",
                            "unevaluatedItems" };
const words FOR_STRINGS = { "pattern", "format", "minLength", "maxLength" };
const words FOR_NOTHING = { "" };  // no word but those for all
const words FOR_NUMBERS = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf" };

bool is_in(const std::string & word, const words & list) { return std::find(list.begin(), list.end(), word) != list.end(); }

// Follows upstream's reading of a schema (common/json-schema.cpp) node by node: a word counts where that reading takes it.
class reader {
public:
    reader(const json & root, const std::string & field) : m_root(root), m_field(field) {}

    void read(const json & node, const std::string & path) {
        if (!node.is_object()) {
            return;  // upstream refuses it
        }
        if (node.contains("$ref")) {
            allow(node, path, { "$ref" }, {});
            follow(node.at("$ref"));
            return;
        }
        if (node.contains("oneOf") || node.contains("anyOf")) {
            const std::string key = node.contains("oneOf") ? "oneOf" : "anyOf";
            if (node.contains("type")) {
                refuse(path, "type", "beside '" + key + "'");
            }
            allow(node, path, { key }, {});
            read_all(node.at(key), path + "/" + key);
            return;
        }
        const json type = node.value("type", json());
        if (type.is_array()) {
            for (const auto & one : type) {
                json alternative = node;
                alternative["type"] = one;
                read(alternative, path);
            }
            return;
        }
        if (node.contains("const") || node.contains("enum")) {
            allow(node, path, { node.contains("const") ? "const" : "enum" }, {});
            return;
        }
        read_typed(node, type.is_string() ? type.get<std::string>() : "", path);
    }

private:
    [[noreturn]] void refuse(const std::string & path, const std::string & word, const std::string & more = "") const {
        throw std::invalid_argument("the schema in '" + m_field + "' has '" + word + "' at " + path + (more.empty() ? "" : " " + more) +
                                    ", which would not be enforced; leave it out, and check the answer for it");
    }

    // whether a word says nothing that could be violated
    static bool is_idle(const std::string & word, const json & value) {
        static const words COUNTS = { "minProperties", "minItems", "minLength", "minContains" };
        return value.is_null() || (is_in(word, COUNTS) && value == 0) || (word == "uniqueItems" && value == false) ||
               ((word == "unevaluatedProperties" || word == "unevaluatedItems" || word == "additionalProperties") && value == true) ||
               (word != "not" && word != "const" && value.is_object() && value.empty() && word != "if") || (word == "required" && value.empty());
    }

    // Every word of the node that can be violated is in `taken`, or belongs to another type than the node's, whose words are `own`; none: any type.
    void allow(const json & node, const std::string & path, const words & taken, const words & own) const {
        const bool any = own.empty();
        for (const auto & item : node.items()) {
            const std::string & word = item.key();
            const bool bears = is_in(word, FOR_ALL) || is_in(word, own) ||
                               (any && (is_in(word, FOR_OBJECTS) || is_in(word, FOR_ARRAYS) || is_in(word, FOR_STRINGS) || is_in(word, FOR_NUMBERS)));
            if (bears && !is_in(word, taken) && !is_idle(word, item.value())) {
                refuse(path, word, word == "format" && item.value().is_string() ? "(" + item.value().get<std::string>() + ")" : "");
            }
        }
    }

    const json * found(const std::string & ref) const {
        const json * at = &m_root;
        for (const auto & step : string_split<std::string>(ref, '/')) {
            if (step == "#") {
                continue;
            }
            if (at->is_object() && at->contains(step)) {
                at = &at->at(step);
            } else {
                return nullptr;  // upstream refuses it, or finds it in a list
            }
        }
        return at;
    }

    void follow(const json & ref) {
        const std::string name = ref.is_string() ? ref.get<std::string>() : "";
        if (!name.empty() && m_seen.insert(name).second) {
            if (const json * target = found(name)) {
                read(*target, name);
            }
        }
    }

    void read_all(const json & nodes, const std::string & path) {
        for (size_t i = 0; nodes.is_array() && i < nodes.size(); ++i) {
            read(nodes.at(i), path + "/" + std::to_string(i));
        }
    }

    void read_typed(const json & node, const std::string & type, const std::string & path) {
        const bool has_fields = node.contains("properties") || (node.contains("additionalProperties") && node.at("additionalProperties") != true);
        if (node.contains("allOf") && !(type.empty() ? has_fields : type == "object" ? has_fields : type != "string")) {
            allow(node, path, { "allOf" }, {});
            read_parts(node.at("allOf"), path + "/allOf");
        } else if (type == "object" || (type.empty() && has_fields)) {
            read_object(node, path);
        } else if (type == "array" || (type.empty() && (node.contains("items") || node.contains("prefixItems")))) {
            read_array(node, path);
        } else if (type == "string" || (type.empty() && (node.contains("pattern") || node.contains("minLength") || node.contains("maxLength") ||
                                                         is_known_format(node)))) {
            read_string(node, path);
        } else if (type == "integer") {
            words taken = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" };
            taken.erase(std::remove_if(taken.begin(), taken.end(), [&](const std::string & word) {
                return (word == "exclusiveMinimum" && node.contains("minimum")) || (word == "exclusiveMaximum" && node.contains("maximum"));
            }), taken.end());
            allow(node, path, taken, FOR_NUMBERS);
        } else if (type == "number") {
            allow(node, path, {}, FOR_NUMBERS);
        } else if (type == "boolean" || type == "null") {
            allow(node, path, {}, FOR_NOTHING);
        } else {
            allow(node, path, {}, {});
        }
    }

    void read_object(const json & node, const std::string & path) {
        allow(node, path, { "properties", "required", "additionalProperties" }, FOR_OBJECTS);
        const json properties = node.value("properties", json::object());
        for (const auto & name : node.value("required", json::array())) {
            if (name.is_string() && !(properties.is_object() && properties.contains(name.get<std::string>()))) {
                refuse(path, "required", "of '" + name.get<std::string>() + "', which 'properties' does not have");
            }
        }
        if (properties.is_object()) {
            for (const auto & item : properties.items()) {
                read(item.value(), path + "/properties/" + item.key());
            }
        }
        read(node.value("additionalProperties", json()), path + "/additionalProperties");
    }

    void read_array(const json & node, const std::string & path) {
        const std::string key = node.contains("items") ? "items" : "prefixItems";
        const json items = node.value(key, json());
        if (!items.is_array()) {
            allow(node, path, { key, "minItems", "maxItems", "additionalItems" }, FOR_ARRAYS);
            read(items, path + "/" + key);
            return;
        }
        const auto n = static_cast<double>(items.size());  // so many come, whatever the counts say
        words taken = { key, "additionalItems", "unevaluatedItems" };
        const auto count = [&](const char * word) { return node.contains(word) && node.at(word).is_number() ? node.at(word).get<double>() : n; };
        if (count("minItems") <= n && count("maxItems") >= n) {
            taken.insert(taken.end(), { "minItems", "maxItems" });
        }
        allow(node, path, taken, FOR_ARRAYS);
        read_all(items, path + "/" + key);
    }

    static bool is_known_format(const json & node) {
        static const words KNOWN = { "date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5" };
        return node.contains("format") && node.at("format").is_string() && is_in(node.at("format").get<std::string>(), KNOWN);
    }

    void read_string(const json & node, const std::string & path) {
        if (node.contains("pattern") && node.at("pattern").is_string() && node.at("pattern") != "") {
            allow(node, path, { "pattern" }, FOR_STRINGS);
            // a pattern that upstream cannot convert becomes any string
            if (json_schema_to_grammar({{ "type", "string" }, { "pattern", node.at("pattern") }}).find("root ::= string\n") != std::string::npos) {
                refuse(path, "pattern", "(patterns begin with ^ and end with $, and have none but plain groups)");
            }
        } else if (is_known_format(node)) {
            allow(node, path, { "format" }, FOR_STRINGS);
        } else {
            allow(node, path, { "minLength", "maxLength", "pattern" }, FOR_STRINGS);
        }
    }

    // Parts of allOf: objects, whose properties are put together, or enums.
    void read_parts(const json & nodes, const std::string & path) {
        bool objects = false, enums = false;
        for (size_t i = 0; nodes.is_array() && i < nodes.size(); ++i) {
            const json * part = &nodes.at(i);
            for (int n = 0; part != nullptr && part->is_object() && part->contains("$ref") && part->at("$ref").is_string() && n < 100; ++n) {
                part = found(part->at("$ref").get<std::string>());
            }
            const bool is_enum = part != nullptr && part->is_object() && part->contains("enum");
            if (part == nullptr || !part->is_object() || (!is_enum && !part->contains("properties"))) {
                refuse(path + "/" + std::to_string(i), "allOf", "of something else than objects with 'properties', or enums");
            }
            (is_enum ? enums : objects) = true;
            read(nodes.at(i), path + "/" + std::to_string(i));
        }
        if (objects && enums) {
            refuse(path, "allOf", "of objects and enums");
        }
    }

    const json &          m_root;
    const std::string     m_field;
    std::set<std::string> m_seen;
};

}  // namespace

void check_schema(const json & schema, const std::string & field) { reader(schema, field).read(schema, "#"); }

}  // namespace edgekv_server
