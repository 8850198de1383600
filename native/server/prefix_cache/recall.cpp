#include "server/prefix_cache/recall.h"

#include "llama-edgekv.h"
#include "server/prefix_cache/media.h"
#include "server/scheduling/limits.h"

#include <algorithm>

namespace edgekv_server {

namespace {

constexpr int PROBE = 256;  // tokens of the newest message, from its end, that tell which exchanges it is near
constexpr int FRAME = 8;    // tokens at a prompt's end that open an answer, and which a template may write differently once there is one

edgekv_exchanges told_gone(const gone_exchanges & of) {
    return { of.whole->data(), static_cast<int>(of.whole->size()), of.gone.data(), static_cast<int>(of.gone.size()) };
}

// whether a prompt goes on with the message for which exchanges came back
bool is_same_turn(const edgekv_recalled & before, const edgekv_prefix_slot & slot, const server_task & task, const gone_exchanges & now) {
    const auto & whole  = *before.of.whole;
    const bool has_more = now.n_messages > before.of.n_messages;
    const auto n_known  = whole.size() - (has_more ? std::min<size_t>(FRAME, whole.size()) : 0);
    const bool alike    = before.space == task.tokens.edgekv_space && before.adapters == slot.adapters && before.of.whole_turn == now.whole_turn;
    if (!alike || now.whole->size() < n_known || (!has_more && now.whole->size() != n_known)) {
        return false;
    }
    return std::equal(whole.begin(), whole.begin() + n_known, now.whole->begin());
}

// Puts the tokens of exchanges into a task's prompt, before its newest message.
void insert(server_task & task, const gone_exchanges & of, const std::vector<edgekv_run> & ranges) {
    llama_tokens tokens = task.tokens.get_tokens();
    auto at = tokens.begin() + of.turn;
    for (const auto & range : ranges) {
        at = tokens.insert(at, of.whole->begin() + range.first, of.whole->begin() + range.first + range.n) + range.n;
    }
    const int n_more = static_cast<int>(at - tokens.begin()) - of.turn;
    task.tokens.clear();
    task.tokens.insert(tokens);
    for (auto & span : task.params.message_spans.spans) {
        span.pos += static_cast<int>(span.pos) >= of.turn ? n_more : 0;
    }
    came_back(task.id, ranges);
}

// The exchanges that the newest message is near. It is read for that, and forgotten again.
std::vector<edgekv_run> chosen(const edgekv_prefix_slot & slot, const server_task & task, const gone_exchanges & of, int n_ctx) {
    server_tokens & held = *slot.held;
    const int n    = static_cast<int>(task.tokens.size());
    const int most = most_back(task, n, n_ctx);
    append_tokens(held, task.tokens, std::max(of.turn, n - PROBE), n);
    const int32_t seq_id = slot.seq_id;
    llama_edgekv_set_prompts(slot.lctx, &seq_id, 1);
    std::vector<int> which(of.gone.size());
    int n_which = 0;
    const int end = static_cast<int>(held.size());
    if (most > 0 && compute_tokens(slot.lctx, slot.mctx, slot.seq_id, held, held, of.turn, end)) {
        const auto gone = told_gone(of);
        const edgekv_told_tokens all(slot, held, end);
        n_which = current().recalls->choose(&all.told, of.turn, &gone, most, which.data());
    }
    llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, held.pos_next(of.turn), -1);
    held.keep_first(of.turn);
    std::vector<edgekv_run> ranges;
    for (int i = 0; i < n_which; ++i) {
        ranges.push_back(of.gone.at(which[i]));
    }

    return ranges;
}

// Puts in the rows of exchanges, up to the first whose rows are not kept. Returns the number of tokens.
int put_rows(const edgekv_prefix_slot & slot, const server_task & task, const gone_exchanges & of, const std::vector<edgekv_run> & ranges) {
    auto cached = known_of(task.id).cached;
    const auto gone  = told_gone(of);
    const int  first = static_cast<int>(slot.held->size());
    for (const auto & range : ranges) {
        const int n = static_cast<int>(slot.held->size());
        const int which = static_cast<int>(std::find_if(of.gone.begin(), of.gone.end(), [&](const auto & one) { return one.first == range.first; }) -
                                           of.gone.begin());
        const edgekv_told_tokens all(slot, *slot.held, n);
        const int position = current().recalls->put(&all.told, &gone, which, &cached);
        if (position < 0) {
            llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, slot.held->pos_next(n), -1);
            break;
        }
        append_tokens(*slot.held, task.tokens, n, n + range.n);
        llama_edgekv_turn(slot.lctx, slot.seq_id, n, n + range.n, n - position);
    }
    const int n_put = static_cast<int>(slot.held->size()) - first;
    if (n_put > 0) {
        edgekv_prefix_moved(slot.seq_id, first);
        set_cached(task.id, cached);
        *slot.n_cached += n_put;
    }

    return n_put;
}

}  // namespace

bool recalls() { return current().recalls != nullptr; }

void recall_leave(const edgekv_prefix_slot & slot) {
    const auto of = gone_of(slot.task);
    if (!of.whole) {
        return;
    }
    edgekv_prefix_settle();
    const auto held = slot.held->get_tokens();
    const auto end  = held.begin() + std::clamp(edgekv_prefix_computed(slot), 0, static_cast<int>(held.size()));
    std::vector<int> at;
    for (const auto & range : of.gone) {
        const auto first = of.whole->begin() + range.first;
        const auto found = std::search(held.begin(), end, first, first + range.n);
        at.push_back(found == end ? -1 : static_cast<int>(found - held.begin()));
    }
    if (std::all_of(at.begin(), at.end(), [](int one) { return one < 0; })) {
        return;
    }
    const auto gone = told_gone(of);
    const edgekv_told_tokens all(slot, *slot.held, static_cast<int>(end - held.begin()));
    current().recalls->leave(&all.told, &gone, at.data());
}

void recall_begins(const edgekv_prefix_slot & slot, server_task & task) {
    auto & sequence = edgekv_sequence_of(slot.seq_id);
    sequence.recalls = -1;
    const auto of = gone_of(task.id);
    if (!of.whole || task.tokens.has_mtmd) {
        sequence.recalled = {};
        return;
    }
    recall_leave(slot);
    if (const auto & before = sequence.recalled; before.of.whole && is_same_turn(before, slot, task, of)) {
        insert(task, of, before.ranges);
        return;
    }
    sequence.recalled = {};
    sequence.recalls  = task.id;
    sequence.turn     = of.turn;
}

void recall(const edgekv_prefix_slot & slot, server_task & task, int n_ctx) {
    edgekv_sequence_of(slot.seq_id).recalls = -1;
    const auto of = gone_of(task.id);
    if (!of.whole) {
        return;
    }
    const int64_t begun = ggml_time_us();
    edgekv_prefix_settle();
    const auto ranges = chosen(slot, task, of, n_ctx);
    insert(task, of, ranges);
    const int n_put = put_rows(slot, task, of, ranges);
    edgekv_sequence_of(slot.seq_id).recalled = { of, ranges, task.tokens.edgekv_space, slot.adapters };
    SRV_INF("%d of %d exchanges come back before a message: %d tokens, the rows of %d in place, after %.1f ms\n", static_cast<int>(ranges.size()),
            static_cast<int>(of.gone.size()), total(ranges), n_put, static_cast<double>(ggml_time_us() - begun)/1000.0);
}

}  // namespace edgekv_server
