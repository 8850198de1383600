#include "server/prefix_cache/rolling.h"

#include "server/prefix_cache/cache.h"
#include "server/prefix_cache/recall.h"

#include "chat.h"
#include "llama-edgekv.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace edgekv_server {

namespace {

constexpr int STEPS     = 4;   // steps of a context; one leaves at a time
constexpr int ROOM      = 8;   // an answer without a limit gets 1/ROOM of the context
constexpr int MOVED_RUN = 16;  // fewest tokens worth moving; fewer are read again

// Calls act(conversation) with that of a task, in any thread, unless nothing of it rolls, or its request has ended.
template <typename Act>
void with_conversation(int task, Act act) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    if (auto * found = task_of(cache, task); found && !found->rolled.exchanges.empty()) {
        act(found->rolled);
    }
}

// whether a message of a request is a user's
bool of_user(const json & message) { return json_value(message, "role", std::string()) == "user"; }

common_chat_msg message(const char * role, const char * content) {
    common_chat_msg m;
    m.role    = role;
    m.content = content;

    return m;
}

// The text that a template puts between an answer and the next user message, without surrounding white space; empty: unknown.
std::string user_marker(const server_chat_params & chat) {
    common_chat_templates_inputs inputs;
    inputs.add_generation_prompt = false;
    inputs.use_jinja             = chat.use_jinja;
    inputs.force_pure_content    = true;
    inputs.chat_template_kwargs  = chat.chat_template_kwargs;
    inputs.messages              = { message("user", "EDGEKV-ONE"), message("assistant", "EDGEKV-TWO") };
    try {
        const auto before = common_chat_templates_apply(chat.tmpls.get(), inputs).prompt;
        inputs.messages.push_back(message("user", "EDGEKV-THREE"));
        const auto all = common_chat_templates_apply(chat.tmpls.get(), inputs).prompt;
        const auto end = all.find("EDGEKV-THREE");
        if (all.compare(0, before.size(), before) != 0 || end == std::string::npos) {
            return {};
        }

        return string_strip(all.substr(before.size(), end - before.size()));
    } catch (const std::exception &) {
        return {};  // the template rejects such a conversation
    }
}

// the marker of a server's template, found once
std::string kept_user_marker(const server_chat_params & chat) {
    auto & cache = the_cache();
    const void * const of = chat.tmpls.get();
    std::unique_lock<std::mutex> lock(cache.mutex);
    if (cache.marker_of != of) {
        lock.unlock();
        std::string marker = user_marker(chat);
        lock.lock();
        cache.marker    = std::move(marker);
        cache.marker_of = of;
    }

    return cache.marker;
}

std::vector<exchange> exchanges_of(const common_chat_msg_spans & spans) {
    std::vector<exchange> found;
    for (const auto & span : spans.spans) {
        if (span.role == COMMON_CHAT_ROLE_USER) {
            found.push_back({ static_cast<int>(span.pos), false, false });
        }
    }

    return found;
}

// Keeps the exchanges of pinned messages. Messages before the first user's message stay anyway.
void pin(std::vector<exchange> & exchanges, const json & body) {
    if (!body.contains("edgekv_pinned")) {
        return;
    }
    const auto & pinned = body.at("edgekv_pinned");
    const bool   listed = body.contains("messages") && body.at("messages").is_array() && pinned.is_array();
    const int    n      = listed ? static_cast<int>(body.at("messages").size()) : 0;
    std::vector<int> exchange_of(n, -1);  // of each message
    int n_users = 0;
    for (int i = 0; i < n; ++i) {
        n_users += of_user(body.at("messages").at(i));
        exchange_of[i] = n_users - 1;
    }
    for (const auto & number : listed ? pinned : json::array({ "" })) {
        if (!number.is_number_integer() || number.get<int64_t>() < 0 || number.get<int64_t>() >= n) {
            throw std::invalid_argument("the field 'edgekv_pinned' must list numbers of 'messages', from 0 on");
        }
        const int at = exchange_of[number.get<int>()];
        if (at >= 0 && n_users == static_cast<int>(exchanges.size())) {
            exchanges[at].stays = true;
        } else if (at >= 0) {  // the template renders messages differently, so the pinned one cannot be found
            std::for_each(exchanges.begin(), exchanges.end(), [](exchange & e) { e.stays = true; });
        }
    }
}

