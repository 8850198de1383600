#include "server/http/fields.h"

#include "edgekv_server.h"
#include "server/http/field_table.h"
#include "server/scheduling/limits.h"

#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace edgekv_server {
namespace {

constexpr size_t MOST_TOLD  = 20;   // names in a header, which clients bound
constexpr size_t MOST_SHOWN = 100;  // bytes of a value in a sentence

thread_local std::vector<std::string> t_ignored;  // of the request that this thread reads

// "... from A to B" and "... from A"
bool within(const std::string & allowed, double value) {
    const size_t from = allowed.find(" from "), to = allowed.find(" to ");
    return std::isfinite(value) && (from == std::string::npos || value >= std::strtod(allowed.c_str() + from + 6, nullptr)) &&
           (to == std::string::npos || value <= std::strtod(allowed.c_str() + to + 4, nullptr));
}

bool has_kind(const json & value, const std::string & kind) {
    if (kind == "texts")    { return value.is_string(); }
    if (kind == "integers") { return value.is_number_integer(); }
    if (kind == "numbers")  { return value.is_number(); }
    return value.is_object();
}

bool fits_one(const json & value, const std::string & allowed) {
    if (allowed.find(" not empty") != std::string::npos && (value.is_string() ? value == "" : value.empty())) {
        return false;
    }
    if (string_starts_with(allowed, "a boolean")) { return value.is_boolean(); }
    if (string_starts_with(allowed, "a text"))    { return value.is_string(); }
    if (string_starts_with(allowed, "an object")) { return value.is_object(); }
    if (string_starts_with(allowed, "a number"))  { return value.is_number() && within(allowed, value.get<double>()); }
    if (string_starts_with(allowed, "an integer")) {
        return value.is_number() && value.get<double>() == std::floor(value.get<double>()) && within(allowed, value.get<double>());
    }
    if (string_starts_with(allowed, "a list of ")) {
        const std::string kind = string_split(allowed.substr(10), " ")[0];
        return value.is_array() && std::all_of(value.begin(), value.end(), [&](const json & one) { return has_kind(one, kind); });
    }
    if (allowed == "0") { return value.is_number() && value == 0; }
    if (string_starts_with(allowed, "one of ")) {
        const auto words = string_split(allowed.substr(7), ", ");
        return value.is_string() && std::find(words.begin(), words.end(), value.get<std::string>()) != words.end();
    }
    return value.is_array();
}

bool fits(const json & value, const std::string & allowed) {
    const auto ways = string_split(allowed, " or ");
    return allowed.empty() || std::any_of(ways.begin(), ways.end(), [&](const std::string & way) { return fits_one(value, way); });
}

std::string shown(const json & value) {
    const std::string text = safe_json_to_str(value);
    return text.size() > MOST_SHOWN ? text.substr(0, validate_utf8(text.substr(0, MOST_SHOWN))) + "..." : text;
}

const field_row * row_of(endpoint where, const std::string & name) {
    const auto found = std::find_if(std::begin(FIELDS), std::end(FIELDS), [&](const field_row & row) {
        return name == row.name && std::string(row.where).find(static_cast<char>(where)) != std::string::npos;
    });
    return found == std::end(FIELDS) ? nullptr : found;
}

// whether a field's own fields stand in the table
bool is_open(endpoint where, const std::string & name) {
    return std::any_of(std::begin(FIELDS), std::end(FIELDS), [&](const field_row & row) {
        return string_starts_with(row.name, name + ".") && std::string(row.where).find(static_cast<char>(where)) != std::string::npos;
    });
}

// a field that no row knows
void pass_over(const std::string & name) {
    if (current().strict) {
        decline("there is no field '" + name.substr(0, MOST_SHOWN) + "' here; FIELDS.md lists those that there are");
    }
    has_no_effect(name);
}

void check_all(const json & fields, const std::string & outer, endpoint where) {
    for (const auto & item : fields.items()) {
        const std::string name = outer + item.key();
        const field_row * row  = row_of(where, name);
        const json &      value = item.value();
        if (value.is_null()) {
            continue;
        }
        if (row == nullptr) {
            pass_over(name);
        } else if (row->what == fate::done) {
            if (!fits(value, row->allowed)) {
                decline("the field '" + name + "' is " + shown(value) + "; it must be " + row->allowed);
            }
            if (value.is_object() && is_open(where, name)) {
                check_all(value, name + ".", where);
            }
        } else if (asks(value) && (*row->allowed == 0 || !fits(value, row->allowed))) {
            if (row->what == fate::refused) {
                decline("the field '" + name + "' is not supported; " + row->note);
            }
            has_no_effect(name);
        }
    }
}

// what no column says
void check_meaning(const json & body, endpoint where) {
    if (where == endpoint::responses) {  // what a server runs; clients send such tools whatever the server is
        for (const auto & tool : body.value("tools", json::array())) {
            const std::string type = json_value(tool, "type", std::string());
            if (type != "function") {
                pass_over("tools." + type);
            }
        }
    }
    if (where == endpoint::chat && body.contains("modalities") && body.at("modalities").is_array()) {
        for (const auto & modality : body.at("modalities")) {
            if (modality != "text") {
                decline("the field 'modalities' asks for " + modality.get<std::string>() + "; answers are text");
            }
        }
    }
    if (where == endpoint::completions && json_value(body, "best_of", 1) > json_value(body, "n", 1)) {
        decline("the field 'best_of' is not supported above 'n'; ask for 'n' and choose");
    }
    if (where == endpoint::chat && body.contains("edgekv_pinned") && !fits(body.at("edgekv_pinned"), "a list of integers")) {
        decline("the field 'edgekv_pinned' must list numbers of 'messages', from 0 on");
    }
    if (body.contains("id_slot") && body.at("id_slot").is_number() && body.at("id_slot").get<double>() >= current().n_slots) {
        decline("the field 'id_slot' is " + body.at("id_slot").dump() + "; the server has the slots 0 to " + std::to_string(current().n_slots - 1));
    }
    if (body.contains("samplers")) {
        const json & samplers = body.at("samplers");
        for (const auto & one : samplers.is_array() ? samplers : json::array()) {
            if (common_sampler_types_from_names({ one.get<std::string>() }).empty()) {
                decline("the field 'samplers' names " + shown(one) + "; /props lists the samplers that there are");
            }
        }
        if (samplers.is_string() && common_sampler_types_from_chars(samplers.get<std::string>()).size() != samplers.get<std::string>().size()) {
            decline("the field 'samplers' is " + shown(samplers) + "; each letter must be one of llama.cpp's --sampling-seq");
        }
    }
}

}  // namespace

