"""The native tests, built and run: the kernels against their double-precision references for every instruction set, and what follows
the cells against a look at all of them (native/tests/host/test_*)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.beside import Beside, parameters
from support.native_build import NATIVE, compiler, needs, steps

from edgekv import _native

ATTENDING = [isa for isa in _native.info()["isa_available"] if isa not in ("avx512bf16", "amx")]  # those two are for prompts
IN_ONE = ["expert_routes", "page_choice", "products", "prompt", "row_cache", "sketch", "sample", "sync"]
"""Programs that test all instruction sets, or need none."""


def begin_programs(beside: Beside, folder: Callable[[str], Path], items: Sequence[pytest.Item]) -> None:
    isas, of = parameters(items, "test_attention"), parameters(items, "test_program")
    if not (isas or of) or compiler() is None:
        return
    built = folder("kernels")
    targets = [*(["test_attend"] if isas else []), *(f"test_{name}" for name in of)]
    beside.build(("kernels",), *steps(NATIVE / "tests" / "host", built, targets=targets, n_jobs=beside.n_compilers))
    for isa in isas:
        beside.add(("kernels", isa), [built / "test_attend", isa], after=("kernels",))
    for name in of:
        beside.add(("kernels", name), [built / f"test_{name}"], after=("kernels",))


def test_every_instruction_set_here_is_one_we_know():
    assert _native.info()["isa_available"][0] == "portable"


@needs()
@pytest.mark.parametrize("isa", ATTENDING)
def test_attention(beside: Beside, isa: str):
    beside.check(("kernels",), ("kernels", isa))


@needs()
@pytest.mark.parametrize("of", IN_ONE)
def test_program(beside: Beside, of: str):
    beside.check(("kernels",), ("kernels", of))
