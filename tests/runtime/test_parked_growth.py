"""The memory that is asked for before others take the cells of parked rows."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from support.parked_rows import BLOCK, filled, hold_blocks

from edgekv._native import core
from edgekv.planning.available import available_bytes

N = 4 * BLOCK


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
