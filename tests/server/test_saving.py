"""Rows are copied out beside the decoding, and the next prompt finds them all the same."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.prefix_server import EXACT, SPARSE, ask, conversation, serve

from edgekv._native.token_rows import HeldTokens
from edgekv.prefix_cache.settings import StoreSettings


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`reads(call, slot)`: `call` runs before rows of a slot (None: of any) are copied out. Returns the names of the threads that copy."""
    read = HeldTokens.read

    def before(call: Callable[[], object], slot: int | None = None) -> list[str]:
        names: list[str] = []

        def wrapped(held: HeldTokens, *arguments: int) -> np.ndarray:
            name = threading.current_thread().name
            names.append(name)
            if slot is None or name == f"edgekv-save-{slot}_0":
                call()
            return read(held, *arguments)

        monkeypatch.setattr(HeldTokens, "read", wrapped)
        return names

    return before


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
def test_others_are_answered_while_rows_are_copied_out(tiny, reads, kv):
    """The copy waits until two other conversations were answered."""
    go_on, begun = threading.Event(), threading.Event()
    with serve(tiny, kv, n_slots=2) as server:
        names = reads(lambda: (begun.set(), go_on.wait(60)), slot=0)
        ask(server, conversation(1, 600), id_slot=0)
        assert begun.wait(20)
        answers = [ask(server, conversation(seed, 40), 20, id_slot=1) for seed in (2, 3)]
        assert all(len(answer["tokens"]) == 20 for answer in answers) and not go_on.is_set()
        go_on.set()
        server.prefixes.flush()
        assert set(names) == {"edgekv-save-0_0", "edgekv-save-1_0"} and names.count("edgekv-save-0_0") == 3
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_blocks >= 3


def test_a_prompt_that_begins_like_what_is_being_saved_has_it(tiny, reads):
    """The second prompt waits for the copy, and reads nothing twice."""
    with serve(tiny, EXACT, n_slots=2, extra=("--no-kv-unified",)) as server:
        reads(lambda: threading.Event().wait(0.1))
        ask(server, conversation(1, 700), id_slot=0)
        again = ask(server, conversation(1, 700), id_slot=1)
        assert again["timings"]["cache_n"] == 699


def test_what_takes_the_slot_waits_for_its_rows(tiny, reads):
    """Another conversation takes the slot of one that is being saved: the kept rows are the first one's all the same."""
    with serve(tiny, EXACT, n_slots=1) as server:
        first = ask(server, conversation(1, 700), 8)
        reads(lambda: threading.Event().wait(0.05))
        for seed in (2, 3, 4):
            ask(server, conversation(seed, 700))
        server.prefixes.flush()
        again = ask(server, conversation(1, 700), 8)
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == first["tokens"]
    with serve(tiny, EXACT, n_slots=1) as server:
        alone = [ask(server, conversation(seed, 700), 8, cache_prompt=False)["tokens"] for seed in (1, 2)]
    assert alone[0] == first["tokens"]


def test_others_are_answered_while_a_slot_waits_for_its_own_rows(tiny, reads):
    """Another conversation takes the slot of one whose copy does not end."""
    go_on = threading.Event()
    with serve(tiny, EXACT, n_slots=2) as server, ThreadPoolExecutor(1) as pool:
        reads(lambda: go_on.wait(60), slot=0)
        ask(server, conversation(1, 700), id_slot=0)
        waits = pool.submit(ask, server, conversation(2, 700), id_slot=0)
        answers = [ask(server, conversation(seed, 40), 20, id_slot=1) for seed in (3, 4, 5)]
        assert all(len(answer["tokens"]) == 20 for answer in answers)
        assert not waits.done() and not go_on.is_set()
        go_on.set()
        assert len(waits.result(60)["tokens"]) > 0
        server.prefixes.flush()
        assert ask(server, conversation(1, 700), id_slot=1)["timings"]["cache_n"] == 699


def test_others_are_answered_while_a_prompt_waits_for_the_rows_of_another_slot(tiny, reads):
    """It waits for a second, and then reads its prompt itself; they do not wait at all."""
    go_on, copied = threading.Event(), threading.Event()
    with serve(tiny, EXACT, n_slots=3, extra=("--no-kv-unified",)) as server, ThreadPoolExecutor(1) as pool:
        reads(lambda: (go_on.wait(600), copied.set()), slot=0)
        ask(server, conversation(1, 700), id_slot=0)
        waits = pool.submit(ask, server, conversation(1, 700), id_slot=1)
        n = 0
        while not waits.done():
            ask(server, conversation(10 + n, 40), 2, id_slot=2)
            n += not waits.done()
        assert n and waits.result()["timings"]["cache_n"] < 64 and not copied.is_set()
        go_on.set()


def test_a_server_that_stops_waits_for_what_is_being_saved(tiny, reads, tmp_path):
    store = StoreSettings(folder=tmp_path)
    with serve(tiny, EXACT, store) as server:
        reads(lambda: threading.Event().wait(0.2))
        ask(server, conversation(1, 700))
    with serve(tiny, EXACT, store) as server:
        assert ask(server, conversation(1, 700))["timings"]["cache_n"] == 699


@pytest.mark.usefixtures("single_precision")
def test_many_conversations_in_few_slots_are_all_kept_right(tiny):
    """Slots change hands while their rows are copied out; each conversation comes back as it was. An answer beside others' prompts is in
    batches with them, which a kernel of prompts may read in bf16: not here."""
    prompts = [conversation(seed, 300 + 40 * seed) for seed in range(8)]
    with serve(tiny, EXACT, n_slots=2) as server, ThreadPoolExecutor(4) as pool:
        first = list(pool.map(lambda prompt: ask(server, prompt, 8), prompts))
        again = list(pool.map(lambda prompt: ask(server, prompt, 8), prompts))
    for prompt, one, two in zip(prompts, first, again):
        assert one["tokens"] == two["tokens"] and two["timings"]["cache_n"] >= len(prompt) - 1


def test_a_prompt_that_begins_like_what_is_copied_too_slowly_is_computed(tiny, reads):
    go_on = threading.Event()
    with serve(tiny, EXACT, n_slots=2, extra=("--no-kv-unified",)) as server:
        reads(lambda: go_on.wait(60), slot=0)
        first = ask(server, conversation(1, 700), id_slot=0)
        again = ask(server, conversation(1, 700), id_slot=1)
        assert not go_on.is_set() and again["timings"]["cache_n"] == 0 and again["tokens"] == first["tokens"]
        go_on.set()


def test_a_copy_that_fails_holds_nothing(tiny, reads):
    """Another conversation takes the slot, and is kept."""
    def fail() -> None:
        raise MemoryError

    with serve(tiny, EXACT, n_slots=1) as server:
        reads(fail)
        ask(server, conversation(1, 700))
        reads(lambda: None)
        second = ask(server, conversation(2, 700))
        ask(server, conversation(3, 700))
        again = ask(server, conversation(2, 700))
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == second["tokens"]


def test_without_threads_rows_are_copied_before_the_next_decode(tiny, monkeypatch):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("edgekv-save"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with serve(tiny, EXACT, n_slots=1) as server:
        first = ask(server, conversation(1, 700))
        ask(server, conversation(2, 700))
        again = ask(server, conversation(1, 700))
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == first["tokens"]
