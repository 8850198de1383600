"""The simulations of traces that a report needs."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import __version__
from edgekv.lab.heads.roles import Profile, of_steps
from edgekv.lab.report.inputs import Cache, identity
from edgekv.lab.traces.sim import Scenario, simulate
from edgekv.lab.traces.trace import Trace, TraceHeader
from edgekv.policies import POLICIES

Progress = Callable[[str, int, int], None]

BUDGETS = (0.05, 0.10, 0.20, 0.25)
MAP_BUDGET = 0.10
"""The budget of pictures that show a single one."""

STEPS = 256
"""Measured steps of each trace that are simulated."""

EMA = "ema+anchor+recent"
SAMPLED = f"{EMA}, sampled"
POOLED = f"{EMA}, sampled, one pool"
ORACLE, ORACLE_POOLED = "oracle", "oracle, one pool"
_ONLY_PINS = {"anchor", "recent", "none"}
"""Policies that choose nothing by themselves."""


def subjects() -> dict[str, dict[str, Any]]:
    """The compared scenarios by name, as changes to `Scenario`: every policy when it decides what is attended, two policies under mode
    sparse's observation, and the oracle."""
    alone = [name for name in POLICIES if name not in _ONLY_PINS and name != ORACLE]
    found: dict[str, dict[str, Any]] = {name: {"policy": name, "observe": "honest"} for name in (*alone, EMA)}
    found["lru, sampled"] = {"policy": "lru", "observe": "sampled", "split": "uniform"}
    found[SAMPLED] = {"policy": EMA, "observe": "sampled", "split": "uniform"}
    found[POOLED] = {"policy": EMA, "observe": "sampled", "split": "pooled"}
    found[f"{EMA}, all seen"] = {"policy": EMA, "observe": "full", "split": "uniform"}
    found[ORACLE] = {"policy": "oracle", "split": "uniform"}
    found[ORACLE_POOLED] = {"policy": "oracle", "split": "pooled"}
    return found


HIGHLIGHTS = ("streaming", "lru", "h2o", EMA, POOLED)
"""Lines with a colour and a name; the others are grey, and the table lists them."""


@dataclass(frozen=True)
class Simulated:
    """The part of a result that a report keeps."""

    row: dict[str, Any]
    hit_rate_mass_by_head: np.ndarray
    hit_rate_mass_over_time: np.ndarray


_ARRAYS = ("hit_rate_mass_by_head", "hit_rate_mass_over_time")


@dataclass(frozen=True)
class Reads:
    """The reads of mode sparse in each measured step: float64 [step], means over all heads."""

    rows: np.ndarray
    pages: np.ndarray
    """Pages with at least one read row."""


class Study:
    """The simulations of one trace. Results of earlier equal simulations come from the cache."""

    def __init__(self, text: str, path: Path, cache: Cache, progress: Progress, n_steps: int = STEPS):
        self.text, self.progress = text, progress
        self._cache, self._identity = cache, identity(path)
        with Trace.open(path) as trace:
            self.n_steps = min(n_steps, trace.header.n_steps)
            self.trace = trace.loaded(self.n_steps)
        self.header: TraceHeader = self.trace.header
        self.subjects = subjects()

    def run(self, **changes: Any) -> Simulated:
        scenario = Scenario(**changes)
        key = json.dumps([__version__, self._identity, self.n_steps, asdict(scenario)], default=str, sort_keys=True)
        found = self._cache.get(key)
        if found is None:
            result = simulate(self.trace, scenario)
            found = {"row": result.row()}
            for name in _ARRAYS:
                array = getattr(result, name)
                found[name] = np.where(np.isnan(array), np.array(None), np.round(array, 5)).tolist()  # JSON has no NaN
            self._cache.put(key, found)
        return Simulated(found["row"], *(np.array(found[name], np.float64) for name in _ARRAYS))

    def curves(self) -> list[dict[str, Any]]:
        """A row for each subject and budget."""
        rows = []
        for i, (name, changes) in enumerate(self.subjects.items()):
            for j, budget in enumerate(BUDGETS):
                self.progress(f"{self.text}: {name}", i * len(BUDGETS) + j, len(BUDGETS) * len(self.subjects))
                rows.append({**self.run(budget=budget, **changes).row, "name": name, "text": self.text})
        self._cache.write()
        return rows

    def hit_maps(self) -> dict[str, np.ndarray]:
        """Hit rate by mass [layer, head] at MAP_BUDGET."""
        return {name: self.run(budget=MAP_BUDGET, **self.subjects[name]).hit_rate_mass_by_head
                for name in ("streaming", EMA, POOLED, ORACLE_POOLED)}

    def hits_over_time(self) -> dict[str, np.ndarray]:
        """Hit rate by mass [step] at MAP_BUDGET, mean over all heads, of policies that can fill mode sparse's arena."""
        return {name: self.run(budget=MAP_BUDGET, **self.subjects[name]).hit_rate_mass_over_time
                for name in ("lru, sampled", SAMPLED, POOLED, ORACLE_POOLED)}

    def reads(self) -> Reads:
        exists = np.array(self.header.exists)
        counts = [step.sampled[2][exists] for step in self.trace.steps() if not step.warmup]
        return Reads(np.array([n.sum(axis=1).mean() for n in counts]), np.array([(n > 0).sum(axis=1).mean() for n in counts]))

    def profile(self) -> Profile:
        """The profile that decides roles, from all steps including the warm-up."""
        steps = ((step.mass_sum, step.n_used_end) for step in self.trace.steps(sampled=False))
        return of_steps(steps, self.header.n_layers, self.header.n_heads)
