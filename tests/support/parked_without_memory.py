"""Parked rows come back while each allocation in turn fails: a program, with no_memory.cpp preloaded; the argument is a model's file."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":  # support is a package of tests
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from support.held_rows import BLOCK, all_rows, filled, hold_blocks, leave

from edgekv.common.errors import EdgeKVError

N = 4 * BLOCK


def play(path: Path) -> tuple[int, int]:
    """How many allocations failed, and how often only some of the rows came back."""
    fail, n_failed, n_parts = ctypes.CDLL(None).edgekv_test_fail_allocation, 0, 0
    with filled(lambda *_, **__: path, n=N) as (context, run):
        held = hold_blocks(run, N)
        before = all_rows(run, held, n=N)
        while True:
            leave(context, first=N // 2)
            leave(context)
            assert all(one.parked for one in held)
            cells = np.split(run.tokens.place(0, 0, np.zeros(N, np.uint8)), N // BLOCK)
            back = [False] * len(held)
            fail(n_failed + 1)
            with suppress(EdgeKVError):
                back = run.tokens.unpark(0, held, cells)
            failed = fail(0) == 0
            assert [not one.parked for one in held] == back and all_rows(run, held, n=N) == before
            n_failed, n_parts = n_failed + failed, n_parts + (any(back) and not all(back))
            if not failed:
                assert all(back)
                return n_failed, n_parts


if __name__ == "__main__":
    print(*play(Path(sys.argv[1])))
