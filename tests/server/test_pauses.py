"""Rows are copied out between answers: when copies wait, and what ends their wait."""

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.prefix_server import EXACT, ask, conversation, serve

from edgekv._native import http_server as native
from edgekv._native.token_rows import HeldTokens
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import saving
from edgekv.server.saving import PAUSE_S, POLL_S, STILL_GAPS, STILL_S, Saver


class Clock(threading.Condition):
    """Time passes only while the lock is waited for."""

    now = 100.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """`waited(running, n)`: seconds for which each of n blocks waits."""

    def seconds(running: Callable[[], tuple[int, float] | None], n: int = 1) -> list[float]:
        clock, saver, ended = Clock(), Saver(), threading.Event()
        monkeypatch.setattr(saving, "time", clock)
        monkeypatch.setattr(saving, "answers", running)
        monkeypatch.setattr(saver, "_changed", clock)
        times = [clock.now]

        def copy(turn: Callable[[int], int]) -> None:
            for block in range(n):
                turn(256 * block)
                times.append(clock.now)
            ended.set()

        saver.add(0, b"root", TOKENS, copy)
        saver._threads[0].shutdown()  # before close(): this clock cannot wait without an end
        assert ended.is_set()
        saver.close()
        return [end - begin for begin, end in itertools.pairwise(times)]

    return seconds


TOKENS = np.arange(600, dtype=np.int32)


def test_a_block_waits_for_the_end_of_the_answer(waited):
    """It looks again and again: three times while tokens come, then no slot is at work."""
    answering: Iterator[tuple[int, float] | None] = iter([(1, 0.01), (2, 0.01), (3, 0.01), None])
    assert waited(lambda: next(answering)) == [pytest.approx(3 * POLL_S)]
    assert next(answering, "no more") == "no more"


def test_without_an_answer_nothing_waits(waited):
    assert waited(lambda: None, 3) == [0, 0, 0]


def test_where_answers_never_end_each_block_is_copied_after_a_pause(waited):
    n_tokens = itertools.count()
    assert all(PAUSE_S <= pause < PAUSE_S + 2 * POLL_S for pause in waited(lambda: (next(n_tokens), 0.01), 3))


@pytest.mark.parametrize(("gap_s", "still_s"), [(0.0, STILL_S), (0.4, STILL_GAPS * 0.4)])
def test_slots_that_get_no_tokens_are_not_waited_for(waited, gap_s, still_s):
    """They read prompts, or the decoding thread itself waits for the rows: then the next blocks do not wait again."""
    first, *others = waited(lambda: (7, gap_s), 3)
    assert still_s < first < still_s + 3 * POLL_S
    assert others == [0, 0]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Saver:
    """A saver beside answers that never end, and whose pauses do not either."""
    never_ending(monkeypatch)
    return Saver()


