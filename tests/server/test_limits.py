"""The cost of one request for the others: the queue ends, long prompts do not stop answers, and the server tells waiting clients when it
stops."""

import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.clients import CHAT, Reply, Stream, answering, drained, is_up, send, until
from support.native_build import needs, program
from support.serve_process import EDGEKV, Served, environment, serving

from edgekv._native import http_server as native
from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, ConfigError
from edgekv.config import KvOptions
from edgekv.server.server import Server
from edgekv.server.server_options import ServerLimits, ServerOptions

LONG = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 700, "ignore_eos": True}


# ---- the queue ------------------------------------------------------------------------------------------------------------------


def one_waits(served: Served) -> bool:
    return "\nedgekv_requests_waiting 1\n" in served.ask("/metrics").text


def test_a_full_queue_says_when_to_come_again(default_model, tmp_path):
    with serving(tmp_path, "--ctx", "1024", "--max-queue", "1") as served:
        streams = [Stream(served.url, LONG)]
        assert streams[0].event()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(served.ask, CHAT, {**LONG, "max_tokens": 1})
            refused: list[Reply] = []

            def is_refused() -> bool:
                reply = served.ask(CHAT, {**LONG, "max_tokens": 1})
                refused.append(reply)
                return reply.status == 503

            until(lambda: one_waits(served))
            assert is_refused()
            assert refused[-1].body["error"]["type"] == "unavailable_error" and "try again later" in refused[-1].body["error"]["message"]
            assert 1 <= int(refused[-1].headers["retry-after"]) <= 60
            assert served.ask("/health").status == 200, "what needs no slot is answered"
            streams[0].close()
            assert waits.result(60).status == 200, "who waited is answered"
        assert served.ask(CHAT, {**LONG, "max_tokens": 1}).status == 200


@pytest.mark.parametrize(("pooling", "path", "body"), [
    ("mean", "/v1/embeddings", {"input": "a cat"}), ("mean", "/embedding", {"content": "a cat"}),
    ("rank", "/v1/rerank", {"query": "a cat", "documents": ["a dog", "a house"]})], ids=["openai", "own", "rerank"])
def test_a_full_queue_refuses_embeddings_too(tiny, pooling, path, body):
    options = ServerOptions(tiny, n_ctx=8192, n_threads=1, limits=ServerLimits(max_queue=0), extra=("--embeddings", "--pooling", pooling))
    with Server(options) as server:
        answer = Stream(server.url, {"prompt": tokens(9), "n_predict": 8000, "ignore_eos": True}, "/completion")
        assert answer.event()
        refused = send(server.url, path, body)
        assert refused.status == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert "takes no more" in refused.body["error"]["message"]
        answer.close()
        until(lambda: not native.pacing().n_requests)
        if pooling != "rank":  # the model has no head that ranks
            assert send(server.url, path, body).status == 200


def test_embeddings_do_not_wait_for_the_end_of_answers(tiny):
    options = ServerOptions(tiny, n_ctx=8192, n_threads=1, n_slots=2, extra=("--embeddings", "--pooling", "mean"))
    with Server(options) as server:
        reader = answering(server.url, tokens(9))
        for n in (5, 400):  # 400 are more than a paced batch has room for
            assert len(send(server.url, "/embedding", {"content": tokens(n)}).body[0]["embedding"][0]) > 8
        assert reader.is_alive(), "the answer runs all the time"
    reader.join()


def test_limits_that_cannot_be(synthetic):
    for limits in ({"max_gap_s": -1}, {"max_gap_s": float("nan")}, {"max_queue": -1}):
        with pytest.raises(ConfigError, match="it must"):
            ServerLimits(**limits)
    for more in ({"n_slots": 0}, {"n_slots": 17}, {"cors": "example.org"}, {"cors": "https://a/b"}):
        with pytest.raises(ConfigError):
            ServerOptions(synthetic("llama"), **more)
    assert ServerOptions(synthetic("llama"), cors="https://example.org:8000").cors and ServerLimits().queue_for(4) == 32


@pytest.mark.parametrize(("text", "sentence"), [(None, "cannot be read"), ("# none\n\n", "has no key"), ("a b\nc,d\n", "printable ASCII")])
def test_files_of_keys_that_cannot_be(synthetic, tmp_path, text, sentence):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        Server(ServerOptions(synthetic("llama"), api_key_file=tmp_path / "keys"))
    assert "c,d" not in str(caught.value)


def test_a_key_is_nowhere_to_be_seen(synthetic, tmp_path):
    """A key stands neither in the log, however much it says, nor in the process list."""
    log = tmp_path / "server.log"
    with serving(tmp_path, str(synthetic("llama")), "--ctx", "256", "--log-file", str(log), "--", "--log-verbosity", "9",
                 key="opensesame4711", EDGEKV_API_KEY="opensesame4711") as served:
        assert served.ask("/v1/models").status == 200 and served.ask("/v1/models", key="wrong").status == 401
        command = Path(f"/proc/{served.process.pid}/cmdline")
        assert not command.exists() or b"opensesame" not in command.read_bytes()
        assert "opensesame" not in "".join(served.lines)
    text = log.read_text()
    assert "model loaded" in text and "4711" not in text


