#include "llama-edgekv-forms.h"

#include "llama.h"

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

// The form of one answer. Its fields are the worker's while anything waits, then the sampler's.
struct answer {
    int64_t               id;
    const llama_vocab *   vocab;
    std::vector<uint32_t> allowed;  // a bit for each token
    std::string           error;
    int                   n_waiting = 0;  // pieces of work; guarded by the worker's mutex
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

void read_vocabulary(const llama_vocab * vocab) {
    if (vocab == g_read) {
        return;
    }
    const int32_t        n = llama_vocab_n_tokens(vocab);
    std::string          pieces;
    std::vector<int32_t> ends;
    std::vector<uint8_t> kinds;
    std::vector<char>    piece(256);
    for (llama_token token = 0; token < n; token++) {
        int length = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
        if (length < 0) {
            piece.resize(-length);
            length = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
        }
        pieces.append(piece.data(), length);
        ends.push_back(static_cast<int32_t>(pieces.size()));
        const int  attributes = llama_vocab_get_attr(vocab, token);
        // what a template marks parts of an answer with; as a text it would end a form's text
        const bool is_mark = (attributes & LLAMA_TOKEN_ATTR_USER_DEFINED) && length > 1 && piece[0] == '<' && piece[length - 1] == '>';
        const bool is_kept = is_mark || (attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_UNUSED));
        kinds.push_back(llama_vocab_is_eog(vocab, token) ? EDGEKV_TOKEN_END : is_kept ? EDGEKV_TOKEN_SPECIAL : EDGEKV_TOKEN_TEXT);
    }
    const edgekv_vocabulary vocabulary = { vocab, reinterpret_cast<const void *>(&llama_tokenize), n, pieces.data(), ends.data(), kinds.data() };
    g_forms.read(&vocabulary);
    g_read = vocab;
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

void accept(llama_sampler * sampler, llama_token token) {
    const auto & held = answer_of(sampler);
    g_worker.post(held, [held, token] { follow(*held, token); });
}

void apply(llama_sampler * sampler, llama_token_data_array * candidates) {
    const auto & held = answer_of(sampler);
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

std::string llama_edgekv_check_form(const std::string & form) {
    std::string why;
    if (g_forms.check == nullptr || (!g_forms.check(form.c_str(), &why) && why.empty())) {
        return "it could not be checked; the log says why";
    }
    return why;
}

llama_sampler * llama_edgekv_form(const llama_vocab * vocab, const std::string & grammar) {
    if (!llama_edgekv_is_form(grammar) || g_forms.begin == nullptr) {
        return nullptr;
    }
    auto *     made = make_sampler(vocab);
    const auto held = answer_of(made);
    g_worker.post(held, [held, grammar] {
        read_vocabulary(held->vocab);
        if (!g_forms.begin(held->id, grammar.c_str(), &held->error) && held->error.empty()) {
            held->error = "the answer's form could not be read; the log says why";
        }
        follow(*held, -1);
    });
    return made;
}
