"""Rows of `edgekv bench` on small models, and a quick run of `edgekv lab quality`."""

from pathlib import Path

from edgekv.bench.environment import environment
from edgekv.bench.meter import Meter
from edgekv.bench.request import BenchRequest
from edgekv.bench.speed import run
from edgekv.bench.text import standard_text

SPARSE = "sparse:sample_budget=20,exact_tokens=0,recent_tokens=16"
QUICK = {"texts": (standard_text(),), "modes": ("exact", SPARSE), "depth": 400, "n_steps": 12, "tasks": (), "lengths": (700,)}


def measure(*paths: Path, **settings) -> list[dict]:
    settings = {"texts": (standard_text(),), "n_prompt": (24,), "n_gen": (6,), "depths": (0,), "n_rounds": 2, "threads": (2,), **settings}
    return [row for rows in run(BenchRequest(paths, **settings), environment(2), Meter()) for row in rows]
