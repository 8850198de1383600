#include "server/prefix_cache/tasks.h"

#include "server/prefix_cache/cache.h"
#include "server/scheduling/limits.h"

#include "ggml.h"

namespace edgekv_server {

namespace {

template <typename Field>
void set(int id, Field known_task::* field, const Field & value) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    if (auto * task = task_of(cache, id)) {
        task->*field = value;
    }
}

}  // namespace

known_task known_of(int id) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    const auto * task = task_of(cache, id);
    return task ? *task : known_task{};
}

void set_cached(int id, const edgekv_cached_tokens & cached) { set(id, &known_task::cached, cached); }

void set_found(int id, const edgekv_server_request & found) { set(id, &known_task::found, found); }

known_task & note_of(int id) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    return cache.noted[std::this_thread::get_id()][id];
}

void tasks_posted(const std::unordered_set<int> & ids) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    auto & noted = cache.noted[std::this_thread::get_id()];
    for (const int id : ids) {
        auto & task = cache.tasks[id];
        task = std::move(noted[id]);
        task.posted_us = ggml_time_us();
    }
    cache.noted.erase(std::this_thread::get_id());
}

void request_ends(const void * reader, const std::unordered_set<int> & ids) {
    {
        auto & cache = the_cache();
        std::lock_guard<std::mutex> lock(cache.mutex);
        for (const int id : ids) {
            cache.tasks.erase(id);
        }
    }
    leave_place(reader);
}

}  // namespace edgekv_server
