"""The cache takes memory as tokens come: a request whose tokens find none ends with an error, and the others go on. Where the system refuses to pin a
context that nobody asked for, it is halved."""

import json
import re
import sys

import pytest
from support import prefix_server
from support.backend_process import beside_the_backend
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


def test_the_cache_in_ram_gives_way(synthetic, free):
    """What it has goes first, then a conversation of an idle slot, which is parked there."""
    with prefix_server.serve(synthetic("llama", **SHAPE), n_ctx=4096, n_slots=2, extra=("--no-kv-unified",)) as server:
        for seed in (1, 2):
            prefix_server.ask(server, prefix_server.conversation(seed, PAGE), id_slot=0)
        ram, left = server.prefixes.ram, []

        def until_nothing_is_left() -> int:
            left.append((ram.n_bytes > 0, ram.n_in_slots > 0))
            return 1 << 40 if (False, False) in left else LITTLE

        core.set_free_bytes(until_nothing_is_left)
        assert send(server.url, "/completion", {**prompt(PAGE, of=7), "id_slot": 1}).status == 200
        assert list(dict.fromkeys(left))[:4] == [(True, True), (False, True), (True, False), (False, False)]
        core.set_free_bytes(lambda: LITTLE)
        assert send(server.url, "/completion", {**prompt(PAGE, of=9), "id_slot": 0}).status == 503, "nothing more can go"


CODE = """
import ctypes, json
from edgekv._native import core, device_calls
from edgekv.config import KvOptions
from edgekv.server.server import Server, ServerOptions
server = Server(ServerOptions(Path(sys.argv[2]), kv=KvOptions(mode="exact", attention_device="emulated"), n_ctx=json.loads(sys.argv[4]), n_threads=1))
emulator = ctypes.CDLL(sys.argv[1])
has = emulator.edgekv_emulator_has
has.argtypes = [ctypes.c_size_t] * 2 + [ctypes.c_bool, ctypes.c_size_t]
asked = server.context.n_ctx
has(8 << 30, 0, False, int(server.context.device.home * float(sys.argv[3])))
emulator.edgekv_emulator_pins_later(ctypes.c_bool(sys.argv[5] == "later"))
with server:
    print(json.dumps([asked, server.context.n_ctx, server.context.note, server.runtime is not None, server.answering]))
"""


@pytest.mark.parametrize(("when", "pinned", "asked", "share"), [
    ("at once", 0.8, None, 2), ("at once", 0.4, None, 4), ("at once", 0.8, 8192, None), ("at once", 0.0, None, None),
    ("later", 0.4, None, 1), ("later", 0.0, None, None)])
def test_a_context_is_halved_until_its_rows_are_pinned(emulator, emulated_backend, synthetic, when: str, pinned: float, asked: int | None, share: int | None):
    """Of what the context takes the system pins a share. What was asked for, and where nothing is pinned, stays, and stock attention answers. Where rows are
    pinned as tokens come, a start needs the first of them."""
    done = beside_the_backend(emulated_backend, CODE, emulator, synthetic("llama", n_ctx_train=8192), pinned, json.dumps(asked), when)
    assert done.returncode == 0, done.stderr[-3000:]
    before, n_ctx, note, served, answers = json.loads(done.stdout.splitlines()[-1])
    assert before == 8192 and answers
    assert (n_ctx, served) == ((before, False) if share is None else (before // share, True)), done.stderr[-3000:]
    said = re.search(r"the context is [\d,]+ tokens: the system refused to pin K and V of 8,192 in host memory", done.stderr)
    assert (said is None) == (share in (None, 1)) and (note or "").startswith(said[0] if said else "")