# ---- pacing ---------------------------------------------------------------------------------------------------------------------


@needs()
def test_how_much_of_a_prompt_goes_beside_answers(tmp_path):
    """A C++ program checks the arithmetic alone."""
    sources = ["checkout/tests/server/pace.cpp", "checkout/native/server/scheduling/pace.cpp"]
    pace = program(tmp_path, "pace", sources, "-Icheckout/native", "-Icheckout/native/include", "-pthread")
    done = subprocess.run([pace], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_ctx_train=8192)


def tokens(n: int) -> list[int]:
    return [5 + i % 50 for i in range(n)]


@pytest.mark.parametrize(("max_gap_s", "least", "most"), [(0, 2, 6), (1e-6, 90, 120)], ids=["full speed", "a bound nobody can keep"])
def test_a_long_prompt_beside_an_answer(tiny, max_gap_s, least, most):
    """The server reads 1,500 tokens in batches of 512, or in the smallest there are."""
    options = ServerOptions(tiny, n_ctx=8192, n_threads=1, n_slots=2, limits=ServerLimits(max_gap_s), kv=KvOptions(mode="exact"))
    with Server(options) as server:
        reader = answering(server.url, tokens(9))
        before = native.pacing().n_mixed
        assert drained(Stream(server.url, {"prompt": tokens(1500), "n_predict": 1}, "/completion"))[-1]["tokens_evaluated"] == 1500
        seen = native.pacing()
        assert reader.is_alive(), "the answer ran all the time"
    reader.join()
    assert least <= seen.n_mixed - before <= most and seen.max_gap_s == max_gap_s
    assert 0 < seen.last_gap_s <= seen.worst_gap_s
    assert seen.n_refused == 0 and (max_gap_s == 0 or seen.n_prompt_batch == 16)


def test_a_short_prompt_does_not_wait_for_a_long_one(default_model):
    with Server(ServerOptions(default_model, n_ctx=2048, n_threads=1, n_slots=2, kv=KvOptions(mode="exact"))) as server:
        text = {"role": "user", "content": "The river is calm today. " * 280}
        long = Stream(server.url, {"messages": [text], "max_tokens": 1, "return_progress": True})
        first = long.event()["prompt_progress"]
        assert first["processed"] < first["total"] / 2 and first["total"] > 1600
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(lambda: (drained(long), time.monotonic()))
            assert drained(Stream(server.url, {**LONG, "max_tokens": 1}))
            answered = time.monotonic()
            events, ended = read.result(300)
    assert answered < ended and events[-1]["choices"][0]["finish_reason"] == "length"


# ---- the end --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_who_waits_is_told(default_model, tmp_path, number):
    """A stream gets an event and its proper end, and a request in the queue gets an answer."""
    with serving(tmp_path, "--ctx", "1024") as served, ThreadPoolExecutor(1) as pool:
        stream = Stream(served.url, LONG)
        assert stream.event()
        waits = pool.submit(served.ask, CHAT, LONG)
        until(lambda: one_waits(served))
        served.process.send_signal(number)
        events = list(iter(stream.event, None))
        assert events[-1]["error"]["message"] == "the server is stopping" and events[-1]["error"]["type"] == "unavailable_error"
        assert waits.result(30).status == 503
        assert served.process.wait(30) == EXIT_OK
        assert served.process.stderr.read().splitlines()[-1] == "stopping"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, EXIT_TERMINATED), (signal.SIGINT, EXIT_INTERRUPTED)], ids=["TERM", "INT"])
def test_a_second_signal_ends_it_at_once(default_model, tmp_path, number, code):
    with serving(tmp_path, "--ctx", "8192", "--max-itl", "0") as served:
        text = {"role": "user", "content": "The river is calm today. " * 1000}
        streams = [Stream(served.url, {"messages": [text], "max_tokens": 1, "return_progress": True})]
        assert streams[0].event()
        served.process.send_signal(number)
        while "stopping" not in (line := served.process.stderr.readline()):
            assert line
        served.process.send_signal(number)
        assert served.process.wait(10) == code
        assert "Traceback" not in served.process.stderr.read()


def test_who_sees_health_sees_a_started_server(synthetic, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*EDGEKV, "serve", str(synthetic("llama")), "--ctx", "256", "--port", str(port)], env=environment(tmp_path), cwd=tmp_path,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and not is_up(f"http://127.0.0.1:{port}"):
                pass
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()  # if it did not end: the block waits for it
    assert process.returncode == EXIT_OK and said.endswith("stopping\n")


def test_out_of_reach_of_ctrl_c_it_names_the_signal(synthetic, tmp_path):
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with serving(tmp_path, str(synthetic("llama")), "--ctx", "256") as served:
            assert f"kill {served.process.pid} (SIGTERM) to stop" in served.lines[-1]
    finally:
        signal.signal(signal.SIGINT, old)
