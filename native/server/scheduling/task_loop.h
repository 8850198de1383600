// The server's task loop, which other threads may ask to turn: an idle one waits for tasks.
#pragma once

#include <cstddef>

struct server_queue;

namespace edgekv_server {

// Lives while a queue's loop runs. At its end the clients that still wait for an answer are told, before connections are closed.
class task_loop {
public:
    explicit task_loop(server_queue & queue);
    ~task_loop();
};

// Lives while an action (a slot's file, its erasure) has a free slot, which it leaves free: at its end who waits for the slot is asked again, or else who waits
// longest. Upstream asks one task when a slot becomes free, and that was the action.
class wakes_next {
public:
    wakes_next(server_queue & queue, int id_slot) : queue(queue), id_slot(id_slot) {}
    ~wakes_next();

private:
    server_queue & queue;
    int id_slot;
};

// All slots are idle: as many of the tasks that wait for one are asked again. Upstream asks one for each slot that becomes free, and one that then takes none
// wakes nobody.
void wake_waiting(server_queue & queue, std::size_t n_slots);

}  // namespace edgekv_server
