#include "edgekv_server.h"

#include "server/published.h"

#include <exception>
#include <string>

// libllama-server-impl declares these in no header
int llama_server(int argc, char ** argv);
void llama_server_terminate();

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

void edgekv_server_publish(const char * path, const char * type, const char * text) {
    edgekv_pages::publish(path, type, text);
}

void edgekv_server_withdraw(void) {
    edgekv_pages::withdraw();
}

int64_t edgekv_server_asked_ms(const char * path) {
    return edgekv_pages::asked_ms(path);
}

void edgekv_server_on_refresh(void (*function)(int idle)) {
    edgekv_pages::on_refresh(function);
}
