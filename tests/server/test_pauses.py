"""Rows are written between answers: when writes wait, and what ends their wait."""

import itertools
import threading

import pytest
from support.calls import watch
from support.clients import until
from support.prefix_server import EXACT, ask, conversation, serve

from edgekv._native import http_server as native
from edgekv._native.token_rows import HeldTokens
from edgekv.prefix_cache import writer
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import saving
from edgekv.server.saving import STILL_GAPS, STILL_S, Answers


@pytest.mark.parametrize(("gap_s", "still_s"), [(0.0, STILL_S), (0.4, STILL_GAPS * 0.4)])
def test_an_answer_runs_while_its_tokens_come(monkeypatch: pytest.MonkeyPatch, gap_s: float, still_s: float):
    """Slots that get no tokens read prompts, or the decoding thread waits."""
    now, found = [100.0], [(7, gap_s)]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(saving, "answers", lambda: found[0])
    running = Answers()
    assert running.run()
    now[0] += still_s - 0.01
    assert running.run()
    now[0] += 0.02
    assert not running.run()
    found[0] = 8, gap_s
    assert running.run()
    found[0] = None
    assert not running.run()


@pytest.fixture
def never_ending(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Answers never end, and pauses do not either. Once the event is set no more tokens come."""
    n_tokens, ended = itertools.count(), threading.Event()
    monkeypatch.setattr(writer, "PAUSE_S", 3600.0)
    monkeypatch.setattr(saving, "answers", lambda: None if ended.is_set() else (next(n_tokens), 0.01))
    return ended


def test_a_server_writes_when_its_answer_has_ended(tiny, monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Two blocks of the prompt, and the rest with the answer; and none of it stays in RAM."""
    monkeypatch.setattr(writer, "PAUSE_S", 3600.0)
    monkeypatch.setattr(saving, "STILL_S", 3600.0)
    at_work: list[int] = []
    watch(monkeypatch, HeldTokens, "read", lambda *_: at_work.append(native.pacing().n_running))
    with serve(tiny, EXACT, StoreSettings(folder=tmp_path)) as server:
        ask(server, conversation(1, 700), 60)
        until(lambda: server.prefixes.stats()[0].disk.n_blocks == 3)
        assert at_work == [0, 0, 0] and server.prefixes.stats()[0].ram.n_bytes == 0


def test_where_answers_never_end_blocks_are_written_after_a_pause(tiny, monkeypatch: pytest.MonkeyPatch, never_ending, tmp_path):
    monkeypatch.setattr(writer, "PAUSE_S", 0.1)
    with serve(tiny, EXACT, StoreSettings(folder=tmp_path)) as server:
        ask(server, conversation(1, 700))
        until(lambda: server.prefixes.stats()[0].disk.n_blocks == 3)


def test_a_flush_ends_the_wait(tiny, never_ending, tmp_path):
    with serve(tiny, EXACT, StoreSettings(folder=tmp_path)) as server:
        ask(server, conversation(1, 700))
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.disk.n_blocks, stats.n_unwritten) == (0, 3)
        server.prefixes.flush()
        (stats,) = server.prefixes.stats()
        assert (stats.disk.n_blocks, stats.n_unwritten) == (3, 0)


@pytest.mark.parametrize("slot", [0, 1])
def test_what_was_answered_is_found_although_writes_wait(tiny, never_ending, slot, tmp_path):
    """In its slot, whose rows another conversation takes, and in another one."""
    with serve(tiny, EXACT, StoreSettings(folder=tmp_path), n_slots=2, extra=("--no-kv-unified",)) as server:
        first = ask(server, conversation(1, 700), id_slot=0)
        if slot == 0:
            ask(server, conversation(2, 700), id_slot=0)
        again = ask(server, conversation(1, 700), id_slot=slot)
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == first["tokens"]


def test_the_next_turn_copies_nothing(tiny):
    """It begins in its slot with all that is there, and is kept with it."""
    with serve(tiny, EXACT) as server:
        first = ask(server, conversation(1, 700))
        longer = [*conversation(1, 700), *first["tokens"], *conversation(2, 100)]
        assert ask(server, longer)["timings"]["cache_n"] >= 700
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.ram.n_bytes, stats.n_in_slots) == (0, 4)


def test_what_was_answered_is_found_after_a_restart(tiny, never_ending, tmp_path):
    """The server stops while writes wait; the context does not go before its rows are copied."""
    store = StoreSettings(folder=tmp_path)
    with serve(tiny, EXACT, store) as server:
        ask(server, conversation(1, 700))
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.disk.n_blocks, stats.ram.n_blocks) == (0, 0)
    with serve(tiny, EXACT, store) as server:
        assert ask(server, conversation(1, 700))["timings"]["cache_n"] == 699
