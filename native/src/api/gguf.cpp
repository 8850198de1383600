// The C function of edgekv_gguf.h.
#include "edgekv_gguf.h"

#include "api/guard.h"

#include <cstdio>
#include <mutex>

using namespace edgekv;

namespace {

std::mutex g_reading;  // ggml has one log callback for the process
ggml_log_callback g_listener;
void * g_listener_data;

thread_local bool t_reads = false;
thread_local char t_said[256];

void hear(ggml_log_level level, const char * text, void *) {
    if (!t_reads) {
        g_listener(level, text, g_listener_data);
    } else if (!t_said[0]) {  // the first line names the cause; those behind it say what could not be read therefore
        snprintf(t_said, sizeof(t_said), "%s", text);
    }
}

// Takes ggml's lines while it lives.
struct Hearing {
    std::lock_guard<std::mutex> alone{g_reading};

    Hearing() {
        t_said[0] = 0;
        t_reads   = true;
        ggml_log_get(&g_listener, &g_listener_data);
        ggml_log_set(hear, nullptr);
    }

    ~Hearing() {
        ggml_log_set(g_listener, g_listener_data);
        t_reads = false;
    }
};

}  // namespace

edgekv_status edgekv_read_gguf(const char * path, struct gguf_context ** out) {
    return guarded([&] {
        const Hearing hearing;
        *out = gguf_init_from_file(path, {/* no_alloc */ true, /* ctx */ nullptr});
        return *out ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, t_said);
    });
}
