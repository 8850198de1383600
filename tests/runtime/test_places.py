"""Where tokens of several sequences lie in one cache: each sequence has whole groups of 64 cells, and shares only what belongs to both."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.contexts import Context, attached
from support.events import check

from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp

GROUP, PAGE = 64, 16
SPARSE = KvOptions(mode="sparse", sample_budget=30, exact_tokens=0, recent_tokens=16, keep_rows=True, policy="none")
EXACT = KvOptions(mode="exact")


def of(run: Runtime) -> tuple[np.ndarray, np.ndarray]:
    """int32 [cell] positions, -1: empty; uint64 [cell] bits of sequences 0 to 63."""
    view = run.cells.stream()
    return view.positions.copy(), np.where(view.positions >= 0, view.sequence_bits[:, 0], 0)


def mixed(run: Runtime, unit: int = GROUP) -> list[int]:
    """The units in which no sequence has all tokens."""
    positions, bits = of(run)
    found = []
    for first in range(0, len(positions), unit):
        here = slice(first, first + unit)
        held = bits[here][positions[here] >= 0]
        if len(held) and not np.bitwise_and.reduce(held):
            found.append(first // unit)
    return found


def cells_of(run: Runtime, sequence: int) -> np.ndarray:
    """The cells of a sequence, in the order of its positions."""
    positions, bits = of(run)
    mine = np.flatnonzero(bits >> np.uint64(sequence) & np.uint64(1))
    return mine[np.argsort(positions[mine], kind="stable")]


def words(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(260, 350, n)


def read(context: Context, sequence: int, n: int, first: int = 0, seed: int = 0) -> None:
    context.read(words(seed, first + n), first, first + n, sequence, 200)


def remove(context: Context, sequence: int, first: int = -1) -> None:
    assert llama_cpp.llama_memory_seq_rm(context.memory, sequence, first, -1)


def fork(context: Context, sequence: int, to: int) -> None:
    llama_cpp.llama_memory_seq_cp(context.memory, sequence, to, -1, -1)


# ---- placement ---------------------------------------------------------------------------------------------------------------


def test_random_answers_removals_and_forks(synthetic):
    """As long as some group is empty, no group has tokens of two sequences but what was copied."""
    with attached(synthetic("llama"), SPARSE, n_ctx=4096, n_seq=4) as (context, run):
        rng = np.random.default_rng(5)
        n_held = [0] * 4
        for step in range(200):
            sequence, other = (int(s) for s in rng.choice(4, 2, replace=False))
            event = rng.choice(["answer", "answer", "answer", "prompt", "rm", "fork"])
            if event == "prompt" and n_held[sequence] < 500:
                n = int(rng.integers(1, 150))
                read(context, sequence, n, n_held[sequence])
                n_held[sequence] += n
            elif event == "rm" and n_held[sequence]:
                first = int(rng.integers(0, n_held[sequence]))
                remove(context, sequence, first)
                n_held[sequence] = first
            elif event == "fork" and n_held[sequence]:
                remove(context, other)
                fork(context, sequence, other)
                n_held[other] = n_held[sequence]
            else:
                context.decode(words(step, 4), n_held, range(4))
                n_held = [n + 1 for n in n_held]
            assert mixed(run) == [], (step, event)
            assert [len(cells_of(run, s)) for s in range(4)] == n_held
        check(run)


def test_sequences_of_one_batch_share_no_page_while_some_are_empty(synthetic):
    """Groups run out within the batch: what its other sequences just took is not empty any more."""
    lengths = (70, 70, 20)
    with attached(synthetic("llama"), n_ctx=256, n_seq=3) as (context, run):
        context.decode(words(1, 160), np.concatenate([np.arange(n) for n in lengths]), np.repeat(range(3), lengths))
        assert mixed(run, PAGE) == [] and [len(cells_of(run, sequence)) for sequence in range(3)] == list(lengths)


def test_a_full_cache_is_full_when_its_cells_are(synthetic):
    """Groups, then pages, then single cells: no token is refused while a cell is free."""
    with attached(synthetic("llama"), n_ctx=256, n_seq=3) as (context, run):
        for sequence in range(3):
            read(context, sequence, 10)
        read(context, 0, 64 + 54, 10)  # the last empty group, and the rest of its own
        assert mixed(run) == []
        read(context, 0, 32, 128)  # whole pages of the other's groups
        assert mixed(run, PAGE) == [] and mixed(run) != []
        n_used = run.cells.stream().n_used
        read(context, 0, 256 - n_used, 160)
        assert run.cells.stream().n_used == 256
        assert context.status([300], [10], [[1]]) == 1, "llama_decode finds no cell"
        remove(context, 2)
        context.decode([300], [10], [1])
        assert len(cells_of(run, 1)) == 11


def test_a_refused_batch_leaves_no_trace(synthetic):
    """The search for cells is speculative: where the second half of a batch finds none, the first goes where it would have gone."""
    with attached(synthetic("llama"), n_ctx=256, n_seq=2, n_ubatch=64) as (context, run):
        read(context, 0, 20)
        read(context, 1, 20)
        before, clock = of(run), run.cells.stream().now
        assert context.status([300] * 230, range(20, 250), [[0]] * 230) == 1
        for now, then in zip(of(run), before):
            np.testing.assert_array_equal(now, then)
        assert not run.cells.stream().changed_since(clock).size
        read(context, 0, 10, 20)
        assert len(np.unique(cells_of(run, 0) // GROUP)) == 1 and mixed(run) == []


def test_a_saved_sequence_comes_back_in_groups_of_its_own(synthetic):
    with attached(synthetic("llama"), n_ctx=1024, n_seq=3) as (context, run):
        read(context, 0, 100)
        read(context, 1, 100, seed=1)
        state = context.save(1)
        logits = context.decode([300], [100], [1])
        remove(context, 1)
        read(context, 2, 30, seed=2)
        context.load(state, 1)
        assert mixed(run) == [] and len(cells_of(run, 1)) == 100
        np.testing.assert_array_equal(context.decode([300], [100], [1]), logits)


BARE = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from support.contexts import Context
    context = Context(Path(sys.argv[1]), n_ctx=512, n_seq=2)
    for step in range(8):
        context.decode([300, 301], [step] * 2, range(2))
    sys.stdout.buffer.write(context.save())
"""


