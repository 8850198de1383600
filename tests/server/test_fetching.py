"""The server fetches a prompt's rows from a shared server while it answers others; those of a prompt that waits are used or given back once."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs
from support import prefix_server
from support.calls import Held, watch
from support.clients import Endpoint, request_bytes, until
from support.prefix_server import EXACT, apart, ask, n_read
from support.redis_server import RedisServer

from edgekv.prefix_cache.blocks import Conversation
from edgekv.prefix_cache.remote import RedisPlace
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import fetching
from edgekv.server.fetching import Expected, Fetch
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


def test_rows_come_while_a_prompt_waits_for_a_slot(tiny, shared, monkeypatch):
    """The only slot answers. When it is free, nothing is fetched twice."""
    first = keep(tiny, shared)
    with prefix_server.serve(tiny, EXACT, shared, n_ctx=4096, n_slots=1) as server, ThreadPoolExecutor(2) as pool:
        held = Held(monkeypatch, RedisPlace, "_fill")
        running = pool.submit(ask, server, apart(2, 30), 1500)
        until(Endpoint(server).n_busy)
        waits = pool.submit(ask, server, apart(1))
        assert held.begun.wait(30)
        held.go_on.set()
        until(lambda: not fetches())
        assert not running.done(), "the rows are here before the slot is free"
        n_asked = len(held.threads)
        answer = waits.result(100)
        assert len(held.threads) == n_asked
    assert answer["tokens"] == first["tokens"] and answer["timings"]["cache_n"] == 699


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


# ---- prompts that wait for a slot ------------------------------------------------------------------------------------------------

ASKED = Conversation(np.arange(64, dtype=np.int32), b"root")


def fetched(back: Callable[[PrefixHit], object]) -> Fetch:
    """It has ended; `back` gets what is given back."""
    fetch = Fetch(ASKED, SimpleNamespace(fetch=lambda hit, _worth, _alone: hit, release=back), PrefixHit, lambda _hit: 0)
    fetch.join()
    return fetch


def test_time_ends_for_what_nobody_took(monkeypatch):
    now, expected, back = 0.0, Expected(), list[PrefixHit]()
    monkeypatch.setattr(fetching, "time", SimpleNamespace(monotonic=lambda: now))
    expected.add(fetched(back.append))
    now = fetching.EXPECTED_S
    expected.has_more_of(ASKED)
    assert not back
    now += 1
    assert expected.take(ASKED) is None and len(back) == 1


def test_what_is_taken_is_not_given_back():
    expected, back = Expected(), list[PrefixHit]()
    expected.add(fetch := fetched(back.append))
    assert expected.take(ASKED) is fetch
    expected.close()
    assert not back


def test_what_is_left_over_is_given_back_once():
    expected, back = Expected(), list[PrefixHit]()
    for _ in range(fetching.MOST_EXPECTED + 2):
        expected.add(fetched(back.append))
    assert len(back) == 2
    expected.close()
    assert len(back) == fetching.MOST_EXPECTED + 2
