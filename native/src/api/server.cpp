#include "edgekv_server.h"

#include <exception>
#include <string>

// libllama-server-impl declares these in no header
int llama_server(int argc, char ** argv);
void llama_server_terminate();

void edgekv_seam_set_prefixes(const edgekv_prefixes * prefixes);  // native/seam/server/prefixes.cpp

static std::string g_error;

int edgekv_server_run(int argc, char ** argv) {
    g_error.clear();

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
    edgekv_seam_set_prefixes(prefixes);
}
