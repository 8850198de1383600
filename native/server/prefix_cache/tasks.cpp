#include "server/prefix_cache/tasks.h"

#include "server/scheduling/limits.h"
#include "server/prefix_cache/rolling.h"

#include "ggml.h"

#include <mutex>
#include <unordered_map>

namespace edgekv_server {

namespace {

struct known_task {
    int64_t posted_us = -1;
    edgekv_cached_tokens cached = {};
    found_prefix found;
    prompt_marks marks;
};

struct known_tasks {
    std::mutex mutex;
    std::unordered_map<int, known_task> by_id;
};

known_tasks & the_tasks() {
    static known_tasks s;
    return s;
}

known_task known(int id) {
    auto & s = the_tasks();
    std::lock_guard<std::mutex> lock(s.mutex);
    const auto found = s.by_id.find(id);
    return found == s.by_id.end() ? known_task{} : found->second;
}

// a task whose request has ended stays unknown
template <typename Change>
void change(int id, Change change_it) {
    auto & s = the_tasks();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (const auto found = s.by_id.find(id); found != s.by_id.end()) {
        change_it(found->second);
    }
}

using noted_marks = std::unordered_map<int, prompt_marks>;

noted_marks & noted() {
    thread_local noted_marks marks;
    return marks;
}

}  // namespace

void note_marks(int id, prompt_marks marks) { noted()[id] = std::move(marks); }

prompt_marks marks_of(int id) { return known(id).marks; }

void tasks_posted(const std::unordered_set<int> & ids) {
    auto & s = the_tasks();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (const int id : ids) {
        auto & task = s.by_id[id];
        task.posted_us = ggml_time_us();
        if (const auto found = noted().find(id); found != noted().end()) {
            task.marks = std::move(found->second);
        }
    }
    noted().clear();
}

void request_ends(const void * reader, const std::unordered_set<int> & ids) {
    {
        auto & s = the_tasks();
        std::lock_guard<std::mutex> lock(s.mutex);
        for (const int id : ids) {
            s.by_id.erase(id);
        }
    }
    forget_rolled(ids);
    leave_place(reader);
}

int64_t posted_us(int id) { return known(id).posted_us; }

void set_cached(int id, const edgekv_cached_tokens & cached) {
    change(id, [&](known_task & task) { task.cached = cached; });
}

edgekv_cached_tokens cached_of(int id) { return known(id).cached; }

void set_found(int id, const found_prefix & found) {
    change(id, [&](known_task & task) { task.found = found; });
}

found_prefix found_of(int id) { return known(id).found; }

}  // namespace edgekv_server
