"""Windows and recurrent states that were taken out behind a token are put back with the rows before it: the next tokens' logits are those of a
context that never lost them."""

import numpy as np
import pytest
from support.contexts import Context, attached

from edgekv.common.errors import NativeError
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp

pytestmark = pytest.mark.usefixtures("single_precision")
"""What is read behind a snapshot is cut elsewhere, and another kernel reads some of it: with kernels that round to bf16 they are farther apart."""

P, N = 300, 340
"""Taken behind P tokens, of N; windows have 64."""
KINDS = ["gemma2", "gpt-oss", "lfm2", "mamba"]
TRANSPOSED = "llama without flash attention"
"""Its rows cannot be put back one by one: a snapshot has all of a sequence."""
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 1e6, "policy": "none"}


def opened(synthetic, kind: str, options: dict, **more: object):
    loading = {"flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED} if kind == TRANSPOSED else {}
    path = synthetic("llama" if kind == TRANSPOSED else kind, dtype="f32")
    return attached(path, KvOptions(**options), **{"n_ctx": 4096, "unified": False} | loading | more)


def read(context: Context, first: int, end: int, seq: int = 0) -> np.ndarray:
    return context.read(np.random.default_rng(5).integers(260, 1000, N + 40) % context.n_vocab, first, end, seq, 100)


def take(run: Runtime, seq: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and snapshot of a sequence of n tokens."""
    cells = run.tokens.cells_of(seq, n)
    assert len(cells) == n
    return run.tokens.read(seq, cells, sum(map(sum, run.tokens.row_bytes())) * n), run.tokens.snapshot(seq)


def put(run: Runtime, seq: int, n: int, rows: np.ndarray, snapshot: np.ndarray) -> None:
    run.tokens.put(seq, 0, rows, range(n), n, 0)
    run.tokens.put_snapshot(seq, n, snapshot)


def check_alike(one: np.ndarray, other: np.ndarray, unified: bool) -> None:
    """To the bit; in a unified cache the cells that they got decide the order of sums."""
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-4 * np.abs(other).max() if unified else 0)


@pytest.mark.parametrize(("kind", "options", "unified"), [
    ("gemma2", {"mode": "exact"}, True), ("gemma2", SPARSE, False), ("gpt-oss", {"mode": "off"}, False), ("gpt-oss", SPARSE, True),
    ("lfm2", {"mode": "exact"}, False), ("mamba", {"mode": "exact"}, True), (TRANSPOSED, {"mode": "off"}, True), (TRANSPOSED, {"mode": "exact"}, False)])
def test_what_is_put_back_is_as_if_it_had_stayed(synthetic, kind: str, options: dict, unified: bool):
    # stock adds up V of f16 in f16, where the order of cells tells; V of q8_0 in f32
    types = {"type_v": llama_cpp.GGML_TYPE_Q8_0} if unified and kind != TRANSPOSED else {}
    with opened(synthetic, kind, options, unified=unified, **types) as (context, run):
        assert run.tokens.keeps_snapshots
        read(context, 0, 70, seq=3)  # cells do not begin at 0
        read(context, 0, P)
        rows, snapshot = take(run, 0, P)
        stayed = read(context, P, N)
        read(context, 0, 50, seq=1)  # what goes
        put(run, 1, P, rows, snapshot)
        check_alike(read(context, P, N, seq=1), stayed, unified)
        read(context, N, N + 9, seq=1)
        put(run, 1, P, rows, snapshot)  # back, where it went on
        check_alike(read(context, P, N, seq=1), stayed, unified)


def test_of_a_whole_sequence_the_number_of_slots_matters(synthetic):
    """Identities tell so, and snapshots are refused."""
    with opened(synthetic, TRANSPOSED, {"mode": "exact"}, n_seq=3) as (context, run):
        read(context, 0, P, seq=2)
        before, kept = run.tokens.depends_on(), take(run, 2, P)
        stayed = read(context, P, N, seq=2)
    with opened(synthetic, TRANSPOSED, {"mode": "exact"}, n_seq=3, n_ctx=8192) as (context, run):
        assert run.tokens.depends_on() == before
        put(run, 0, P, *kept)
        check_alike(read(context, P, N), stayed, unified=False)
    with opened(synthetic, TRANSPOSED, {"mode": "exact"}, n_seq=2) as (_, run):
        assert run.tokens.depends_on() != before
        with pytest.raises(NativeError, match="does not fit this context"):
            put(run, 0, P, *kept)


@pytest.mark.parametrize("kind", [*KINDS, TRANSPOSED])
def test_what_is_no_snapshot_of_this_context_leaves_an_empty_sequence(synthetic, kind: str):
    with opened(synthetic, kind, {"mode": "exact"}) as (context, run):
        read(context, 0, P)
        rows, snapshot = take(run, 0, P)
        read(context, 0, 90, seq=2)
        _, other = take(run, 2, 90)
        rubbish = np.full(100, 255, np.uint8)
        for bad in (snapshot[:20], snapshot[:-1], rubbish, other, np.zeros(8, np.uint8)):
            with pytest.raises(NativeError, match="does not fit this context"):
                put(run, 1, P, rows, np.ascontiguousarray(bad))
            assert llama_cpp.llama_memory_seq_pos_max(context.memory, 1) == -1
            assert not run.cells.known or not len(run.tokens.cells_of(1, P))
        put(run, 1, P, rows, snapshot)
        np.testing.assert_array_equal(read(context, P, N, seq=1), read(context, P, N))


def test_a_plain_cache_has_none(synthetic):
    with attached(synthetic("llama"), KvOptions(mode="exact")) as (context, run):
        read(context, 0, 10)
        assert not run.tokens.keeps_snapshots
        with pytest.raises(NativeError, match="no snapshots"):
            run.tokens.snapshot(0)
        with pytest.raises(NativeError, match="does not fit this context"):
            run.tokens.put_snapshot(0, 10, np.zeros(8, np.uint8))
