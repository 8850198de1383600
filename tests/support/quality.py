"""A quick run of `edgekv lab quality` on tiny models."""

from edgekv.bench.text import standard_text

SPARSE = "sparse:sample_budget=20,exact_tokens=0,recent_tokens=16"
QUICK = {"texts": (standard_text(),), "modes": ("exact", SPARSE), "depth": 400, "n_steps": 12, "tasks": (), "lengths": (700,)}
