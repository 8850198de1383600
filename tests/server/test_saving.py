"""Kept rows stay in their slot until it needs the cells or answers pause, and the next prompt finds them all the same."""

import json
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from support.calls import Held, watch
from support.clients import Endpoint, request_bytes, reset, shown_at, until
from support.prefix_server import EXACT, SPARSE, ask, conversation, serve

from edgekv._native import http_server as native
from edgekv._native import token_rows
from edgekv._native.token_rows import HeldTokens
from edgekv.prefix_cache import writer
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import saving
from edgekv.server.saving import STILL_GAPS, STILL_S, Answers


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where rows cannot be parked (test_parking.py)."""
    monkeypatch.setattr(HeldTokens, "parks", False)


@pytest.mark.parametrize("slot", [0, 1])
def test_what_lies_in_a_slot_is_not_in_ram_too(tiny, slot):
    """RAM gets it when another conversation takes the slot; a prompt that begins alike has it in either place."""
    def shows(n_blocks: int, n_in_slots: int) -> bool:
        kept = shown_at(server, "/props")["edgekv"]["store"]
        assert (kept["ram_bytes"] > 0) == (kept["n_blocks"] > 0)
        return (kept["n_blocks"], kept["n_blocks_in_slots"]) == (n_blocks, n_in_slots)

    with serve(tiny, EXACT, n_slots=2, extra=("--no-kv-unified",)) as server:
        first = ask(server, conversation(1, 1300), 8, id_slot=0)
        until(lambda: shows(0, 6))
        if slot == 0:
            ask(server, conversation(2, 300), id_slot=0)
            until(lambda: shows(6, 2))
        again = ask(server, conversation(1, 1300), 8, id_slot=slot)
        assert again["timings"]["cache_n"] == 1299 and again["tokens"] == first["tokens"]


def test_the_bound_of_ram_is_that_of_copies(tiny, copied):
    """Of ten conversations in two slots: what NumPy allocated for rows taken out of slots. Those in slots are the context's and count nowhere."""
    n, n_kept = 600, 3
    copies = tracemalloc.Filter(True, token_rows.__file__, domain=np.lib.tracemalloc_domain)
    with serve(tiny, EXACT, n_slots=1) as server:
        token_bytes = sum(map(sum, server.runtime.tokens.row_bytes()))
    bound = n_kept * n * (token_bytes + 4)
    with serve(tiny, EXACT, StoreSettings(ram_bytes=bound), n_slots=2, extra=("--no-kv-unified",)) as server:
        tracemalloc.start()
        try:
            for seed in range(10):
                ask(server, conversation(seed, n), id_slot=seed % 2)
            server.settle()
            n_bytes = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([copies]).traces)
        finally:
            tracemalloc.stop()
        (stats,) = server.prefixes.stats()
        assert (n_kept - 1) * n * token_bytes < n_bytes <= stats.ram.n_bytes <= bound and stats.n_in_slots >= 2 * (n // 256)
        assert all(ask(server, conversation(seed, n), id_slot=seed % 2)["timings"]["cache_n"] == n - 1 for seed in (9, 8))


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
def test_others_are_answered_while_a_slot_waits_for_its_own_rows(tiny, monkeypatch, copied, kv):
    """Another conversation takes the slot of one whose copy does not end. Who begins as that one does would wait for the copy of their common block."""
    with serve(tiny, kv, n_slots=2) as server, ThreadPoolExecutor(1) as pool:
        copies = Held(monkeypatch, HeldTokens, "read")
        ask(server, conversation(1, 700), id_slot=0)
        waits = pool.submit(ask, server, conversation(2, 700), id_slot=0)
        assert copies.begun.wait(20)
        assert len(ask(server, conversation(3, 40)[1:], 20, id_slot=1)["tokens"]) == 20
        assert not waits.done() and all(name.startswith("edgekv-save") for name in copies.threads)
        copies.go_on.set()
        assert len(waits.result(60)["tokens"]) > 0
        assert ask(server, conversation(1, 700), id_slot=1)["timings"]["cache_n"] == 699


def test_who_is_gone_leaves_its_rows_to_the_next(tiny, monkeypatch, copied):
    """A prompt that would have kept the beginning ends while its part is copied; the next one needs all cells, and no copy is the decoding thread's."""
    with serve(tiny, EXACT, n_slots=1) as server:
        copies, endpoint = Held(monkeypatch, HeldTokens, "read"), Endpoint(server)
        first = ask(server, conversation(1, 1300))
        gone = endpoint.send(request_bytes("/completion", json.dumps({"prompt": [*conversation(1, 1300)[:600], *conversation(2, 300)]}).encode()))
        assert copies.begun.wait(20)
        reset(gone)
        until(lambda: endpoint.n_busy() == 0)
        copies.go_on.set()
        ask(server, conversation(3, 700))
        assert len(copies.threads) == 6 and all(name.startswith("edgekv-save") for name in copies.threads)
        again = ask(server, conversation(1, 1300))
        assert again["timings"]["cache_n"] == 1299 and again["tokens"] == first["tokens"]


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


def test_a_copy_that_fails_holds_nothing(tiny, monkeypatch, copied):
    """Another conversation takes the slot, and is kept."""
    copy = Mock(side_effect=MemoryError)
    with serve(tiny, EXACT, n_slots=1) as server:
        with monkeypatch.context() as patched:
            patched.setattr(HeldTokens, "read", copy)
            ask(server, conversation(1, 700))
            second = ask(server, conversation(2, 700))
        assert copy.called
        ask(server, conversation(3, 700))
        again = ask(server, conversation(2, 700))
        assert again["timings"]["cache_n"] == 699 and again["tokens"] == second["tokens"]


def test_without_threads_rows_are_copied_on_the_decoding_thread(tiny, monkeypatch, copied):
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


# ---- writes between answers ----------------------------------------------------------------------------------------------------------


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


def test_the_next_turn_copies_nothing(tiny):
    """It begins in its slot with all that is there, and is kept with it."""
    with serve(tiny, EXACT) as server:
        first = ask(server, conversation(1, 700))
        longer = [*conversation(1, 700), *first["tokens"], *conversation(2, 100)]
        assert ask(server, longer)["timings"]["cache_n"] >= 700
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.ram.n_bytes, stats.n_in_slots) == (0, 4)


def test_what_was_answered_is_found_after_a_restart(tiny, never_ending, monkeypatch, tmp_path):
    """The server stops while writes wait; the context does not go before its rows are copied, which takes a while."""
    store = StoreSettings(folder=tmp_path)
    watch(monkeypatch, HeldTokens, "read", lambda *_: time.sleep(0.2))
    with serve(tiny, EXACT, store) as server:
        ask(server, conversation(1, 700))
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.disk.n_blocks, stats.ram.n_blocks) == (0, 0)
    with serve(tiny, EXACT, store) as server:
        assert ask(server, conversation(1, 700))["timings"]["cache_n"] == 699
