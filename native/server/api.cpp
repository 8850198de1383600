// The C API of the server, but for what one part of it does: that stands in the part's file.
#include "edgekv_server.h"

#include "llama-edgekv-forms.h"
#include "server/scheduling/limits.h"
#include "server/scheduling/pace.h"
#include "server/scheduling/waits.h"

#include "ui.h"  // made with llama.cpp's page

#include <exception>
#include <string>

// declared in no header
int llama_server(int argc, char ** argv);
void llama_server_terminate();

static std::string g_error;

int edgekv_server_run(int argc, char ** argv, const edgekv_server_settings * settings) {
    constexpr edgekv_server_settings NONE = { 0, 1, -1, 100 << 20, 0, 0, 0, nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr };
    g_error.clear();
    edgekv_server::begin(settings ? *settings : NONE);
    llama_edgekv_set_forms(settings && settings->forms ? *settings->forms : edgekv_forms{});

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

void edgekv_server_pace(edgekv_server_pacing * pacing) {
    *pacing = edgekv_server::report();
    edgekv_server::count_requests(*pacing);
    pacing->n_running = edgekv_server::running_slots();
}

double edgekv_server_reading_s(int64_t first, int64_t n) {
    return edgekv_server::reading_s(first, n);
}

void edgekv_server_answer(void * out, const char * text) {
    *static_cast<std::string *>(out) = text;
}
