#include "server/scheduling/task_loop.h"

#include "edgekv_server.h"
#include "server-queue.h"
#include "server/scheduling/limits.h"

#include <mutex>
#include <utility>

static std::mutex     g_mutex;
static server_queue * g_queue = nullptr;  // whose loop runs

edgekv_server::task_loop::task_loop(server_queue & queue) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_queue = &queue;
}

edgekv_server::task_loop::~task_loop() {
    {
        const std::lock_guard<std::mutex> lock(g_mutex);
        g_queue = nullptr;
    }
    end_answers();
}

int edgekv_server_turn(void) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    if (!g_queue || g_queue->is_sleeping()) {
        return 0;
    }
    server_task task(SERVER_TASK_TYPE_METRICS);  // it delays no sleep, and nobody waits for its result
    task.id = g_queue->get_new_id();
    g_queue->post(std::move(task), true);
    return 1;
}
