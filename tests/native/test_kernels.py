"""The native tests, built and run: the kernels against their double-precision references for every instruction set, and what follows
the cells against a look at all of them (native/tests/host/test_*)."""

import subprocess
from pathlib import Path

import pytest
from support.native_build import NATIVE, build

from edgekv import _native


@pytest.fixture(scope="session")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(NATIVE / "tests" / "host", tmp_path_factory.mktemp("kernels"), "test_attend", "test_expert_routes", "test_page_choice",
                 "test_products", "test_prompt", "test_sample", "test_sketch", "test_sync")


def test_every_instruction_set_here_is_one_we_know():
    assert _native.info()["isa_available"][0] == "portable"


@pytest.mark.parametrize("isa", [isa for isa in _native.info()["isa_available"] if isa not in ("avx512bf16", "amx")])  # for prompts
def test_kernel_matrix(checkers: Path, isa: str):
    done = subprocess.run([str(checkers / "test_attend"), isa], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("of", ["expert_routes", "page_choice", "products", "prompt", "sketch", "sample"])
def test_all_instruction_sets_in_one(checkers: Path, of: str):
    done = subprocess.run([str(checkers / f"test_{of}")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_what_changed_is_found_without_looking_at_all_cells(checkers: Path):
    done = subprocess.run([str(checkers / "test_sync")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
