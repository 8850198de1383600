"""Finished rows are read on another thread while others are computed, and nothing moves or removes them meanwhile."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from support import held_rows
from support.contexts import attached
from support.held_rows import n_bytes, read

from edgekv._native import token_rows
from edgekv._native.token_rows import BlockRows, HeldTokens
from edgekv.common.errors import NativeError
from edgekv.config import KvOptions

import llama_cpp

N = 300


@pytest.fixture(autouse=True)
def not_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rows that leave with their memory nobody waits (test_parked_rows.py)."""
    monkeypatch.setattr(HeldTokens, "parks", False)


filled = partial(held_rows.filled, n=N, n_ctx=1024, n_seq=4, unified=True)


def rows(run, seq: int, n: int, held=None) -> bytes:
    return held_rows.rows(run, held, n) if held else run.tokens.read(seq, run.tokens.cells_of(seq, n), n_bytes(run, n)).tobytes()


def begun(call: Callable[[], object]) -> threading.Event:
    """What a thread of its own calls; the event: the call has ended."""
    done = threading.Event()
    threading.Thread(target=lambda: (call(), done.set()), daemon=True).start()
    return done


def waits_until_released(held, call: Callable[[], object]) -> None:
    done = begun(call)
    assert not done.wait(0.3), "the change did not wait for the held rows"
    held.release()
    assert done.wait(20), "the change waits after the release too"


MOVES: dict[str, Callable] = {
    "seq_rm": lambda context, _: llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, 20),
    "the whole sequence": lambda context, _: llama_cpp.llama_memory_seq_rm(context.memory, 0, -1, -1),
    "any sequence": lambda context, _: llama_cpp.llama_memory_seq_rm(context.memory, -1, 0, 20),
    "seq_keep": lambda context, _: llama_cpp.llama_memory_seq_keep(context.memory, 1),
    "shift": lambda context, _: llama_cpp.llama_memory_seq_add(context.memory, 0, 0, -1, 5),
    "divide": lambda context, _: llama_cpp.llama_memory_seq_div(context.memory, 0, 0, -1, 2),
    "clear": lambda context, _: llama_cpp.llama_memory_clear(context.memory, True),
    "state load": lambda context, saved: context.load(saved, 0),
    "free": lambda context, _: context.close(),
}

CASES = [(what, unified) for what in MOVES for unified in (True, False) if unified or what != "seq_keep"]  # which looks at its own cache


@pytest.mark.parametrize(("what", "unified"), CASES, ids=str)
def test_what_moves_or_removes_rows_waits_for_who_reads_them(synthetic, monkeypatch, what: str, unified: bool):
    with filled(synthetic, n_ctx=4096, unified=unified) as (context, run):
        read(context, 0, 20, seq=1)
        saved = context.save(1)
        before = rows(run, 0, N)
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        read(context, 20, 60, seq=1)  # others are computed meanwhile
        done = begun(lambda: MOVES[what](context, saved))
        assert not done.wait(0.3)
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(rows(run, 0, N, held)))
        reader.start()
        reader.join(20)
        assert found == [before] and not done.is_set()
        held.release()
        assert done.wait(20)
        if what == "free":
            monkeypatch.setattr(context, "close", lambda: None)


def test_who_needs_a_cell_asks_its_holder(synthetic):
    """On its own thread, and whoever holds other cells is not asked."""
    with filled(synthetic) as (context, run):
        cells, asked = run.tokens.cells_of(0, N), []
        first, second = run.tokens.hold(0, cells[:256]), run.tokens.hold(0, cells[256:])
        first.needed = lambda: (asked.append(threading.get_ident()), first.release())
        second.needed = lambda: 1 // 0  # it is released all the same
        assert llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, 256)
        assert asked == [threading.get_ident()]
        assert llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        assert asked == [threading.get_ident()]


def test_some_layers_are_read_alone(synthetic):
    with filled(synthetic) as (context, run):
        n_layers, before = run.tokens.n_layers(), rows(run, 0, N)
        per_layer = len(before) // n_layers
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        parts = [held.read(range(layer, layer + 1), per_layer).tobytes() for layer in range(n_layers)]
        assert n_layers > 1 and b"".join(parts) == before
        held.release()


