"""Hit rates of every policy on recorded traces: they stay what they were."""

import json

import pytest
from support import golden

from edgekv.lab.traces.trace import Trace


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads(golden.EXPECTED.read_text())


@pytest.fixture(scope="module")
def golden_traces() -> dict[str, Trace]:
    return {name: Trace.open(path).loaded() for name, path in golden.TRACES.items()}


@pytest.mark.parametrize("name", golden.TRACES)
@pytest.mark.parametrize(("what", "scenario"), list(golden.scenarios()), ids=[what for what, _ in golden.scenarios()])
def test_golden(expected, golden_traces, name, what, scenario):
    assert what in expected[name], "a policy is new: run python tests/support/golden.py"
    assert golden.figures(golden_traces[name], scenario) == pytest.approx(expected[name][what], abs=1e-6)


def test_golden_files_are_small(expected):
    assert all(path.stat().st_size < 300_000 for path in golden.TRACES.values())
    for name in golden.TRACES:
        assert list(expected[name]) == [what for what, _ in golden.scenarios()], "run python tests/support/golden.py"