void decline(const std::string & sentence) { throw std::invalid_argument(sentence); }

bool asks(const json & value) {
    if (value.is_boolean()) {
        return value.get<bool>();
    }
    return value.is_string() ? value != "" : !value.empty();  // a null is empty, a number is not
}

void check_fields(const json & body, endpoint where) {
    t_ignored.clear();
    if (!body.is_object()) {
        decline("the request must be a JSON object");
    }
    check_all(body, "", where);
    check_meaning(body, where);
}

void has_no_effect(const std::string & name) { t_ignored.push_back(name); }

void tell_ignored(server_http_res & res) {
    std::vector<std::string> told;
    for (size_t i = 0; i < std::min(t_ignored.size(), MOST_TOLD); ++i) {
        std::string & name = told.emplace_back(t_ignored[i], 0, MOST_SHOWN);
        std::replace_if(name.begin(), name.end(), [](unsigned char c) { return c <= ' ' || c > '~' || c == ','; }, '?');
    }
    if (!told.empty()) {
        res.headers["X-EdgeKV-Ignored"] = string_join(told, ", ") + (t_ignored.size() > MOST_TOLD ? ", ..." : "");
    }
}

}  // namespace edgekv_server

const char * edgekv_server_fields() {
    static const std::string text = [] {
        static const char * const FATES[] = { "done", "refused", "said" };
        std::string rows;
        for (const auto & row : edgekv_server::FIELDS) {
            rows += std::string(row.where) + "\t" + row.name + "\t" + FATES[static_cast<int>(row.what)] + "\t" + row.allowed + "\t" + row.note + "\n";
        }
        return rows;
    }();
    return text.c_str();
}
