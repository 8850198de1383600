"""The memory that is asked for before others take the cells of parked rows, and before these come back."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from support.held_rows import BLOCK, all_rows, filled, hold_blocks, leave, read

from edgekv._native import core
from edgekv.common.errors import DoesNotFit
from edgekv.planning.available import available_bytes

import llama_cpp

N = 4 * BLOCK
LITTLE = 16 << 20
"""Less than a program has left for everything else when a cache stops to grow."""


@pytest.fixture
def free() -> Iterator[SimpleNamespace]:
    """How many bytes are free, and how often that was asked."""
    said = SimpleNamespace(bytes=1 << 40, n_asked=0)

    def tell() -> int:
        said.n_asked += 1
        return said.bytes

    core.set_free_bytes(tell)
    yield said
    core.set_free_bytes(available_bytes)


@pytest.mark.parametrize("parks", [True, False])
def test_cells_whose_rows_are_parked_have_no_memory(synthetic, free, parks):
    """Tokens that are put in their place need it anew; in place of tokens that nobody holds they need none."""
    with filled(synthetic, n=N) as (_, run):
        held, n_asked = hold_blocks(run, N), free.n_asked
        for one in held if not parks else []:
            one.release()
        run.tokens.place(0, 0, np.zeros(N, np.uint8))
        assert all(one.parked == parks for one in held) and free.n_asked == n_asked + parks


def placed(run, held: list, first: int = 0) -> list[np.ndarray]:
    """Cells for all blocks, of which these are parked."""
    cells = run.tokens.place(0, first, np.zeros(N, np.uint8), None, None, [(i * BLOCK, one) for i, one in enumerate(held)])
    return np.split(cells, N // BLOCK)


def test_parked_rows_bring_their_memory(synthetic, free):
    """A conversation comes back where no memory is free, unless some of its rows do not."""
    with filled(synthetic, n=N) as (context, run):
        held = hold_blocks(run, N)
        before = all_rows(run, held, n=N)
        leave(context)
        free.bytes = LITTLE
        for those in ([], held[:3]):
            with pytest.raises(DoesNotFit):
                placed(run, those)
        assert run.tokens.unpark(0, held, placed(run, held)) == [True] * 4
        assert all_rows(run, held, n=N) == before


def test_rows_that_do_not_fit_there_do_not(synthetic, free):
    """A page is not made of whole rows, and another's tokens lie in the cells of every place where pages would fit: they will be copied."""
    types = {"type_k": llama_cpp.GGML_TYPE_Q8_0, "type_v": llama_cpp.GGML_TYPE_Q8_0}
    with filled(synthetic, n=N, n_ctx=2048, unified=True, **types) as (context, run):
        held = hold_blocks(run, N)
        leave(context)
        read(context, 0, 1)
        read(context, 0, N + 64, seq=1)
        leave(context, seq=1, end=N - 24)
        free.bytes = LITTLE
        with pytest.raises(DoesNotFit):
            placed(run, held, first=1)
        free.bytes = 1 << 40
        assert not any(run.tokens.unpark(0, held, placed(run, held, first=1)))
