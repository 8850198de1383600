// The server's task loop, which other threads may ask to turn: an idle one waits for tasks.
#pragma once

struct server_queue;

namespace edgekv_server {

// Lives while a queue's loop runs. At its end the clients that still wait for an answer are told, before connections are closed.
class task_loop {
public:
    explicit task_loop(server_queue & queue);
    ~task_loop();
};

}  // namespace edgekv_server
