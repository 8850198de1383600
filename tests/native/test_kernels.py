"""The native tests, built and run: the kernels against their double-precision references for every instruction set, and what follows
the cells against a look at all of them (native/tests/host/test_*)."""

import pytest
from support.native_build import NATIVE, Programs, needs

from edgekv import _native

ATTENDING = [isa for isa in _native.info()["isa_available"] if isa not in ("avx512bf16", "amx")]  # those two are for prompts
IN_ONE = ["expert_routes", "products", "prompt", "row_cache", "sketch", "sample", "sync"]
"""Programs that test all instruction sets, or need none."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(NATIVE / "tests" / "host", tmp_path_factory.mktemp("kernels"))


def test_every_instruction_set_here_is_one_we_know():
    assert _native.info()["isa_available"][0] == "portable"


@needs()
@pytest.mark.parametrize("isa", ATTENDING)
def test_attention(programs: Programs, isa: str):
    programs.passes("test_attend", isa)


@needs()
@pytest.mark.parametrize("of", IN_ONE)
def test_program(programs: Programs, of: str):
    programs.passes(f"test_{of}")