def test_who_reads_has_the_rows_beyond_their_release(synthetic, monkeypatch):
    """Another thread releases them between two steps of the reader's."""
    native, freed = token_rows.lib, []

    class Spied:
        def __getattr__(self, name: str):
            return getattr(native, name)

        def edgekv_free_hold(self, hold) -> None:
            freed.append(hold)
            native.edgekv_free_hold(hold)

        def edgekv_read_held_tokens(self, *arguments) -> int:
            held.release()
            assert not freed
            return native.edgekv_read_held_tokens(*arguments)

    monkeypatch.setattr(token_rows, "lib", Spied())
    with filled(synthetic) as (_, run):
        before, held = rows(run, 0, N), run.tokens.hold(0, run.tokens.cells_of(0, N))
        assert rows(run, 0, N, held) == before and len(freed) == 1


def test_held_twice_is_released_twice(synthetic):
    with filled(synthetic) as (context, run):
        first, second = (run.tokens.hold(0, run.tokens.cells_of(0, n)) for n in (100, N))
        second.release()
        waits_until_released(first, lambda: llama_cpp.llama_memory_seq_rm(context.memory, 0, 50, -1))


def test_one_more_sequence_leaves_rows_where_they_are(synthetic):
    """A second sequence shares cells at once, also while they are read."""
    with filled(synthetic, unified=True) as (context, run):
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        assert begun(lambda: llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, 0, 200)).wait(20) and len(run.tokens.cells_of(1, N)) == 200
        held.release()


@pytest.mark.parametrize("move", [
    lambda memory: llama_cpp.llama_memory_seq_rm(memory, 0, 0, -1),
    lambda memory: llama_cpp.llama_memory_seq_keep(memory, 1),
], ids=["seq_rm", "seq_keep"])
def test_a_sequence_that_leaves_cells_to_another_waits_for_nobody(synthetic, move: Callable):
    """The rows stay, and are read as they were."""
    with filled(synthetic, unified=True) as (context, run):
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        before = rows(run, 0, N)
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        assert begun(lambda: move(context.memory)).wait(20) and len(run.tokens.cells_of(0, N)) == 0
        assert rows(run, 0, N, held) == before
        waits_until_released(held, lambda: llama_cpp.llama_memory_seq_rm(context.memory, 1, 0, -1))


def test_a_shift_of_others_is_computed_for_all_cells_and_waits(synthetic):
    """The next decode computes the shift."""
    with filled(synthetic, unified=True) as (context, run):
        read(context, 0, 20, seq=1)
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        llama_cpp.llama_memory_seq_add(context.memory, 1, 0, -1, 5)
        waits_until_released(held, lambda: read(context, 25, 26, seq=1))


def test_a_copy_of_a_stream_waits_for_who_reads_the_other(synthetic):
    with filled(synthetic, n_ctx=4096, unified=False) as (context, run):
        read(context, 0, 20, seq=1)
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        waits_until_released(held, lambda: llama_cpp.llama_memory_seq_cp(context.memory, 1, 0, -1, -1))


def test_rows_that_are_written_over_wait(synthetic):
    with filled(synthetic) as (context, run):
        cells = run.tokens.cells_of(0, N)
        block = np.zeros(n_bytes(run, N), np.uint8)
        held = run.tokens.hold(0, cells)
        waits_until_released(held, lambda: run.tokens.write(0, [BlockRows(cells, 0, N, block)], range(run.tokens.n_layers())))


def test_what_is_released_is_not_read(synthetic):
    with filled(synthetic) as (_, run):
        held = run.tokens.hold(0, run.tokens.cells_of(0, N))
        held.release()
        held.release()
        with pytest.raises(NativeError, match="no longer held"):
            rows(run, 0, N, held)


def test_a_hold_that_is_forgotten_holds_no_more(synthetic):
    with attached(synthetic("llama", dtype="f32"), KvOptions(mode="exact"), n_ctx=1024) as (context, run):
        read(context, 0, N)
        run.tokens.hold(0, run.tokens.cells_of(0, N))
        assert llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
