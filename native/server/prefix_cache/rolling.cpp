#include "server/prefix_cache/rolling.h"

#include "server/prefix_cache/cache.h"
#include "server/prefix_cache/recall.h"
#include "server/scheduling/limits.h"

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
            found.push_back({ static_cast<int>(span.pos) });
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

// the exchanges with a flag, by positions in the whole prompt, in order
std::vector<edgekv_run> runs_of(const rolled_conversation & c, bool exchange::* flag) {
    std::vector<edgekv_run> runs;
    for (size_t i = 0; i + 1 < c.exchanges.size(); ++i) {
        if (c.exchanges[i].*flag) {
            runs.push_back({ c.exchanges[i].first, c.exchanges[i + 1].first - c.exchanges[i].first });
        }
    }

    return runs;
}

// where a position in the whole prompt that has not left lies in the slot
int in_slot(const rolled_conversation & c, int position) {
    int at = position + (position == c.exchanges.back().first ? c.n_back : 0);
    for (const auto & run : runs_of(c, &exchange::gone)) {
        at -= run.first < position ? run.n : 0;
    }

    return at;
}

// Lets exchanges leave a slot with n_tokens of a conversation to make room. Returns them, by positions in the whole prompt.
std::vector<edgekv_run> leave(rolled_conversation & c, int n_tokens, int room, int n_ctx) {
    const int n_left = total(runs_of(c, &exchange::gone));
    const int excess = n_tokens + n_left + room - n_ctx;
    const int step   = step_of(n_ctx);
    int n_wanted = (excess + step - 1)/step*step - n_left;
    std::vector<edgekv_run> ranges;
    for (size_t i = 0; i + 1 < c.exchanges.size() && n_wanted > 0; ++i) {
        auto & one = c.exchanges[i];
        if (!one.stays && !one.gone) {
            one.gone = true;
            ranges.push_back({ one.first, c.exchanges[i + 1].first - one.first });
            n_wanted -= ranges.back().n;
        }
    }

    return ranges;
}

int room_of(const server_task & task, int n_ctx) {
    return task.params.n_predict > 0 ? std::min(task.params.n_predict, step_of(n_ctx)) : n_ctx/ROOM;
}

// for a reply; neighbours that left are one range
json ranges_json(const std::vector<edgekv_run> & runs, bool merged) {
    json listed = json::array();
    int end = -1;
    for (const auto & run : runs) {
        if (merged && run.first == end) {
            listed.back()[1] = listed.back()[1].get<int>() + run.n;
        } else {
            listed.push_back(json::array({ run.first, run.n }));
        }
        end = run.first + run.n;
    }

    return { { "n", total(runs) }, { "ranges", listed } };
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
    if (!current().rolls || task.type != SERVER_TASK_TYPE_COMPLETION || task.tokens.has_mtmd) {
        return;
    }
    rolled_conversation c;
    c.exchanges = exchanges_of(task.params.message_spans);
    pin(c.exchanges, body);
    const int n_tokens = task.n_tokens();
    const int room     = room_of(task, n_ctx);
    auto after  = c;
    auto ranges = leave(after, n_tokens, room, n_ctx);
    if (!ranges.empty() && the_cache().moves && recalls()) {
        after   = c;
        ranges  = leave(after, n_tokens, room + step_of(n_ctx), n_ctx);
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
        c.exchanges = std::move(after.exchanges);
        SRV_INF("%d oldest tokens of a conversation of %d leave the context of %d\n", total(ranges), n_tokens, n_ctx);
    }
    note_of(task.id).rolled = std::move(c);
}

std::vector<edgekv_run> roll_ranges(int task, int n_tokens, int n_ctx) {
    if (!the_cache().moves) {
        return {};
    }
    std::vector<edgekv_run> ranges;
    with_conversation(task, [&](rolled_conversation & c) {
        if (c.n_back > 0) {  // what came back leaves first
            ranges = { { in_slot(c, c.exchanges.back().first) - c.n_back, c.n_back } };
            c.n_back = 0;
            return;
        }
        const auto before = c;
        ranges = leave(c, n_tokens, n_ctx/ROOM, n_ctx);
        for (auto & range : ranges) {
            range.first = in_slot(before, range.first);
        }
    });
    if (!ranges.empty()) {
        SRV_INF("%d oldest tokens of a conversation leave the context of %d while it is answered\n", total(ranges), n_ctx);
    }
    std::reverse(ranges.begin(), ranges.end());

    return ranges;
}

void add_rolled(json & usage, const rolled_conversation & c) {
    if (const auto left = runs_of(c, &exchange::gone); !left.empty()) {
        usage["left"] = ranges_json(left, true);
    }
    if (const auto back = runs_of(c, &exchange::back); !back.empty()) {
        usage["back"] = ranges_json(back, false);
        usage["back"]["before"] = c.exchanges.back().first;
    }
}

gone_exchanges gone_of(int task) {
    const auto c = known_of(task).rolled;
    const auto gone = runs_of(c, &exchange::gone);
    if (!c.whole || gone.empty()) {
        return {};
    }
    const int turn = c.exchanges.back().first;
    return { c.whole, gone, turn, in_slot(c, turn), c.n_messages };
}

void came_back(int task, const std::vector<edgekv_run> & ranges) {
    with_conversation(task, [&](rolled_conversation & c) {
        for (auto & one : c.exchanges) {
            one.back = std::any_of(ranges.begin(), ranges.end(), [&](const auto & range) { return range.first == one.first; });
        }
        c.n_back = total(ranges);
    });
}

int moves_in(const server_task & task, const server_tokens & held) {
    bool left = false;
    with_conversation(task.id, [&](const rolled_conversation & c) { left = !runs_of(c, &exchange::gone).empty(); });
    const int first = left ? static_cast<int>(held.get_common_prefix(task.tokens)) : 0;  // 0: another namespace's
    if (first == 0 || task.n_tokens() < first + MOVED_RUN) {
        return 0;
    }
    const auto & wanted = task.tokens.get_tokens();
    const auto & has    = held.get_tokens();
    const auto at = std::search(has.begin() + first, has.end(), wanted.begin() + first, wanted.begin() + first + MOVED_RUN);
    return static_cast<int>(std::mismatch(at, has.end(), wanted.begin() + first, wanted.end()).first - at);
}

int most_back(const server_task & task, int n_tokens, int n_ctx) {
    return std::max(0, std::min(step_of(n_ctx), n_ctx - n_tokens - room_of(task, n_ctx)));
}

}  // namespace edgekv_server

int edgekv_server_moves() { return edgekv_server::the_cache().moves; }
