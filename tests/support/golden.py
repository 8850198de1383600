"""Two small traces and the exact numbers that every policy reaches on them.

    python tests/support/golden.py             write tests/support/golden/expected.json anew, from the traces that are there
    python tests/support/golden.py --record    record the traces anew first (the default model is needed)

A change of these numbers is a change of what policies do: look at the difference before it is committed.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgekv.lab.traces.sim import Scenario, simulate
from edgekv.lab.traces.trace import Trace
from edgekv.policies import POLICIES

FOLDER = Path(__file__).resolve().parent / "golden"
EXPECTED = FOLDER / "expected.json"
TRACES = {"tiny": FOLDER / "tiny.trace", "real": FOLDER / "real.trace"}
"""tiny: a synthetic model. real: every fourth layer of the default model on prose. Both are so short that only a low resolution leaves
rows out."""

FIGURES = ("hit_rate", "hit_rate_mass", "worst_mass", "hot", "fetched")
POLICY_NAMES = ("ema+anchor+recent", *POLICIES)
BUDGETS = (0.25, 0.5)


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """(name, scenario): every policy, and every other setting of a scenario."""
    for policy in POLICY_NAMES:
        for budget in BUDGETS:
            for observe in ("honest", "sampled"):
                yield f"{policy}, {100 * budget:g}%, {observe}", Scenario(policy=policy, budget=budget, observe=observe)
    others = {
        "full": {"observe": "full"}, "uniform": {"split": "uniform"}, "layer": {"split": "layer"}, "pyramid": {"split": "pyramid"},
        "pooled, honest": {"split": "pooled", "observe": "honest"}, "top": {"access": "top8"}, "mass": {"access": "mass2%"},
        "neighbour": {"prefetch": "neighbour"}, "rope": {"prefetch": "rope"}, "previous": {"prefetch": "previous"},
    }
    for name, changes in others.items():
        yield name, Scenario(**{"budget": 0.25, **changes})


def figures(trace: Trace, scenario: Scenario) -> dict[str, float]:
    row = simulate(trace, scenario).row()
    return {name: round(row[name], 8) for name in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    if parser.parse_args().record:
        _record()
    expected = {}
    for name, path in TRACES.items():
        with Trace.open(path) as opened:
            trace = opened.loaded()
        expected[name] = {what: figures(trace, scenario) for what, scenario in scenarios()}
    lines = [f'"{name}": {{\n' + ",\n".join(f"  {json.dumps(what)}: {json.dumps(row)}" for what, row in rows.items()) + "\n}"
             for name, rows in expected.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _record() -> None:
    from edgekv.bench.text import find_text
    from edgekv.lab.traces.record import Recording, record
    from edgekv.models import default_model, synth

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.trace"
        model = synth.write("llama", Path(folder) / "tiny.gguf")
        record(Recording(model, find_text("prose"), depth=400, n_steps=32, n_warmup=8, resolution=500), path)
        with Trace.open(path) as trace:
            trace.loaded().write(TRACES["tiny"])
        record(Recording(default_model(), find_text("prose"), depth=512, n_steps=24, n_warmup=16, resolution=500), path)
        with Trace.open(path) as trace:
            trace.cut(layers=range(0, trace.header.n_layers, 4)).write(TRACES["real"])


if __name__ == "__main__":
    main()
