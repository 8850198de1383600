#include "llama-edgekv-forms.h"

#include "llama-edgekv-triggers.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace {

edgekv_forms        g_forms = {};
const llama_vocab * g_read  = nullptr;  // the vocabulary that the program has; the worker's

// what starts a form that is lazy
struct triggers {
    std::vector<std::pair<std::string, std::regex>> patterns;
    std::vector<llama_token>                        tokens;
};

// The form of one answer. Its fields are the worker's while anything waits, then the sampler's.
struct answer {
    int64_t               id;
    const llama_vocab *   vocab;
    std::string           form;
    std::vector<uint32_t> allowed;  // a bit for each token
    std::string           error;
    int                   n_waiting = 0;  // pieces of work; guarded by the worker's mutex
    // The sampler's alone: what is awaited before the form holds, or null, and the answer until then, with the end of each token in it.
    std::shared_ptr<const triggers>             awaited;
    std::string                                 text;
    std::vector<std::pair<llama_token, size_t>> tokens;
};

using answer_ptr = std::shared_ptr<answer>;

// Computes what may follow a token while the model computes what does. One thread: the program's functions would wait for each other.
class worker {
public:
    void post(const answer_ptr & of, std::function<void()> work) {
        const std::lock_guard<std::mutex> lock(m_mutex);
        if (!m_begun) {
            m_begun = true;
            std::thread([this] { run(); }).detach();
        }
        of->n_waiting++;
        m_work.emplace_back(of, std::move(work));
        m_posted.notify_one();
    }

    void wait(const answer_ptr & of) {
        std::unique_lock<std::mutex> lock(m_mutex);
        m_done.wait(lock, [&] { return of->n_waiting == 0; });
    }

    int64_t new_id() {
        const std::lock_guard<std::mutex> lock(m_mutex);
        return ++m_last_id;
    }

private:
    void run() {
        std::unique_lock<std::mutex> lock(m_mutex);
        for (;;) {
            m_posted.wait(lock, [&] { return !m_work.empty(); });
            auto [of, work] = std::move(m_work.front());
            m_work.pop_front();
            lock.unlock();
            work();
            lock.lock();
            of->n_waiting--;
            m_done.notify_all();
        }
    }

    std::mutex              m_mutex;
    std::condition_variable m_posted, m_done;
    bool                    m_begun   = false;
    int64_t                 m_last_id = 0;
    std::deque<std::pair<answer_ptr, std::function<void()>>> m_work;
};

worker & g_worker = *new worker;  // its thread outlives main()

std::string piece_of(const llama_vocab * vocab, llama_token token) {
    std::string piece(256, 0);
    int length = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
    if (length < 0) {
        piece.resize(-length);
        length = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
    }
    piece.resize(length);
    return piece;
}

void read_vocabulary(const llama_vocab * vocab) {
    if (vocab == g_read) {
        return;
    }
    const int32_t        n = llama_vocab_n_tokens(vocab);
    std::string          pieces;
    std::vector<int32_t> ends;
    std::vector<uint8_t> kinds;
    for (llama_token token = 0; token < n; token++) {
        const std::string piece = piece_of(vocab, token);
        pieces += piece;
        ends.push_back(static_cast<int32_t>(pieces.size()));
        const int  attributes = llama_vocab_get_attr(vocab, token);
        // what a template marks parts of an answer with; as a text it would end a form's text
        const bool is_mark = (attributes & LLAMA_TOKEN_ATTR_USER_DEFINED) && piece.size() > 1 && piece.front() == '<' && piece.back() == '>';
        const bool is_kept = is_mark || (attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_UNUSED));
        kinds.push_back(llama_vocab_is_eog(vocab, token) ? EDGEKV_TOKEN_END : is_kept ? EDGEKV_TOKEN_SPECIAL : EDGEKV_TOKEN_TEXT);
    }
    const edgekv_vocabulary vocabulary = { vocab, reinterpret_cast<const void *>(&llama_tokenize), n, pieces.data(), ends.data(), kinds.data() };
    g_forms.read(&vocabulary);
    g_read = vocab;
}

// `begun`: what the answer is so far
void begin(answer & of, const std::string & begun) {
    read_vocabulary(of.vocab);
    if (!g_forms.begin(of.id, of.form.c_str(), begun.c_str(), &of.error) && of.error.empty()) {
        of.error = "the answer's form could not be read; the log says why";
    }
}

// token -1: none yet
void follow(answer & of, llama_token token) {
    if (of.error.empty() && !g_forms.follow(of.id, token, of.allowed.data(), &of.error) && of.error.empty()) {
        of.error = "what follows in the answer's form could not be computed; the log says why";
    }
}

answer_ptr & answer_of(const llama_sampler * sampler) { return *static_cast<answer_ptr *>(sampler->ctx); }

extern llama_sampler_i g_sampler;

llama_sampler * make_sampler(const llama_vocab * vocab) {
    auto made     = std::make_shared<answer>();
    made->id      = g_worker.new_id();
    made->vocab   = vocab;
    made->allowed.resize((llama_vocab_n_tokens(vocab) + 31) / 32);
    return llama_sampler_init(&g_sampler, new answer_ptr(std::move(made)));
}

