"""The native tests, built and run: the kernels against their double-precision references for every instruction set, and what follows
the cells against a look at all of them (native/tests/host/test_*)."""

from collections.abc import Iterator

import pytest
from support.native_build import NATIVE, build
from support.side_by_side import SideBySide

from edgekv import _native

ATTENDING = [isa for isa in _native.info()["isa_available"] if isa not in ("avx512bf16", "amx")]  # those two are for prompts
IN_ONE = ["expert_routes", "page_choice", "products", "prompt", "sketch", "sample", "sync"]
"""Programs that test all instruction sets, or need none."""


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    built = build(NATIVE / "tests" / "host", tmp_path_factory.mktemp("kernels"), *(f"test_{of}" for of in ("attend", *IN_ONE)))
    commands = {isa: [str(built / "test_attend"), isa] for isa in ATTENDING} | {of: [str(built / f"test_{of}")] for of in IN_ONE}
    with SideBySide(request, ("test_attention", "test_program"), commands) as running:
        yield running


def test_every_instruction_set_here_is_one_we_know():
    assert _native.info()["isa_available"][0] == "portable"


@pytest.mark.parametrize("isa", ATTENDING)
def test_attention(programs: SideBySide, isa: str):
    done = programs.end(isa)
    assert done.returncode == 0, done.said[-4000:]


@pytest.mark.parametrize("of", IN_ONE)
def test_program(programs: SideBySide, of: str):
    done = programs.end(of)
    assert done.returncode == 0, done.said[-4000:]
