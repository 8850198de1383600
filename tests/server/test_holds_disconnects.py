"""A client that leaves frees its slot at once, in the middle of its prompt or of its answer."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients import Endpoint, request_bytes, reset, until
from support.local_server import options

from edgekv.server.server import Server

N_SLOTS = 4
AT_ONCE_S = 15.0
"""The server looks once a second, and after each batch, whether a client is still there; the rest is for a busy machine."""

ENDLESS = {"prompt": "word", "n_predict": -1, "ignore_eos": True, "stream": True, "cache_prompt": False}


@pytest.fixture(scope="module")
def endpoint(synthetic) -> Iterator[Endpoint]:
    # With context shift an answer never ends by itself: a slot that is free again was freed.
    with Server(options(synthetic("llama"), n_slots=N_SLOTS, n_ctx=2048, extra=("--context-shift",))) as server:
        yield Endpoint(server)


def leave_in_prefill(endpoint: Endpoint, rng: random.Random) -> None:
    prompt = [rng.randrange(300) for _ in range(1900)]
    client = endpoint.send(request_bytes("/completion", json.dumps({**ENDLESS, "prompt": prompt}).encode()))
    time.sleep(rng.random() * 0.1)
    reset(client) if rng.random() < 0.5 else client.close()


def leave_in_generation(endpoint: Endpoint, rng: random.Random) -> None:
    client = endpoint.send(request_bytes("/completion", json.dumps(ENDLESS).encode()), timeout=60)
    seen = b""
    while b"data: " not in seen:
        chunk = client.recv(4096)
        assert chunk, f"the server hung up: {seen!r}"
        seen += chunk
    assert b" 200 " in seen.split(b"\r\n", 1)[0], f"refused: {seen!r}"
    reset(client) if rng.random() < 0.5 else client.close()


def test_who_waits_for_a_whole_answer_may_leave_beside_other_requests(endpoint):
    """Their results come more often than once a second: upstream then never looks."""
    client = endpoint.send(request_bytes("/completion", json.dumps({**ENDLESS, "stream": False}).encode()))
    until(lambda: endpoint.n_busy() == 1)
    reset(client)
    until(lambda: endpoint.n_busy() == 0)


@pytest.mark.parametrize("leave", [leave_in_prefill, leave_in_generation])
def test_a_hundred_clients_that_leave(endpoint, leave):
    before = endpoint.complete("the same", 8)["content"]
    with ThreadPoolExecutor(N_SLOTS) as pool:
        list(pool.map(lambda seed: leave(endpoint, random.Random(seed)), range(100)))
    freed = endpoint.seconds_until_idle(AT_ONCE_S)
    print(f"idle {freed:.2f} s after the last of 100 clients left")
    assert endpoint.complete("the same", 8)["content"] == before
