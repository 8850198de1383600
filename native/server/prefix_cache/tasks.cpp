#include "server/prefix_cache/tasks.h"

#include "server/prefix_cache/cache.h"
#include "server/scheduling/limits.h"

#include "ggml.h"

namespace edgekv_server {

namespace {

template <typename Field>
Field copy_of(int id, Field known_task::* field) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    const auto * task = task_of(cache, id);
    return task ? task->*field : known_task{}.*field;
}

// a task whose request has ended stays unknown
template <typename Field>
void set(int id, Field known_task::* field, const Field & value) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    if (auto * task = task_of(cache, id)) {
        task->*field = value;
    }
}

template <typename Field>
void note(int id, Field known_task::* field, Field value) {
    auto & cache = the_cache();
    std::lock_guard<std::mutex> lock(cache.mutex);
    cache.noted[std::this_thread::get_id()][id].*field = std::move(value);
}

}  // namespace

void note_marks(int id, prompt_marks marks) { note(id, &known_task::marks, std::move(marks)); }

void note_rolled(int id, rolled_conversation rolled) { note(id, &known_task::rolled, std::move(rolled)); }

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

int64_t posted_us(int id) { return copy_of(id, &known_task::posted_us); }

void set_cached(int id, const edgekv_cached_tokens & cached) { set(id, &known_task::cached, cached); }

edgekv_cached_tokens cached_of(int id) { return copy_of(id, &known_task::cached); }

void set_found(int id, const found_prefix & found) { set(id, &known_task::found, found); }

found_prefix found_of(int id) { return copy_of(id, &known_task::found); }

prompt_marks marks_of(int id) { return copy_of(id, &known_task::marks); }

}  // namespace edgekv_server
