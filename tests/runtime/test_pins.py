"""Mode sparse reads some tokens for certain: their positions and a person's pins decide which, not the policy's scores nor the places of
cells."""

import numpy as np
import pytest
from support.contexts import Context, attached

from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp

N = 600
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 4.0, "sink_tokens": 20, "recent_tokens": 40, "keep_rows": True}
"""The default policy applies."""
TOKENS = np.random.default_rng(5).integers(260, 350, 2 * N)


def read(context: Context, run: Runtime, first: int, end: int, seq: int = 0) -> None:
    with run.reading_prompt(seq):
        context.read(TOKENS, first, end, seq, 200)


def answer(context: Context, run: Runtime, first: int, n: int, seq: int = 0) -> list[tuple[list[int], list[float]]]:
    """(positions, weights) that each token of an answer reads in some layers and heads."""
    found = []
    for at in range(first, first + n):
        context.decode(TOKENS[at:at + 1], [at], [seq])
        positions = run.cells.stream().positions
        for row, head in ((0, 0), (1, 1)):
            cells, weights = run.last_rows(row, head)
            found.append((positions[cells].tolist(), weights.tolist()))
    return found


def certain(rows: tuple[list[int], list[float]]) -> set[int]:
    return {position for position, weight in zip(*rows) if weight == 1}


def test_rows_do_not_depend_on_what_was_before(synthetic):
    """The rows are the same after a policy has run, after a tail was taken back, and whether pins come before or after their tokens."""
    rows = []
    for history in ("none", "answers", "pins ahead"):
        with attached(synthetic("llama", dtype="f32"), KvOptions(**SPARSE), n_ctx=2048, n_seq=1) as (context, run):
            if history == "pins ahead":
                run.pin(200, 230, ahead=True)
            read(context, run, 0, N - 1)
            read(context, run, N - 1, N)  # by the kernel that reads it again
            if history != "pins ahead":
                run.pin(200, 230)
            if history == "answers":
                answer(context, run, N, 40)
                llama_cpp.llama_memory_seq_rm(context.memory, 0, N - 1, -1)
                read(context, run, N - 1, N)
            rows.append(answer(context, run, N, 24))
            assert run.pins == [(200, 230)]
    assert rows[0] == rows[1] == rows[2]
    for at, read_now in zip(range(N, N + 24), rows[0][::2]):
        assert {*range(32), *range(192, 240), *range((at - 39) // 16 * 16, at + 1)} <= certain(read_now)


def test_pins_come_back_with_their_tokens(synthetic):
    with attached(synthetic("llama", dtype="f32"), KvOptions(**SPARSE), n_ctx=2048) as (context, run):
        read(context, run, 0, N)
        assert run.pin(200, 230) == 3, "pages"
        before = answer(context, run, N, 2)
        state = context.save(0)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 0, -1)
        read(context, run, 0, 100, seq=1)  # not the same cells
        context.load(state, 0)
        assert set(range(192, 240)) <= certain(before[0]) & certain(answer(context, run, N + 2, 1)[0])
        run.unpin_all()
        assert not set(range(192, 240)) <= certain(answer(context, run, N + 3, 1)[0])
        with pytest.raises(ConfigError, match="sequence 0 has no positions 5 to 2"):
            run.pin(5, 2, ahead=True)
        with pytest.raises(ConfigError, match="there are no tokens at positions 900 to 950"):
            run.pin(900, 950)
        assert run.pins == []


def test_positions_say_it_wherever_the_cells_lie(synthetic):
    """Another sequence's tokens lie before these in one cache, so that pages of cells are no runs of positions."""
    with attached(synthetic("llama", dtype="f32"), KvOptions(**SPARSE), n_ctx=2048) as (context, run):
        read(context, run, 0, 37, seq=1)
        read(context, run, 0, N)
        run.pin(200, 230)
        rows = answer(context, run, N, 1)[0]
        assert {*range(32), *range(192, 240), *range((N - 39) // 16 * 16, N + 1)} <= certain(rows)
        open_group = (N + 37) // 64 * 64 - 37
        assert certain(rows) - {*range(32), *range(192, 240), *range(min(open_group, (N - 39) // 16 * 16), N + 1)} == set()


@pytest.mark.usefixtures("emulator")
def test_so_on_a_device(synthetic):
    with attached(synthetic("llama", dtype="f32"), KvOptions(**SPARSE | {"keep_rows": True}, attention_device="emulated"), n_ctx=1024,
                  n_seq=1) as (context, run):
        run.pin(200, 230, ahead=True)
        read(context, run, 0, N)
        for at in range(N, N + 20):
            context.decode(TOKENS[at:at + 1], [at], [0])
        cells, weights = run.last_rows(1, 0)
        assert {*range(32), *range(192, 240), *range((N + 19 - 39) // 16 * 16, N + 20)} <= set(cells[weights == 1].tolist())
