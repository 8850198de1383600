#!/usr/bin/env bash
# cpp-httplib as llama-cpp-python 0.3.36 carries it (vendor/cpp-httplib): a content provider ends a chunked answer with sink.done(), and what it returns then
# decides whether the connection lives on: behind false the server closes it, although the answer is whole and its header says Keep-Alive. llama-server's
# provider returns false at the end of each stream, so that a client which asks again at once on that connection may find it closed. True keeps it.
# Seen:  the answer that ends with true: whole, 'timeout=5, max=100', open; that which ends with false: whole, 'timeout=5, max=100', closed
source "$(dirname "$0")/common.sh"
venv/bin/pip download -q --disable-pip-version-check --no-deps --no-binary :all: --dest . llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --strip-components=1 --wildcards '*/vendor/cpp-httplib/*'
folder=$(dirname "$(find . -name httplib.h)")
cat > server.cpp <<'CPP'
#include "httplib.h"

#include <cstdio>

int main() {
    httplib::Server server;
    const auto ends_with = [](bool returned) {
        return [=](const httplib::Request &, httplib::Response & answer) {
            answer.set_chunked_content_provider("text/event-stream", [=](size_t, httplib::DataSink & sink) {
                sink.write("data: 1\n\n", 9);
                sink.done();
                return returned;
            });
        };
    };
    server.Get("/true", ends_with(true));
    server.Get("/false", ends_with(false));
    std::printf("%d\n", server.bind_to_any_port("127.0.0.1"));
    std::fflush(stdout);
    server.listen_after_bind();
}
CPP
c++ -std=c++17 -O1 -I "$folder" -o server server.cpp "$folder/httplib.cpp" -pthread
seen - <<'PY'
import http.client
import select
import subprocess

from seen import check

server = subprocess.Popen(["./server"], stdout=subprocess.PIPE, text=True)
try:
    port = int(server.stdout.readline())
    for returned, state in (("true", "open"), ("false", "closed")):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/{returned}")
        answer = connection.getresponse()
        body, kept = answer.read(), answer.headers["Keep-Alive"]
        closed = bool(select.select([connection.sock], [], [], 2)[0])  # nothing more is asked, so that only the end can come
        check(f"the answer that ends with {returned}", (body, kept, "closed" if closed else "open"), (b"data: 1\n\n", "timeout=5, max=100", state))
finally:
    server.kill()
PY
