// What the prefix cache of this process's server knows, all of it: no other file of this folder has state. One server runs at a time, and it has one
// context; threads of requests and the C API are given no context, so the cache is found by the_cache().
#pragma once

#include "server/prefix_cache/prefixes.h"
#include "server/prefix_cache/recall.h"
#include "server/prefix_cache/tasks.h"

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

namespace edgekv_server {

// of a loaded context, by its sequences; the decoding thread's
struct context_cache {
    std::unordered_map<int, edgekv_sequence> sequences;
    edgekv_promised_rows promised;
};

struct server_cache {
    // of the model that was loaded last
    std::string       projector;
    std::atomic<bool> moves{ false };  // its context's tokens can move to other positions
    context_cache     context;

    std::mutex mutex;  // of the following; any thread
    std::unordered_map<int, known_task> tasks;  // posted ones, by number
    std::unordered_map<std::thread::id, std::unordered_map<int, known_task>> noted;  // those that a thread is about to post
    const void * marker_of = nullptr;  // a chat template, and its user_marker()
    std::string  marker;
};

inline server_cache & the_cache() {
    static server_cache cache;
    return cache;
}

// The known task, or null if it was not posted or its request has ended; the caller holds the mutex.
inline known_task * task_of(server_cache & cache, int id) {
    const auto found = cache.tasks.find(id);
    return found == cache.tasks.end() ? nullptr : &found->second;
}

}  // namespace edgekv_server
