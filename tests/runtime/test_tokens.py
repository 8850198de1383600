"""Rows of tokens that were computed once are put back: the next token's logits are those of a context that never lost them."""

import numpy as np
import pytest
from support.contexts import attached

from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions
from edgekv.runtime.cells import SAMPLED

import llama_cpp

N, BLOCK = 600, 256
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 1e6, "policy": "none"}


def read(context, first: int, end: int, seq: int = 0) -> np.ndarray:
    return context.read(np.random.default_rng(5).integers(260, 1000, N + 40) % context.n_vocab, first, end, seq, 200)


def take(run, seq: int, n: int) -> list[tuple[int, int, np.ndarray]]:
    """The first n tokens of a sequence, in blocks: (first, tokens, rows)."""
    k_bytes, v_bytes = run.tokens.row_bytes()
    cells = run.tokens.cells_of(seq, n)
    assert len(cells) == n, f"{len(cells)} cells for {n} tokens"
    found = []
    for first in range(0, n, BLOCK):
        part = cells[first:first + BLOCK]
        found.append((first, len(part), run.tokens.read(seq, part, (sum(k_bytes) + sum(v_bytes)) * len(part))))
    return found


def test_a_part_of_a_block_takes_the_place_of_what_was_there(synthetic):
    with attached(synthetic("llama", dtype="f32"), KvOptions(mode="exact"), n_ctx=1024) as (context, run):
        read(context, 0, N)
        (_, _, first), (_, _, second), _ = take(run, 0, N)
        stayed = read(context, 400, 405, seq=0) if llama_cpp.llama_memory_seq_rm(context.memory, 0, 400, -1) else None
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        read(context, 0, 300, seq=1)
        run.tokens.put(1, 256, second, range(144), BLOCK, 0)  # in place of 44 that were computed
        assert run.tokens.cells_of(1, N).shape == (400,)
        np.testing.assert_allclose(read(context, 400, 405, seq=1), stayed, rtol=0, atol=1e-4 * np.abs(stayed).max())
        run.tokens.put(2, 0, first, range(256), BLOCK, 0)
        run.tokens.put(2, 256, second, range(10), BLOCK, 0)
        with pytest.raises(DoesNotFit, match="no 256 empty cells"):
            run.tokens.put(3, 0, first, range(256), BLOCK, 0) or run.tokens.put(3, 256, second, range(256), BLOCK, 0)


def test_tokens_are_counted_up_to_the_first_gap(synthetic):
    with attached(synthetic("llama"), KvOptions(mode="exact"), n_ctx=1024) as (context, run):
        read(context, 0, 300)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 100, 110)
        assert run.cells.stream().positions[run.tokens.cells_of(0, 300)].tolist() == list(range(100))


def test_steps_that_sample_label_their_cells(synthetic):
    options = KvOptions(**SPARSE | {"exact_tokens": 512, "sample_budget": 4.0})
    with attached(synthetic("llama", dtype="f32"), options, n_ctx=2048) as (context, run):
        read(context, 0, 200)
        context.decode([300], [200], [0])  # a view of 256 cells: attended whole
        assert not run.cells.stream().labels.any()
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 200, -1)
        read(context, 200, N)  # prompts attend everything
        assert not run.cells.stream().labels.any()
        context.decode([300], [N], [0])
        view = run.cells.stream()
        assert (view.labels == SAMPLED).tolist() == (view.positions == N).tolist() and not view.read_sparsely.any()
        cells = run.tokens.cells_of(0, N + 1)
        block = run.tokens.read(0, cells[-1:], sum(map(sum, run.tokens.row_bytes())))
        run.tokens.put(1, 0, block, range(1), 1, SAMPLED)
        assert run.tokens.labelled(1, 1)[1].tolist() == [SAMPLED]
