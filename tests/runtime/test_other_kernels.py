"""Rows are parked and come back on kernels that move less than this one: a stand-in for mremap() is preloaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PARKED_ROWS = Path(__file__).with_name("test_parked_rows.py")
STAND_IN = Path(__file__).resolve().parents[1] / "support" / "other_kernel.cpp"
TESTS = "rows_leave_with or another_slot or some_come_back or take_turns_in_two_slots or longer_from_several_places or reads_the_same_rows"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a C++ compiler and Linux are needed for the stand-in")
    built = tmp_path_factory.mktemp("kernel") / "kernel.so"
    subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", "-o", built, STAND_IN], check=True)
    return built


@pytest.mark.parametrize("kernel", ["one mapping", "no memory"])
def test_rows_leave_and_come_back(stand_in, kernel):
    """Where a move fails the destination is no longer mapped: rows are copied into a new mapping there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", str(PARKED_ROWS), "-k", TESTS]
    done = subprocess.run(command, env=os.environ | {"LD_PRELOAD": str(stand_in), "EDGEKV_TEST_KERNEL": kernel}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
