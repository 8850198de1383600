"""Selection: the kernels of every instruction set against NumPy's specification, over cells of odd numbers, ties, pins and floors."""

from __future__ import annotations

import numpy as np
import pytest
from edgekv import _native
from edgekv.kernels.select import page_mass, select

_native.prepare()

from edgekv._native import core, hierarchy  # noqa: E402

ISAS = list(range(len(core.isa_available())))


def case(seed: int, n: int, group: int) -> dict:
    rng = np.random.default_rng(seed)
    standing = rng.choice([0.0, 0.0, 0.0, 0.0, -np.inf, np.inf], n).astype(np.float32)
    if seed % 5 == 0:
        standing[:] = -np.inf  # the token sees nothing
    estimates = (3 * rng.standard_normal((group, n)) - 2).astype(np.float32)
    priority = rng.random(n).astype(np.float32)
    if seed % 3 == 0:
        priority = np.round(priority, 1)  # ties
    pinned = rng.random(n) < 0.1
    return dict(estimates=None if seed % 4 == 0 else estimates, standing=standing, priority=priority, pinned=pinned,
                n_budget=int(rng.integers(0, n + 2)), blend=float(rng.choice([0.0, 0.5, 1.0])))


def compare(arguments: dict, isa: int) -> None:
    want, got = select(**arguments), hierarchy.select(**arguments, isa=isa)
    value = arguments["priority"].astype(np.float64)
    if arguments["estimates"] is not None:
        mass = page_mass(arguments["estimates"], arguments["standing"]).sum(axis=0)
        value = (1 - arguments["blend"]) * mass + arguments["blend"] * value
    different = np.setxor1d(want.pages, got.pages)
    if len(different):  # only where rounding decides: values as good as equal, and not for exact ties
        assert np.ptp(value[different]) <= 1e-5 * value[different].max() + 1e-12, (want, got)
        assert not np.ptp(value[different]) == 0, "ties must fall as the specification says"
    else:
        np.testing.assert_allclose(got.covered, want.covered, atol=2e-6)
        np.testing.assert_allclose(got.missed, want.missed, atol=2e-6)
        assert got.fell_back == want.fell_back


@pytest.mark.parametrize("isa", ISAS, ids=core.isa_available())
@pytest.mark.parametrize("n", [1, 15, 16, 17, 27, 61, 113, 482, 577])
def test_budget(n, isa):
    for seed in range(12):
        compare(case(100 * n + seed, n, group=1 + seed % 4), isa)


@pytest.mark.parametrize("isa", ISAS, ids=core.isa_available())
def test_threshold_coverage_and_floor(isa):
    rng = np.random.default_rng(5)
    for seed in range(60):
        arguments = case(seed, n=61, group=3)
        kind = seed % 3
        arguments |= [{"threshold": float(rng.random())}, {"coverage": float(rng.random())},
                      {"floor": float(rng.random()), "coverage": 0.3}][kind]
        compare(arguments, isa)


def test_a_budget_of_everything_takes_everything():
    arguments = case(7, n=113, group=3) | {"n_budget": 113}
    visible = np.flatnonzero(arguments["standing"] > -np.inf)
    for isa in ISAS:
        got = hierarchy.select(**arguments, isa=isa)
        np.testing.assert_array_equal(got.pages, visible)
        np.testing.assert_allclose(got.covered, 1, atol=1e-6)


def test_pins_exceed_the_budget_and_nothing_else_does():
    arguments = case(8, n=61, group=2) | {"n_budget": 3}
    arguments["pinned"][:] = False
    arguments["pinned"][[4, 9, 11, 30, 60]] = True
    arguments["standing"] = np.zeros(61, np.float32)
    for isa in ISAS:
        np.testing.assert_array_equal(hierarchy.select(**arguments, isa=isa).pages, [4, 9, 11, 30, 60])


def test_without_any_opinion_the_newest_pages_are_taken():
    standing, zero = np.zeros(40, np.float32), np.zeros(40, np.float32)
    standing[0] = np.inf
    for isa in ISAS:
        got = hierarchy.select(None, standing, zero, zero.astype(bool), 5, isa=isa)
        np.testing.assert_array_equal(got.pages, [0, 36, 37, 38, 39])


def test_a_low_coverage_attends_everything():
    estimates = np.zeros((2, 40), np.float32)  # diffuse: no page matters more than another
    standing, zero = np.zeros(40, np.float32), np.zeros(40, np.float32)
    for isa in ISAS:
        got = hierarchy.select(estimates, standing, zero, zero.astype(bool), 10, floor=0.5, isa=isa)
        assert got.fell_back and len(got.pages) == 40
        kept = hierarchy.select(estimates, standing, zero, zero.astype(bool), 10, floor=0.2, isa=isa)
        assert not kept.fell_back and len(kept.pages) == 10
        np.testing.assert_allclose(kept.covered, 0.25, atol=1e-6)
