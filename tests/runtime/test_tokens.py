"""Rows of tokens that were computed once are put back: the next token's logits are those of a context that never lost them."""

import threading
import time

import numpy as np
import pytest
from support.contexts import attached

from edgekv._native.token_rows import BlockRows
from edgekv.common.errors import DoesNotFit
from edgekv.config import KvOptions
from edgekv.runtime.cells import SAMPLED

import llama_cpp

N, BLOCK = 600, 256
Q8_0 = {"type_k": llama_cpp.GGML_TYPE_Q8_0, "type_v": llama_cpp.GGML_TYPE_Q8_0}
Q4_0 = {"type_k": llama_cpp.GGML_TYPE_Q4_0, "type_v": llama_cpp.GGML_TYPE_Q4_0}
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 1e6, "policy": "none"}


def read(context, first: int, end: int, seq: int = 0) -> np.ndarray:
    tokens = np.random.default_rng(5).integers(260, 1000, N + 40)
    parts = [range(at, min(at + 200, end)) for at in range(first, end, 200)]
    return np.concatenate([context.decode(tokens[part] % context.n_vocab, part, [seq] * len(part)) for part in parts])


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


@pytest.mark.parametrize(("options", "types", "unified"), [
    ({"mode": "off"}, {}, True), ({"mode": "exact"}, Q8_0, False), ({"mode": "exact"}, Q4_0, True), (SPARSE, {}, False), (SPARSE, Q8_0, True)])
def test_what_is_put_back_is_as_if_it_had_stayed(synthetic, options: dict, types: dict, unified: bool):
    with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(**options), n_ctx=4096, unified=unified, **types) as (context, run):
        read(context, 0, 70, seq=3)  # cells do not begin at 0
        read(context, 0, N)
        blocks = take(run, 0, N)
        stayed = read(context, N, N + 5)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        for first, n, rows in blocks:
            run.tokens.put(1, first, rows, range(n), n, 0)
        came = read(context, N, N + 5, seq=1)
        np.testing.assert_allclose(came, stayed, rtol=0, atol=2e-4 * np.abs(stayed).max())
        assert take(run, 1, N)[1][2].tobytes() == blocks[1][2].tobytes()


@pytest.mark.parametrize(("options", "unified"), [({"mode": "off"}, False), ({"mode": "exact"}, True), (SPARSE, False)])
def test_the_keys_of_an_index_come_back_with_the_rows(synthetic, options: dict, unified: bool):
    with attached(synthetic("deepseek32", dtype="f32"), KvOptions(**options), n_ctx=4096, n_threads=1, unified=unified) as (context, run):
        k_bytes, v_bytes = run.tokens.row_bytes()
        assert set(v_bytes) == {64 * 2}, "a key of the index; compressed rows have no V"
        read(context, 0, 70, seq=3)  # cells do not begin at 0
        read(context, 0, N)
        blocks = take(run, 0, N)
        stayed = read(context, N, N + 5)
        for first, n, rows in blocks:
            run.tokens.put(1, first, rows, range(n), n, 0)
        came = read(context, N, N + 5, seq=1)
        near = 2e-4 * np.abs(stayed).max()
        # where cells or batches are others sums round otherwise, and now and then another cell is the last that is listed
        assert np.median(np.abs(came - stayed)) < near and (unified or np.array_equal(came, stayed))
        assert take(run, 1, N)[1][2].tobytes() == blocks[1][2].tobytes()
        llama_cpp.llama_memory_seq_rm(context.memory, 1, N - 40, -1)  # back, and on: the caches stay in step
        read(context, N - 40, N, seq=1)
        assert np.median(np.abs(read(context, N, N + 5, seq=1) - stayed)) < near
        for first, n, rows in blocks:
            parts = np.split(rows, np.cumsum([n * size for both in zip(k_bytes, v_bytes) for size in both])[:-1])
            without = np.concatenate([part * (i % 2 == 0) for i, part in enumerate(parts)])
            run.tokens.put(2, first, without, range(n), n, 0)
        lost = read(context, N, N + 5, seq=2)
        assert np.median(np.abs(lost - stayed)) > 100 * near


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


# ---- rows that come while a decode computes --------------------------------------------------------------------------------------

N_LAYERS = 5


def stored(run, layer: int, position: int) -> bool:
    """Whether a decode under way has stored a token's K in a layer."""
    cells = np.flatnonzero(run.cells.stream().positions == position)
    return len(cells) == 1 and bool(np.any(run.cells.keys(layer)[0, cells[0]]))


