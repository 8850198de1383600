"""How often llama.cpp's server calls the keeper of prefixes for a prompt: as often from RAM and disk, however long the prompt is."""

from collections import Counter

import pytest
from support.clients import Endpoint
from support.prefix_server import conversation, serve, sources

from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.prefixes import Prefixes
from edgekv.server.server import Server

VERBS = ("match", "load", "start", "release", "insert")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counted: Counter = Counter()

    def counting(verb: str):
        method = getattr(Prefixes, verb)

        def call(*arguments):
            counted[verb] += 1
            return method(*arguments)

        return call

    for verb in VERBS:
        monkeypatch.setattr(Prefixes, verb, counting(verb))
    return counted


@pytest.mark.parametrize("n", [600, 1900])
def test_a_returning_prompt_takes_as_many_calls_whatever_its_length(tiny, tmp_path, calls, n):
    store, one, other = StoreSettings(folder=tmp_path), conversation(1, n), conversation(2, n)

    def asked(server: Server, tokens: list[int]) -> tuple[dict, dict]:
        server.prefixes.flush()  # a prompt may wait for what is being saved, and asks again
        calls.clear()
        found = sources(server, tokens)
        Endpoint(server).seconds_until_idle(60)  # it keeps its answer
        return found, dict(calls)

    def from_elsewhere(made: dict) -> bool:
        """`match` is asked until the slot is empty."""
        return made.pop("match") >= 1 and made == {"load": 1, "insert": 2, "start": 1, "release": 1}

    with serve(tiny, store=store) as server:
        asked(server, one)
        found, made = asked(server, [*one, 270])
        assert found["slot"] == n and made == {"match": 1, "load": 1, "insert": 2}
        asked(server, other)
        found, made = asked(server, [*one, 271])
        assert found["ram"] >= n - 1 and from_elsewhere(made)
    with serve(tiny, store=store) as server:
        found, made = asked(server, [*one, 272])
        assert found["disk"] >= n - 1 and from_elsewhere(made)
