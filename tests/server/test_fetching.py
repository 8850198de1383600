"""The server fetches a prompt's rows from a shared server while it answers others; what was fetched is used or given back once."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import prefix_server
from support.calls import Held, watch
from support.clients import Endpoint, request_bytes, until
from support.prefix_server import EXACT, apart, ask, n_read
from support.redis_server import RedisServer

from edgekv.prefix_cache.remote import RedisPlace
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.prefixes import Prefixes
from edgekv.server.server import Server

OFF = {"mode": "off"}


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Iterator[StoreSettings]:
    monkeypatch.setattr("edgekv.server.prefixes.native.reading_s", lambda first, n: 0.0)  # computing would be quicker
    server = RedisServer(tmp_path)
    yield StoreSettings(ram_bytes=64 << 20, url=server.url, url_timeout_s=20.0)
    server.kill()


def serve(model: Path, store: StoreSettings, kv: dict = EXACT) -> Server:
    return prefix_server.serve(model, kv, store, n_ctx=4096, n_slots=2)


def keep(model: Path, store: StoreSettings, kv: dict = EXACT) -> dict:
    return prefix_server.keep(model, kv, store, apart(1))[0]


def fetches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "edgekv-fetch"]


WHATS = pytest.mark.parametrize("what", ["have", "open", "_fill"], ids=["the question", "the headers", "the rows"])


@pytest.mark.parametrize("kv", [OFF, EXACT], ids=["off", "exact"])
@WHATS
def test_a_slow_server_keeps_nobody_else_waiting(tiny, shared, monkeypatch, kv, what):
    """The prompt waits until its rows come; meanwhile one conversation ends, and another begins and ends."""
    first = keep(tiny, shared, kv)
    with serve(tiny, shared, kv) as server, ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, server, apart(2, 30), 400, id_slot=0)
        until(Endpoint(server).n_busy)
        held = Held(monkeypatch, RedisPlace, what)
        comes = pool.submit(ask, server, apart(1), id_slot=1)
        assert held.begun.wait(30)
        assert len(running.result(100)["tokens"]) == 400 and not comes.done()
        time.sleep(0.2)  # no answer runs now, and the prompt waits for its own rows
        assert len(ask(server, apart(3, 30), 20, id_slot=0)["tokens"]) == 20 and not comes.done()
        held.go_on.set()
        answer = comes.result(100)
    assert answer["tokens"] == first["tokens"] and answer["timings"]["cache_n"] == 699
    assert set(held.threads) == {"edgekv-fetch"}


def test_a_client_that_leaves_leaves_nothing_behind(tiny, shared, monkeypatch):
    """A client that leaves frees its slot, its hold in RAM and its fetch."""
    first = keep(tiny, shared)
    with serve(tiny, shared) as server:
        held = Held(monkeypatch, RedisPlace, "_fill")
        client = Endpoint(server).send(request_bytes("/completion", json.dumps({"prompt": apart(1), "n_predict": 4}).encode()))
        assert held.begun.wait(30) and len(fetches()) == 1
        client.close()
        until(lambda: not server.prefixes._fetches)  # every answer of /slots lets the server look a second later whether its clients are there
        held.go_on.set()
        until(lambda: not fetches())
        (store,) = server.prefixes._stores.values()
        assert not server.prefixes._fetches and not store.ram.in_use
        assert store.stats().ram.n_bytes == sum(store.ram.get(link.key).n_bytes for link in store.ram.links())
        assert ask(server, apart(1))["tokens"] == first["tokens"]


@WHATS
def test_a_server_ends_while_it_fetches(tiny, shared, monkeypatch, what):
    keep(tiny, shared)
    with ThreadPoolExecutor(1) as pool:
        with serve(tiny, shared) as server:
            held = Held(monkeypatch, RedisPlace, what)
            comes = pool.submit(ask, server, apart(1))
            assert held.begun.wait(30)
            threading.Timer(0.5, held.go_on.set).start()
        assert comes.exception(60) is not None
    assert not fetches()


def test_two_that_begin_alike_are_fetched_once(tiny, shared, monkeypatch):
    keep(tiny, shared)
    filled: list[tuple[bytes, range]] = []
    watch(monkeypatch, RedisPlace, "_fill", lambda _place, header, _first, layers, _out: (filled.append((header.link.key, layers)), time.sleep(0.05)))
    with serve(tiny, shared) as server, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda more: ask(server, [*apart(1), more]), (270, 280)))
    assert len(filled) == len(set(filled)) > 0
    assert all(n_read(answer) <= 2 for answer in answers)


def test_what_is_being_loaded_is_not_fetched_again(tiny, shared, monkeypatch):
    """Another slot asks between the begin of the first prompt and the end of its batch."""
    keep(tiny, shared)
    loads, asked = Prefixes.load, []

    def load(prefixes, prompt, n_have, goes_on):
        found = loads(prefixes, prompt, n_have, goes_on)
        other = structs.replace(prompt, seq_id=1 - prompt.seq_id, tokens=np.append(prompt.tokens[:-1], 280).astype(np.int32))
        asked.append((found.remote, found.comes, prefixes.match(other, 0, None, False), list(prefixes._fetches)))
        return found

    monkeypatch.setattr(Prefixes, "load", load)
    with serve(tiny, shared) as server:
        ask(server, [*apart(1), 270])
    assert asked == [(700, True, False, [])]


def test_rows_that_do_not_come_are_computed(tiny, shared, monkeypatch):
    """The second block's rows do not come, although the server said that it has them."""
    first = keep(tiny, shared)
    works, keys = RedisPlace._fill, []

    def fill(place, header, first, layers, out):
        if header.link.key not in keys:
            keys.append(header.link.key)
        return keys.index(header.link.key) != 1 and works(place, header, first, layers, out)

    monkeypatch.setattr(RedisPlace, "_fill", fill)
    with serve(tiny, shared) as server:
        answer = ask(server, apart(1))
    assert answer["timings"]["cache_n"] == 256 and answer["tokens"] == first["tokens"]
