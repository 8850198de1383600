"""The native tests, built and run: the kernels against their double-precision references for every instruction set, and what follows
the cells against a look at all of them (native/tests/test_*)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edgekv import _native

SOURCE = Path(__file__).resolve().parent.parent / "native" / "tests"


@pytest.fixture(scope="session")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cmake") or not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        pytest.skip("cmake and a C++ compiler are needed to build the kernel tests")
    build = tmp_path_factory.mktemp("kernels")
    configure = ["cmake", "-S", str(SOURCE), "-B", str(build)]
    compile_ = ["cmake", "--build", str(build), "--parallel", "2", "--target", "test_attend", "test_sketch", "test_sync"]
    for command in (configure, compile_):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


def test_every_instruction_set_here_is_one_we_know():
    assert _native.info()["isa_available"][0] == "portable"


@pytest.mark.parametrize("isa", _native.info()["isa_available"])
def test_kernel_matrix(checkers: Path, isa: str):
    done = subprocess.run([str(checkers / "test_attend"), isa], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_sketches_of_all_instruction_sets(checkers: Path):
    done = subprocess.run([str(checkers / "test_sketch")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_what_changed_is_found_without_looking_at_all_cells(checkers: Path):
    done = subprocess.run([str(checkers / "test_sync")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
