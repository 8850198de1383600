"""How often llama.cpp's server calls the keeper of prefixes for a prompt, and the keeper the context: as often, however long the prompt is."""

from collections import Counter

import pytest
from support.calls import watch
from support.clients import Endpoint
from support.prefix_server import conversation, serve, sources

from edgekv._native import token_rows
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore
from edgekv.server import prefixes
from edgekv.server.prefixes import Prefixes
from edgekv.server.server import Server


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counted: Counter = Counter()
    of = {Prefixes: ("match", "load", "start", "release", "insert"), PrefixStore: ("match_prefix",), token_rows: ("add_tokens", "write_tokens", "unpark")}
    for where, names in of.items():
        for name in names:
            watch(monkeypatch, where, name, lambda *_, name=name, **__: counted.update([name]))
    return counted


@pytest.mark.parametrize("n", [600, 1900])
def test_a_returning_prompt_takes_as_many_calls_whatever_its_length(tiny, tmp_path, calls, n):
    """`match` is asked again until what must leave the slot has left."""
    store, one, other = StoreSettings(folder=tmp_path), conversation(1, n), conversation(2, n)

    def asked(server: Server, tokens: list[int]) -> tuple[dict, dict]:
        server.prefixes.flush()
        calls.clear()
        found = sources(server, tokens)
        Endpoint(server).seconds_until_idle(60)  # it keeps its answer
        return found, dict(calls)

    def from_elsewhere(made: dict, n_unparked: int) -> bool:
        """Of what was parked the first block, whose first token stayed in the slot, and the last one, which is cut, are written."""
        return made.pop("match") >= 1 and made.pop("unpark", 0) == n_unparked and made == {
            "load": 1, "match_prefix": 1, "insert": 2, "start": 1, "release": 1, "add_tokens": 1, "write_tokens": 1}

    with serve(tiny, store=store) as server:
        asked(server, one)
        for token in (270, 271, 270):  # one new token is computed in any case, also where a prompt that ended with it was kept
            found, made = asked(server, [*one, token])
            assert found["slot"] == n and made.pop("match") >= 1 and made == {"load": 1, "insert": 2}
        asked(server, other)
        found, made = asked(server, [*one, 272])
        assert found["ram"] >= n - 1 and from_elsewhere(made, 1)
    with serve(tiny, store=store) as server:
        found, made = asked(server, [*one, 273])
        assert made.pop("write_tokens") == -(-n // 256), "one for each block that comes"
        assert found["disk"] >= n - 1 and from_elsewhere({**made, "write_tokens": 1}, 0)


def test_settings_that_change_meanwhile_pass_for_no_tokens(tiny, monkeypatch):
    """The rows of a sequence, the name of its settings and what it accepts go by the options of one moment."""
    named: list[object] = []
    same: list[bool] = []
    watch(monkeypatch, prefixes, "read_with", lambda options, _codec: named.append(options))
    watch(monkeypatch, prefixes, "accepted", lambda options, _codec: same.append(options is named[-1]))
    watch(monkeypatch, prefixes, "kept_tokens", lambda _run, options, _held: same.append(options is named[-1]))
    with serve(tiny) as server:
        sources(server, conversation(1, 600))
        Endpoint(server).seconds_until_idle(60)
        assert len(same) >= 2 and all(same)
