"""KV cells as Python sees them, against a model of what seq_rm, seq_cp, shift, state save and load do to them."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.contexts import attached
from support.double import as_values
from support.events import Model, act

from edgekv._native import testing
from edgekv.common.enums import CacheType
from edgekv.common.errors import EdgeKVError
from edgekv.config import KvOptions

import llama_cpp


def snapshot(run) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Per stream copies of positions, sequence bits, and the K and V rows of every layer; zeros for cells without a token, whose memory may go back."""
    keys = [np.array(run.cells.keys(layer.il)) for layer in run.layers]
    values = [np.array(run.cells.values(layer.il)) for layer in run.layers]
    found = []
    for s in range(run.cells.n_stream):
        view = run.cells.stream(s)
        rows = np.stack([k[s] for k in keys], 1), np.stack([v[s] for v in values], 1)
        for each in rows:
            each[view.positions < 0] = 0
        found.append((view.positions.copy(), view.sequence_bits.copy(), *rows))
    return found


def differing(before, after) -> np.ndarray:
    """Cells whose position, sequences or bytes of K or V are not the same any more."""
    n = len(before[0])
    return np.flatnonzero(np.any([(a.reshape(n, -1).view(np.uint8) != b.reshape(n, -1).view(np.uint8)).any(axis=1)
                                  for a, b in zip(before, after)], axis=0))


def check_contents(run, model: Model) -> None:
    for seq, positions in enumerate(model.sequences):
        view = run.cells.stream(run.cells.stream_of(seq))
        mine = view.in_sequence(seq)
        assert sorted(view.positions[mine]) == sorted(positions), f"sequence {seq} has other positions"
        for cell in np.flatnonzero(mine)[:3]:
            assert seq in view.sequences(cell), f"cell {cell} does not name sequence {seq}"
    n_used = sum(run.cells.stream(s).n_used for s in range(run.cells.n_stream))
    assert run.memory().n_cells_used == n_used, "the report counts other cells than the streams hold"
    for s in range(run.cells.n_stream):
        view = run.cells.stream(s)
        used = np.flatnonzero(view.positions >= 0)
        assert view.n_used == len(used), f"stream {s} counts other cells than it holds"
        assert view.used_end == (used[-1] + 1 if len(used) else 0), f"stream {s} ends elsewhere"


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_cells_follow_every_event(synthetic, unified: bool, seed: int):
    rng = np.random.default_rng(seed)
    with attached(synthetic("llama"), n_ctx=256 if unified else 4 * 256, unified=unified) as (context, run):
        context.unified = unified
        model, saved = Model(4), []
        for _ in range(60 if unified else 30):
            clocks = [run.cells.stream(s).now for s in range(run.cells.n_stream)]
            before = snapshot(run)
            act(rng, context, model, saved)
            check_contents(run, model)
            for s, (old, new, clock) in enumerate(zip(before, snapshot(run), clocks)):
                changed = run.cells.stream(s).changed_since(clock)
                assert set(differing(old, new)) <= set(changed), "a cell changed and its clock did not"


def test_only_what_was_touched_is_marked(synthetic):
    with attached(synthetic("llama"), n_ctx=256) as (context, run):
        context.decode(range(260, 300), range(40), [0] * 40)
        view = run.cells.stream()
        start = view.now
        assert view.changed_since(0).tolist()[:40] == list(range(40))

        context.decode([270], [40], [0])
        assert run.cells.stream().changed_since(start).tolist() == [40]

        now = run.cells.stream().now
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 20, 30)
        assert run.cells.stream().changed_since(now).tolist() == list(range(20, 30))

        now = run.cells.stream().now
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, 0, 5)
        assert run.cells.stream().changed_since(now).tolist() == list(range(5))

        # a shift is marked when it is queued, and again when the next decode has applied it to K
        now = run.cells.stream().now
        llama_cpp.llama_memory_seq_add(context.memory, 0, 30, -1, -10)
        queued = run.cells.stream()
        assert queued.changed_since(now).tolist() == list(range(30, 41))
        keys = np.array(run.cells.keys(0)[0, 30:41])
        context.decode([271], [31], [0])
        applied = run.cells.stream()
        assert set(range(30, 41)) <= set(applied.changed_since(queued.now).tolist())
        assert (run.cells.keys(0)[0, 30:41] != keys).any()


@pytest.mark.parametrize("mode", ["off", "exact", "sparse"])
def test_a_token_costs_the_same_however_many_cells_there_are(synthetic, mode: str):
    """A token costs a look at the pages that it stored into, and at their sketches."""
    looked = []
    for n_ctx in (512, 32768):
        with attached(synthetic("llama"), KvOptions(mode=mode), n_ctx=n_ctx, n_seq=1) as (context, run):
            context.decode(range(260, 350), range(90), [0] * 90)
            before = testing.cells_looked(run._native_handle())
            for i in range(64):
                context.decode([270 + i], [90 + i], [0])
            looked.append(testing.cells_looked(run._native_handle()) - before)
    assert 64 <= looked[0] == looked[1] <= 64 * 128


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_rows_are_the_cache_itself(synthetic, kind: str):
    """A view shows the rows that attention reads later, and it is read-only."""
    types = {"type_k": CacheType(kind).ggml_type, "type_v": CacheType(kind).ggml_type}
    with attached(synthetic("llama"), **types) as (context, run):
        context.decode(range(260, 280), range(20), [0] * 20)
        keys = run.cells.keys(1)
        assert keys.shape == ((1, 512, 2, 64) if kind == "f16" else (1, 512, 2, 2))
        values = as_values(keys)
        assert np.abs(values[0, :20]).max() > 0.1 and not values[0, 20:256].any()
        with pytest.raises(ValueError, match="read-only"):
            keys[0, 0, 0, 0] = keys[0, 1, 0, 0]
        context.decode([300], [20], [0])
        assert np.any(as_values(keys)[0, 20]), "the view shows the row stored since"


def test_views_are_refused_after_the_context_is_gone(synthetic):
    with attached(synthetic("llama")) as (_, run):
        assert run.cells.stream().n_used == 0
    assert run.closed
    with pytest.raises(EdgeKVError, match="freed"):
        run.cells.stream()


def flags_of(address: int) -> list[str]:
    """VmFlags of the mapping that an address lies in."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            first, end = (int(x, 16) for x in line.split()[0].split("-"))
            here = first <= address < end
        elif here and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise LookupError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages to ask for")
@pytest.mark.parametrize(("options", "n_ctx", "flag"), [
    (KvOptions(), 1 << 18, "hg"), (KvOptions(mode="evict", evict_to=1 << 17), 1 << 18, "nh"), (KvOptions(), 1 << 15, "nh")],
    ids=["many rows", "evict", "few rows"])
def test_the_cache_asks_for_huge_pages(synthetic, options, n_ctx, flag):
    """In mode evict for small ones, of which single ones are given back; and where few tokens would take part of many."""
    with attached(synthetic("llama"), options, n_ctx=n_ctx, n_seq=1) as (_, run):
        views = [view(layer.il) for layer in run.layers for view in (run.cells.keys, run.cells.values)]
        middles = [view.__array_interface__["data"][0] + view.nbytes // 2 for view in views]
        assert all((view.nbytes >= 16 << 20) == (n_ctx == 1 << 18) for view in views)
        assert all({"hg", "nh"} & {*flags_of(middle)} == {flag} for middle in middles)
