"""Array operations, once for each library."""

from __future__ import annotations

import sys

import pytest
from support import fake_cupy
from support.array_libraries import real_cupy

from edgekv.arrays import cupy_ops
from edgekv.arrays.ops import Ops


@pytest.fixture(params=["numpy", "emulated", "cupy"])
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ops:
    if request.param == "numpy":
        return Ops()
    if request.param == "emulated":
        cupy = fake_cupy.module(request.getfixturevalue("emulated_kernels"), fake_cupy.Device())
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return cupy_ops.CupyOps(0, 0, 13000)
    return real_cupy()
