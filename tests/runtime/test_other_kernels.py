"""Rows are parked and come back on kernels that move less than this one, and where memory ends: stand-ins are preloaded."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.homes import in_process

PARKED_ROWS = Path(__file__).with_name("test_parked_rows.py")
SUPPORT = Path(__file__).resolve().parents[1] / "support"
TESTS = "rows_leave_with or take_turns_in_two_slots or longer_from_several_places or reads_the_same_rows"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Callable[[str], str]:
    """`built(name)`: a file of tests/support as a library."""
    compiler, folder = shutil.which("c++") or shutil.which("g++"), tmp_path_factory.mktemp("stand-in")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a C++ compiler and Linux are needed for the stand-in")

    def build(name: str) -> str:
        library = folder / f"{name}.so"
        subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", "-o", library, SUPPORT / f"{name}.cpp"], check=True)
        return str(library)

    return build


@pytest.mark.parametrize("kernel", ["one mapping", "no memory", "forbidden"])
def test_rows_leave_and_come_back(built, kernel):
    """Where a move fails and the destination is no longer mapped, rows are copied into a new mapping there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", str(PARKED_ROWS), "-k", TESTS]
    done = subprocess.run(command, env=os.environ | {"LD_PRELOAD": built("other_kernel"), "EDGEKV_TEST_KERNEL": kernel}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


COME_BACK = """
    import ctypes, sys
    from contextlib import suppress
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    from support.held_rows import BLOCK, all_rows, filled, hold_blocks, leave
    from edgekv.common.errors import EdgeKVError
    N = 4 * BLOCK
    fail, n_failed, n_parts, failed = ctypes.CDLL(None).edgekv_test_fail_allocation, 0, 0, True
    with filled(lambda *_, **__: sys.argv[2], n=N) as (context, run):
        held = hold_blocks(run, N)
        before = all_rows(run, held, n=N)
        while failed:
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
        assert all(back)
    print(n_failed, n_parts)
"""


def test_an_allocation_that_fails_leaves_rows_parked(built, synthetic):
    """Each allocation in turn. All of the rows that lie together come back, or none; and what is said of them is true."""
    done = in_process(COME_BACK, synthetic("llama", dtype="f32", n_head_kv=4), LD_PRELOAD=built("no_memory"))
    assert done.returncode == 0, done.stderr[-3000:]
    n_failed, n_parts = map(int, done.stdout.split())
    assert n_failed > n_parts > 0