int step_of(int n_ctx) { return std::max(1, n_ctx/STEPS); }

// The ranges that leave a slot with n_tokens of a conversation to make room.
std::vector<edgekv_run> leaving(const rolled_conversation & c, int n_tokens, int room, int n_ctx) {
    const int excess = n_tokens + c.n_left + room - n_ctx;
    const int step   = step_of(n_ctx);
    int n_wanted = (excess + step - 1)/step*step - c.n_left;
    std::vector<edgekv_run> ranges;
    for (size_t i = 0; i + 1 < c.exchanges.size() && n_wanted > 0; ++i) {
        if (!c.exchanges[i].stays) {
            ranges.push_back({ c.exchanges[i].first, c.exchanges[i + 1].first - c.exchanges[i].first });
            n_wanted -= ranges.back().n;
        }
    }

    return ranges;
}

// Takes ranges, in order, out of a conversation.
void take_out(rolled_conversation & c, const std::vector<edgekv_run> & ranges) {
    for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        c.exchanges.erase(std::find_if(c.exchanges.begin(), c.exchanges.end(), [&](const exchange & e) { return e.first == range->first; }));
        for (auto & e : c.exchanges) {
            e.first -= e.first > range->first ? range->n : 0;
        }
    }
    // translates to positions in the whole prompt, and merges neighbouring ranges
    std::vector<edgekv_run> left = c.left;
    for (auto range : ranges) {
        for (const auto & before : c.left) {
            range.first += before.first <= range.first ? before.n : 0;
        }
        c.n_left += range.n;
        left.push_back(range);
        c.gone.push_back(range);
    }
    std::sort(c.gone.begin(), c.gone.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
    std::sort(left.begin(), left.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
    c.left.clear();
    for (const auto & range : left) {
        if (!c.left.empty() && c.left.back().first + c.left.back().n == range.first) {
            c.left.back().n += range.n;
        } else {
            c.left.push_back(range);
        }
    }
}

// Takes what came back out of a conversation again; it left before.
std::vector<edgekv_run> take_back(rolled_conversation & c) {
    std::vector<edgekv_run> ranges;
    for (size_t i = 0; i + 1 < c.exchanges.size(); ++i) {
        if (c.exchanges[i].back) {
            ranges.push_back({ c.exchanges[i].first, c.exchanges[i + 1].first - c.exchanges[i].first });
        }
    }
    c.exchanges.erase(std::remove_if(c.exchanges.begin(), c.exchanges.end(), [](const exchange & e) { return e.back; }), c.exchanges.end());
    c.exchanges.back().first -= total(ranges);

    return ranges;
}

int room_of(const server_task & task, int n_ctx) {
    return task.params.n_predict > 0 ? std::min(task.params.n_predict, step_of(n_ctx)) : n_ctx/ROOM;
}

json ranges_json(const std::vector<edgekv_run> & ranges) {
    json listed = json::array();
    for (const auto & range : ranges) {
        listed.push_back(json::array({ range.first, range.n }));
    }

    return { { "n", total(ranges) }, { "ranges", listed } };
}

}  // namespace

int total(const std::vector<edgekv_run> & ranges) {
    return std::accumulate(ranges.begin(), ranges.end(), 0, [](int n, const edgekv_run & range) { return n + range.n; });
}

common_chat_msg_spans message_spans(const common_chat_msg_spans & found, const server_tokens & tokens, const json & body,
                                    const server_chat_params & chat, const llama_vocab * vocab) {
    if (!body.contains("messages") || !body.at("messages").is_array() || !chat.tmpls) {
        return found;
    }
    const auto & messages = body.at("messages");
    const size_t n_users  = std::count_if(messages.begin(), messages.end(), of_user);
    if (exchanges_of(found).size() == n_users) {
        return found;
    }
    common_chat_msg_delimiters delimiters;
    delimiters.add(COMMON_CHAT_ROLE_USER, kept_user_marker(chat));
    delimiters.tokenize(vocab);
    if (delimiters.delimiters.front().tokens.empty()) {
        return found;
    }
    auto ours = tokens.find_message_spans(delimiters);

    return exchanges_of(ours).size() == n_users ? ours : found;
}

