"""The cache takes memory as tokens come. A request whose tokens find none ends with an error, and the others go on."""

import sys

import pytest
from support.clients import Stream, answering, drained, send
from support.homes import LITTLE

from edgekv._native import core
from edgekv.config import KvOptions
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere llama.cpp allocates the cache")

SHAPE = {"n_layer": 2, "n_head": 8, "n_head_kv": 8, "head_dim": 128}
PAGE = (2 << 20) // (8 * 128 * 2)
"""Tokens whose K or V of a layer take a huge page."""


def served(model, n_slots: int, *extra: str) -> Server:
    return Server(ServerOptions(model, n_ctx=4096, n_threads=1, n_slots=n_slots, kv=KvOptions(mode="exact"), extra=extra))


CACHES = pytest.mark.parametrize("cache", ["--kv-unified", "--no-kv-unified"], ids=["one cache", "a cache each"])


def prompt(n: int, of: int = 0) -> dict:
    return {"prompt": [260 + (i + of) % 90 for i in range(n)], "n_predict": 2, "ignore_eos": True}


@CACHES
def test_a_request_without_memory_is_refused_and_others_go_on(synthetic, free, cache):
    with served(synthetic("llama", **SHAPE), 2, cache) as server:
        reader = answering(server.url, prompt(9)["prompt"])
        free.tell()
        free.bytes = LITTLE
        refused = send(server.url, "/completion", prompt(PAGE, of=7))
        assert refused.status == 503 and refused.body["error"]["type"] == "unavailable_error"
        assert "no memory for K and V" in refused.body["error"]["message"]
        assert reader.is_alive(), "the other answer goes on"
        free.bytes = 1 << 40
        assert send(server.url, "/completion", prompt(PAGE, of=7)).status == 200
    reader.join()


def test_an_answer_ends_where_its_memory_does(synthetic, free):
    with served(synthetic("llama", **SHAPE), 1) as server:
        stream = Stream(server.url, {**prompt(PAGE - 8), "n_predict": 64}, "/completion")
        assert stream.event()
        free.tell()
        free.bytes = LITTLE
        events = drained(stream)
        assert "no memory for K and V" in events[-1]["error"]["message"]
        free.bytes = 1 << 40
        assert send(server.url, "/completion", prompt(PAGE + 40)).status == 200


@CACHES
def test_conversations_of_idle_slots_give_theirs_first(synthetic, free, cache):
    """The cache has room for one conversation more as soon as an idle one is gone."""
    with served(synthetic("llama", **SHAPE), 2, cache) as server:
        assert send(server.url, "/completion", {**prompt(PAGE - 100), "id_slot": 0}).status == 200
        asked: list[int] = []

        def once() -> int:
            asked.append(0)
            return LITTLE if len(asked) == 1 else 1 << 40

        core.set_free_bytes(once)
        assert send(server.url, "/completion", {**prompt(PAGE - 60, of=7), "id_slot": 1}).status == 200
        assert len(asked) >= 2
        assert send(server.url, "/completion", {**prompt(PAGE - 100), "id_slot": 0}).status == 200
