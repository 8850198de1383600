"""The native tests, built and run: the kernels against their double-precision references for every instruction set that serves here, and what follows
the cells against a look at all of them (native/tests/host/test_*)."""

import pytest
from support.native_build import NATIVE, Programs, needs

PROGRAMS = sorted(path.stem for path in (NATIVE / "tests" / "host").glob("test_*.cpp"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(NATIVE / "tests" / "host", tmp_path_factory.mktemp("kernels"))


@needs()
@pytest.mark.parametrize("of", [name.removeprefix("test_") for name in PROGRAMS])
def test_program(programs: Programs, of: str):
    programs.passes(f"test_{of}")