def test_without_edgekv_it_is_upstreams(synthetic):
    support = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(BARE), str(synthetic("llama")), str(support)],
                          env={**os.environ, "EDGEKV": "0"}, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with attached(synthetic("llama"), n_ctx=512, n_seq=2) as (context, run):
        context.load(done.stdout)
        assert mixed(run) == [0], "the tokens lie side by side"


def test_a_token_builds_no_sketch_while_groups_are_filled(synthetic):
    """Each answer has an open group of its own, without a sketch."""
    with attached(synthetic("llama"), SPARSE, n_ctx=2048, n_seq=4) as (context, run):
        for s in range(4):
            read(context, s, 70, seed=s)
        context.decode([300] * 4, [70] * 4, range(4))
        for i in range(1, 50):
            context.decode([300] * 4, [70 + i] * 4, range(4))
            assert check(run).n_groups == 4 * len(run.layers), "one full group of each is sketched"


@pytest.mark.parametrize("options", [EXACT, SPARSE], ids=["exact", "sparse"])
def test_a_fork_that_moves_leaves_the_others_where_they_are(synthetic, options: KvOptions):
    """A context shift of one used to move the common beginning of both."""
    with attached(synthetic("llama"), options, n_ctx=2048, n_seq=2) as (context, run):
        read(context, 0, 300)
        fork(context, 0, 1)
        rows = [np.array(of_layer(run.layers[0].il))[0][cells_of(run, 0)].copy() for of_layer in (run.cells.keys, run.cells.values)]
        assert llama_cpp.llama_memory_seq_rm(context.memory, 1, 100, 150)
        llama_cpp.llama_memory_seq_add(context.memory, 1, 150, -1, -50)
        context.decode([300], [250], [1])
        positions, _ = of(run)
        assert positions[cells_of(run, 0)].tolist() == list(range(300)) and positions[cells_of(run, 1)].tolist() == list(range(251))
        for now, then in zip((run.cells.keys, run.cells.values), rows):
            np.testing.assert_array_equal(np.array(now(run.layers[0].il))[0][cells_of(run, 0)], then)
        np.testing.assert_array_equal(np.array(run.cells.values(run.layers[0].il))[0][cells_of(run, 1)[100:250]], rows[1][150:])
        assert mixed(run) == [] and run.cells.stream().n_used == 300 + 150 + 1
        check(run)