void roll_prompt(server_task & task, int n_ctx, const json & body) {
    if (!the_cache().rolls || task.type != SERVER_TASK_TYPE_COMPLETION || task.tokens.has_mtmd) {
        return;
    }
    rolled_conversation c;
    c.exchanges = exchanges_of(task.params.message_spans);
    pin(c.exchanges, body);
    const int n_tokens = task.n_tokens();
    const int room     = room_of(task, n_ctx);
    auto ranges = leaving(c, n_tokens, room, n_ctx);
    if (!ranges.empty() && the_cache().moves && recalls()) {
        ranges  = leaving(c, n_tokens, room + step_of(n_ctx), n_ctx);
        c.whole = std::make_shared<llama_tokens>(task.tokens.get_tokens());
        c.n_messages = body.contains("messages") && body.at("messages").is_array() ? static_cast<int>(body.at("messages").size()) : 0;
    }
    if (!ranges.empty() && n_tokens - total(ranges) < n_ctx) {
        llama_tokens tokens = task.tokens.get_tokens();
        for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
            tokens.erase(tokens.begin() + range->first, tokens.begin() + range->first + range->n);
            auto & spans = task.params.message_spans.spans;
            spans.erase(std::remove_if(spans.begin(), spans.end(), [&](const auto & span) {
                const int at = static_cast<int>(span.pos);
                return at >= range->first && at < range->first + range->n;
            }), spans.end());
            for (auto & span : spans) {
                span.pos -= static_cast<int>(span.pos) > range->first ? range->n : 0;
            }
        }
        task.tokens.clear();
        task.tokens.insert(tokens);
        if (the_cache().moves) {
            task.params.n_cache_reuse = MOVED_RUN;
        }
        take_out(c, ranges);
        SRV_INF("%d oldest tokens of a conversation of %d leave the context of %d\n", c.n_left, n_tokens, n_ctx);
    }
    note_of(task.id).rolled = std::move(c);
}

std::vector<edgekv_run> roll_ranges(int task, int n_tokens, int n_ctx) {
    if (!the_cache().moves) {
        return {};
    }
    std::vector<edgekv_run> ranges;
    with_conversation(task, [&](rolled_conversation & c) {
        ranges = take_back(c);
        if (ranges.empty()) {
            ranges = leaving(c, n_tokens, n_ctx/ROOM, n_ctx);
            take_out(c, ranges);
        }
    });
    if (!ranges.empty()) {
        SRV_INF("%d oldest tokens of a conversation leave the context of %d while it is answered\n", total(ranges), n_ctx);
    }
    std::reverse(ranges.begin(), ranges.end());

    return ranges;
}

void add_rolled(json & usage, const rolled_conversation & c) {
    if (c.n_left > 0) {
        usage["left"] = ranges_json(c.left);
    }
    if (!c.back.empty()) {
        usage["back"] = ranges_json(c.back);
        usage["back"]["before"] = c.exchanges.back().first + c.n_left - total(c.back);
    }
}

gone_exchanges gone_of(int task) {
    const auto c = known_of(task).rolled;
    if (!c.whole || c.gone.empty()) {
        return {};
    }
    const int turn = c.exchanges.back().first;
    return { c.whole, c.gone, turn + c.n_left - total(c.back), turn, c.n_messages };
}

void came_back(int task, const std::vector<edgekv_run> & ranges) {
    with_conversation(task, [&](rolled_conversation & c) {
        c.back = ranges;
        auto newest = c.exchanges.back();
        c.exchanges.pop_back();
        for (const auto & range : ranges) {
            c.exchanges.push_back({ newest.first, false, true });
            newest.first += range.n;
        }
        c.exchanges.push_back(newest);
    });
}

int most_back(const server_task & task, int n_tokens, int n_ctx) {
    return std::max(0, std::min(step_of(n_ctx), n_ctx - n_tokens - room_of(task, n_ctx)));
}

}  // namespace edgekv_server

int edgekv_server_moves() { return edgekv_server::the_cache().moves; }

void edgekv_server_roll(int on) { edgekv_server::the_cache().rolls = on != 0; }