def never_ending(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once the event is set no more tokens come."""
    n_tokens, ended = itertools.count(), threading.Event()
    monkeypatch.setattr(saving, "PAUSE_S", 3600.0)
    monkeypatch.setattr(saving, "answers", lambda: (0 if ended.is_set() else next(n_tokens), 0.01))
    return ended


BLOCKS = [0, 256, 512]


def begin(saver: Saver, tokens: np.ndarray = TOKENS, go_on: Callable[[int], object] = lambda first: None) -> list[int]:
    """Save the three blocks of tokens in sequence 0, calling `go_on` as each is copied; returns the first tokens of those copied so far."""
    copied: list[int] = []

    def save(turn: Callable[[int], int]) -> None:
        for first in BLOCKS:
            turn(first)
            go_on(first)
            copied.append(first)

    saver.add(0, b"root", tokens, save)
    return copied


def from_slot(saver: Saver, seq_id: int, wanted: np.ndarray, moment_s: float = 60) -> bool:
    return saver.ready(seq_id, b"root", wanted, 0, moment_s)


@pytest.mark.parametrize("end", [Saver.flush, Saver.close])
def test_what_waits_is_saved_at_the_end(endless, end):
    copied = begin(endless)
    end(endless)
    assert copied == BLOCKS
    endless.close()


@pytest.mark.parametrize(("seq_id", "wanted"), [(0, TOKENS[::-1].copy()), (1, TOKENS)], ids=["in its slot", "in another slot"])
def test_a_prompt_that_needs_rows_or_their_slot_ends_the_wait(endless, seq_id, wanted):
    copied = begin(endless)
    assert from_slot(endless, seq_id, wanted)
    assert copied == BLOCKS
    endless.close()


@pytest.mark.parametrize(("seq_id", "n_have"), [(0, 600), (1, 0)], ids=["the next turn", "another conversation"])
def test_a_prompt_that_needs_none_of_it_does_not(endless, seq_id, n_have):
    copied = begin(endless)
    wanted = np.concatenate([TOKENS, TOKENS]) if n_have else TOKENS[::-1].copy()
    assert endless.ready(seq_id, b"root", wanted, n_have, 60)
    assert not copied
    endless.close()


def test_a_prompt_waits_only_for_the_blocks_that_it_can_load(endless):
    """Also where the same slot's rows are to be saved once more, behind these."""
    wanted = np.concatenate([TOKENS[:300], TOKENS[:300]])
    first, second = begin(endless), begin(endless, np.concatenate([TOKENS, TOKENS]))
    assert from_slot(endless, 1, wanted)
    assert (first, second) == ([0, 256], [])
    assert from_slot(endless, 1, wanted), "they are there"
    assert (first, second) == ([0, 256], [])
    endless.close()
    assert first == second == BLOCKS


def test_a_prompt_waits_as_long_as_blocks_come(endless, monkeypatch):
    monkeypatch.setattr(saving, "MOST_WAIT_S", -1.0)  # whoever asks twice for one block has waited long enough
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    copied = begin(endless, go_on=lambda first: (begun.release(), go_on.acquire()))
    assert not from_slot(endless, 1, TOKENS, 0)
    for _ in BLOCKS[1:]:
        assert begun.acquire(timeout=20)
        go_on.release()
    assert begun.acquire(timeout=20)
    assert copied == BLOCKS[:2]
    assert not from_slot(endless, 1, TOKENS, 0), "blocks have come"
    assert from_slot(endless, 1, TOKENS, 0), "none has come since"
    go_on.release()
    endless.close()


# ---- a server ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_pauses_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of the answers lets copies go on, or somebody who needs them."""
    monkeypatch.setattr(saving, "PAUSE_S", 3600.0)
    monkeypatch.setattr(saving, "STILL_S", 3600.0)


@pytest.mark.usefixtures("no_pauses_end")
def test_a_server_copies_when_its_answer_has_ended(tiny, monkeypatch):
    read, at_work, all_read = HeldTokens.read, [], threading.Event()

    def noted(held: HeldTokens, *arguments: int) -> np.ndarray:
        at_work.append(native.pacing().n_running)
        if len(at_work) == 3:
            all_read.set()
        return read(held, *arguments)

    monkeypatch.setattr(HeldTokens, "read", noted)
    with serve(tiny, EXACT) as server:
        ask(server, conversation(1, 700), 60)
        assert all_read.wait(20), "two blocks of the prompt, and the rest with the answer"
        server.prefixes.flush()
        assert at_work == [0, 0, 0]
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_blocks == 3


@pytest.mark.parametrize("slot", [0, 1])
def test_what_was_answered_is_found_although_copies_wait(tiny, monkeypatch, slot):
    """In its slot, whose rows another conversation takes, and in another one."""
    never_ending(monkeypatch)
    with serve(tiny, EXACT, n_slots=2, extra=("--no-kv-unified",)) as server:
        first = ask(server, conversation(1, 700), id_slot=0)
        if slot == 0:
            ask(server, conversation(2, 700), id_slot=0)
        again = ask(server, conversation(1, 700), id_slot=slot)
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == first["tokens"]
        server.prefixes.flush()


def test_the_next_turn_waits_for_no_copy(tiny, monkeypatch):
    """It begins in its slot with all that is there, and is kept with it."""
    never_ending(monkeypatch)
    with serve(tiny, EXACT) as server:
        first = ask(server, conversation(1, 700))
        longer = [*conversation(1, 700), *first["tokens"], *conversation(2, 100)]
        assert ask(server, longer)["timings"]["cache_n"] >= 700
        server.settle()
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_blocks == 0
        server.prefixes.flush()
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_blocks == 4


def test_what_was_answered_is_found_after_a_restart(tiny, monkeypatch, tmp_path):
    """The server stops while copies wait; the context does not go before they are made."""
    ended = never_ending(monkeypatch)
    store = StoreSettings(folder=tmp_path)
    with serve(tiny, EXACT, store) as server:
        ask(server, conversation(1, 700))
        server.settle()
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_blocks == 0
        ended.set()
    with serve(tiny, EXACT, store) as server:
        assert ask(server, conversation(1, 700))["timings"]["cache_n"] == 699
