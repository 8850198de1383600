"""Array operations, once for each library."""

import pytest
from support.array_libraries import real_cupy

from edgekv.arrays.ops import Ops


@pytest.fixture(params=["numpy", "emulated", "cupy"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "numpy":
        return Ops()
    if request.param == "emulated":
        return request.getfixturevalue("emulated_cupy")[0]
    return real_cupy()