def place(run, seq: int, blocks) -> list[np.ndarray]:
    return [run.tokens.place(seq, first, np.zeros(n, np.uint8)) for first, n, _ in blocks]


def bring(run, seq: int, blocks, cells, may_come) -> threading.Thread:
    """A thread that brings layer after layer, each when `may_come(layer)` says so."""
    def work() -> None:
        for layer in range(N_LAYERS):
            if not may_come(layer):
                run.tokens.arrivals.failed()
                return
            for (_, n, rows), where in zip(blocks, cells):
                of_layer = len(rows) // N_LAYERS  # all layers have the same
                run.tokens.write(seq, [BlockRows(where, 0, n, rows[layer * of_layer:(layer + 1) * of_layer])], range(layer, layer + 1))
            run.tokens.arrivals.came(layer + 1)

    run.tokens.arrivals.expect()
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("n_more", [5, 39], ids=["step", "prompt"])
@pytest.mark.parametrize("options", [{"mode": "exact"}, SPARSE], ids=["exact", "sparse"])
def test_a_layer_is_computed_before_the_rows_of_the_next_come(synthetic, options: dict, n_more: int):
    """Each layer comes when the one before it has begun: a decode that waited for all of them would wait for ever."""
    with attached(synthetic("llama", n_head=6, dtype="f32", n_layer=N_LAYERS), KvOptions(**options), n_ctx=2048) as (context, run):
        read(context, 0, N)
        blocks = take(run, 0, N)
        stayed = read(context, N, N + n_more)
        # a row that is there was stored by the decode below
        run.tokens.write(0, [BlockRows(run.tokens.cells_of(0, N + n_more), 0, N + n_more, np.zeros(len(blocks[0][2]) * 4, np.uint8))], range(N_LAYERS))
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        assert run.tokens.arrivals.can_wait
        order = []

        def may_come(layer: int) -> bool:
            end = time.monotonic() + 20
            while layer and not stored(run, layer - 1, N) and time.monotonic() < end:
                time.sleep(0.001)
            order.append(layer == 0 or stored(run, layer - 1, N))
            return order[-1]

        cells = place(run, 0, blocks)
        thread = bring(run, 0, blocks, cells, may_come)
        came = read(context, N, N + n_more)
        thread.join()
        run.tokens.arrivals.expect_none()
        assert order == [True] * N_LAYERS
        np.testing.assert_allclose(came, stayed, rtol=0, atol=2e-4 * np.abs(stayed).max())


@pytest.mark.parametrize("options", [{"mode": "exact"}, SPARSE], ids=["exact", "sparse"])
def test_a_decode_whose_rows_fail_computes_nothing(synthetic, options: dict):
    with attached(synthetic("llama", n_head=6, dtype="f32", n_layer=N_LAYERS), KvOptions(**options), n_ctx=2048) as (context, run):
        read(context, 0, N)
        blocks = take(run, 0, N)
        stayed = read(context, N, N + 5)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        cells = place(run, 0, blocks)
        thread = bring(run, 0, blocks, cells, lambda layer: layer < 3)
        with pytest.raises(AssertionError, match="llama_decode returned -3"):
            read(context, N, N + 5)
        thread.join()
        with pytest.raises(AssertionError, match="llama_decode returned -3"):  # and none until it is over
            read(context, N, N + 5)
        run.tokens.arrivals.expect_none()
        assert len(run.tokens.cells_of(0, N + 5)) == N
        run.tokens.write(0, [BlockRows(where, 0, n, rows) for (_, n, rows), where in zip(blocks, cells)], range(N_LAYERS))
        np.testing.assert_allclose(read(context, N, N + 5), stayed, rtol=0, atol=2e-4 * np.abs(stayed).max())


def test_where_stock_nodes_serve_all_rows_come_first(synthetic):
    with attached(synthetic("llama", dtype="f32", n_layer=N_LAYERS), KvOptions(mode="off"), n_ctx=2048) as (context, run):
        read(context, 0, N)
        blocks = take(run, 0, N)
        stayed = read(context, N, N + 5)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        assert not run.tokens.arrivals.can_wait
        thread = bring(run, 0, blocks, place(run, 0, blocks), lambda layer: time.sleep(0.05) is None)
        came = read(context, N, N + 5)
        thread.join()
        run.tokens.arrivals.expect_none()
        np.testing.assert_allclose(came, stayed, rtol=0, atol=2e-4 * np.abs(stayed).max())