// Where the token completes a trigger, the form holds from there on; not if it cannot go on as the answer does, which is then no call.
void await_trigger(const answer_ptr & held, llama_token token) {
    const size_t last = held->text.size();
    held->text += piece_of(held->vocab, token);
    held->tokens.emplace_back(token, held->text.size());
    const auto & awaited = *held->awaited;
    size_t first = std::find(awaited.tokens.begin(), awaited.tokens.end(), token) == awaited.tokens.end() ? std::string::npos : last;
    for (auto one = awaited.patterns.begin(); one != awaited.patterns.end() && first == std::string::npos; ++one) {
        first = llama_edgekv_find_trigger(one->first, one->second, held->text);
    }
    if (first == std::string::npos) {
        return;
    }
    g_worker.wait(held);
    if (!held->error.empty()) {  // there is no such form
        held->awaited = nullptr;
        return;
    }
    std::string              begun;  // of a token whose beginning is not the trigger's
    std::vector<llama_token> behind;
    size_t                   from = 0;
    for (const auto & [one, to] : held->tokens) {
        if (from >= first) {
            behind.push_back(one);
        } else if (to > first) {
            begun = held->text.substr(first, to - first);
        }
        from = to;
    }
    g_worker.post(held, [held, begun, behind] {
        begin(*held, begun);
        if (behind.empty()) {
            follow(*held, -1);
        }
        for (const llama_token one : behind) {
            follow(*held, one);
        }
    });
    g_worker.wait(held);
    if (held->error.empty()) {
        held->awaited = nullptr;
    }
    held->error.clear();
    held->text.clear();
    held->tokens.clear();
}

void accept(llama_sampler * sampler, llama_token token) {
    const auto & held = answer_of(sampler);
    if (held->awaited) {
        return await_trigger(held, token);
    }
    g_worker.post(held, [held, token] { follow(*held, token); });
}

void apply(llama_sampler * sampler, llama_token_data_array * candidates) {
    const auto & held = answer_of(sampler);
    if (held->awaited) {
        return;
    }
    g_worker.wait(held);
    if (!held->error.empty()) {
        throw std::runtime_error(held->error);
    }
    // only what may follow is left, which the samplers behind read quicker than all
    const auto end = std::remove_if(candidates->data, candidates->data + candidates->size, [&](const llama_token_data & candidate) {
        const auto token = static_cast<uint32_t>(candidate.id);
        return !(held->allowed[token / 32] >> (token % 32) & 1);
    });
    candidates->size = static_cast<size_t>(end - candidates->data);
    if (candidates->size == 0) {
        throw std::runtime_error("no token may follow in the answer's form");
    }
}

llama_sampler * clone(const llama_sampler * sampler) {
    const auto from = answer_of(sampler);
    auto *     made = make_sampler(from->vocab);
    const auto to   = answer_of(made);
    to->form    = from->form;
    to->awaited = from->awaited;
    to->text    = from->text;
    to->tokens  = from->tokens;
    g_worker.post(to, [from, to] {
        to->allowed = from->allowed;
        to->error   = from->error;
        g_forms.copy(from->id, to->id);
    });
    return made;
}

void free_answer(llama_sampler * sampler) {
    auto * const held = static_cast<answer_ptr *>(sampler->ctx);
    g_worker.wait(*held);  // the vocabulary may end next
    g_worker.post(*held, [id = (*held)->id] { g_forms.end(id); });
    delete held;
}

llama_sampler_i g_sampler = { [](const llama_sampler *) { return "edgekv-form"; }, accept, apply, nullptr, clone, free_answer,
                              nullptr, nullptr, nullptr, nullptr, nullptr, nullptr };

}  // namespace

void llama_edgekv_set_forms(const edgekv_forms & forms) {
    g_forms = forms;
    g_read  = nullptr;
}

bool llama_edgekv_is_form(const std::string & grammar) { return grammar.rfind("%edgekv", 0) == 0 || grammar.rfind("%llguidance", 0) == 0; }

std::string llama_edgekv_check_form(const std::string & form, const llama_vocab * vocab) {
    std::string why;
    if (vocab != nullptr && g_forms.read != nullptr) {
        const auto asking = std::make_shared<answer>();
        g_worker.post(asking, [vocab] { read_vocabulary(vocab); });
        g_worker.wait(asking);
    }
    if (g_forms.check == nullptr || (!g_forms.check(form.c_str(), &why) && why.empty())) {
        return "it could not be checked; the log says why";
    }
    return why;
}

static llama_sampler * make_form(const llama_vocab * vocab, const std::string & grammar, std::shared_ptr<const triggers> awaited) {
    auto *     made = make_sampler(vocab);
    const auto held = answer_of(made);
    held->form      = grammar;
    held->awaited   = std::move(awaited);
    g_worker.post(held, [held] {
        begin(*held, "");
        follow(*held, -1);
    });
    return made;
}

llama_sampler * llama_edgekv_form(const llama_vocab * vocab, const std::string & grammar, bool is_lazy) {
    const bool holds = llama_edgekv_is_form(grammar) && (!is_lazy || grammar[1] == 'l') && g_forms.begin != nullptr;
    return holds ? make_form(vocab, grammar, nullptr) : nullptr;
}

llama_sampler * llama_edgekv_form(const llama_vocab * vocab, const std::string & grammar, const std::vector<std::string> & patterns,
                                  const std::vector<llama_token> & tokens) {
    if (!llama_edgekv_is_form(grammar) || g_forms.begin == nullptr) {
        return nullptr;
    }
    const auto awaited = std::make_shared<triggers>();
    awaited->tokens    = tokens;
    for (const auto & pattern : patterns) {
        awaited->patterns.emplace_back(pattern, llama_edgekv_trigger(pattern));
    }
    return make_form(vocab, grammar, awaited);
}
