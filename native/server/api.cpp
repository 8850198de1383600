#include "edgekv_server.h"

#include "llama-edgekv-forms.h"
#include "server/prefix_cache/caches.h"
#include "server/scheduling/limits.h"
#include "server/scheduling/pace.h"
#include "server/http/fields.h"
#include "server/scheduling/progress.h"
#include "server/http/published.h"
#include "server/http/sites.h"
#include "server/prefix_cache/spaces.h"
#include "server/prefix_cache/misses.h"
#include "server/scheduling/waits.h"

#include "mtmd.h"

#include "ui.h"  // made with llama.cpp's page

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <string>
#include <utility>

// libllama-server-impl declares these in no header
int llama_server(int argc, char ** argv);
void llama_server_terminate();

void edgekv_glue_set_prefixes(const edgekv_prefixes * prefixes);  // native/server/prefix_cache/prefixes.cpp
void edgekv_glue_set_rolling(bool on);                             // native/server/prefix_cache/rolling.cpp
void edgekv_glue_set_recalls(const edgekv_recalls * recalls);      // native/server/prefix_cache/recall.cpp
bool edgekv_glue_moves();                                          // native/server/prefix_cache/rolling.cpp
const char * edgekv_glue_projector();                              // native/server/prefix_cache/media.cpp
void edgekv_glue_set_fetch(int (*fetch)(const char *, void *));    // native/server/prefix_cache/media.cpp
void edgekv_glue_set_drafts(bool on);                              // native/server/scheduling/drafts.cpp

static std::string            g_error;
static edgekv_server::limits g_limits;

int edgekv_server_run(int argc, char ** argv) {
    g_error.clear();
    edgekv_server::begin(g_limits);

    try {
        return llama_server(argc, argv);
    } catch (const std::exception & e) {
        g_error = e.what();
    } catch (...) {
        g_error = "unknown exception";
    }

    return EDGEKV_SERVER_THREW;
}

void edgekv_server_terminate(void) {
    llama_server_terminate();
}

const char * edgekv_server_error(void) {
    return g_error.c_str();
}

void edgekv_server_set_prefixes(const edgekv_prefixes * prefixes) {
    edgekv_glue_set_prefixes(prefixes);
}

void edgekv_server_set_recalls(const edgekv_recalls * recalls) {
    edgekv_glue_set_recalls(recalls);
}

int edgekv_server_moves(void) {
    return edgekv_glue_moves() ? 1 : 0;
}

const char * edgekv_server_projector(void) {
    return edgekv_glue_projector();
}

int64_t edgekv_server_projector_bytes(const char * path) {
    int64_t total = 0;
    for (const auto & [device, bytes] : mtmd_get_memory_usage(path, mtmd_context_params_default())) {
        total += (int64_t) bytes;
    }
    return total;
}

int edgekv_server_has_ui(void) {
#ifdef LLAMA_UI_HAS_ASSETS
    return 1;
#else
#ifdef EDGEKV_UI
#error "EDGEKV_UI=on, but llama.cpp's build made no chat page; npm's reason stands above ('UI:')"
#endif
    return 0;
#endif
}

void edgekv_server_limit(double max_gap_s, int32_t n_slots, int32_t max_queue, int64_t max_body) {
    g_limits = { max_gap_s, n_slots, max_queue, max_body };
}

void edgekv_server_strict(int on) {
    edgekv_server::strict_fields(on != 0);
}

const char * edgekv_server_fields(void) {
    static const std::string text = edgekv_server::fields_text();
    return text.c_str();
}

void edgekv_server_roll(int on) {
    edgekv_glue_set_rolling(on != 0);
}

void edgekv_server_draft(int on) {
    edgekv_glue_set_drafts(on != 0);
}

void edgekv_server_admit(const char * names, int any_address) {
    edgekv_sites::admitted hosts;
    hosts.any_address = any_address != 0;
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
        hosts.names.push_back(name);
    }
    edgekv_sites::admit(hosts);
}

void edgekv_server_spaces(int32_t n, const char * const * keys, const char * const * spaces) {
    std::map<std::string, std::string> by_key;
    for (int32_t i = 0; i < n; ++i) {
        by_key[keys[i]] = spaces[i];
    }
    edgekv_server::set_spaces(std::move(by_key));
}

void edgekv_server_pace(edgekv_server_pacing * pacing) {
    const auto pace    = edgekv_server::report();
    const auto traffic = edgekv_server::current_traffic();
    *pacing = { pace.max_gap_s, pace.worst_gap_s, pace.last_gap_s, pace.n_batches, pace.n_prompt_batch, traffic.n_requests, traffic.n_refused,
                edgekv_server::running_slots() };
}

double edgekv_server_reading_s(int64_t first, int64_t n) {
    return edgekv_server::reading_s(first, n);
}

void edgekv_server_waited(edgekv_wait which, edgekv_server_waits * waits) {
    static_assert(edgekv_server::WAIT_BOUNDS.size() == EDGEKV_WAIT_BOUNDS, "the declaration has another number of bounds");
    const auto found = edgekv_server::waited(static_cast<edgekv_server::wait>(which));
    std::copy(edgekv_server::WAIT_BOUNDS.begin(), edgekv_server::WAIT_BOUNDS.end(), waits->bounds);
    std::copy(found.counts.begin(), found.counts.end(), waits->counts);
    waits->sum_s = found.sum_s;
}

void edgekv_server_prefix_counts(edgekv_prefix_counts * counts) {
    *counts = edgekv_server::prefix_counts();
}

void edgekv_server_on_request(void (*function)(const edgekv_server_request *)) {
    edgekv_server::on_request(function);
}

void edgekv_server_publish(const char * path, const char * type, const char * text) {
    edgekv_documents::publish(path, type, text);
}

void edgekv_server_withdraw(void) {
    edgekv_documents::withdraw();
}

int64_t edgekv_server_asked_ms(const char * path) {
    return edgekv_documents::asked_ms(path);
}

void edgekv_server_on_refresh(void (*function)(int idle)) {
    edgekv_documents::on_refresh(function);
}

void edgekv_server_on_caches(int (*function)(const char *, const char *, const char *, void *)) {
    edgekv_server::on_caches(function);
}

void edgekv_server_on_media(int (*function)(const char *, void *)) {
    edgekv_glue_set_fetch(function);
}

void edgekv_server_set_forms(const edgekv_forms * forms) {
    llama_edgekv_set_forms(*forms);
}

void edgekv_server_answer(void * out, const char * text) {
    *static_cast<std::string *>(out) = text;
}
