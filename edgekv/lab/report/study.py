"""The simulations of traces that a report needs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import __version__
from edgekv.lab.heads.roles import ROLES, Profile, Role, of_steps
from edgekv.lab.report.inputs import Cache, identity
from edgekv.lab.traces.sim import Replay, Scenario, simulate
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
            self.trace = trace.cut(n_steps=self.n_steps)
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

    def example_heads(self, profile: Profile) -> dict[Role, tuple[int, int]]:
        """(layer, head) of the clearest head of each role."""
        roles = profile.roles()
        clear = {Role.RETRIEVAL: profile.middle * profile.change, Role.ANCHOR: profile.sink, Role.RECENCY: profile.recent,
                 Role.OTHER: profile.middle * (1 - profile.change)}
        found = {}
        for i, role in enumerate(ROLES):
            worth = np.where(roles == i, clear[role], -1.0)
            if (roles == i).any():
                il, head = np.unravel_index(np.argmax(worth), worth.shape)
                found[role] = int(il), int(head)
        return found

    def attention_of(self, heads: Mapping[Any, tuple[int, int]]) -> dict[Any, np.ndarray]:
        """Each head's share of each step's mass, float32 [step, page], measured steps only."""
        found: dict[Any, list[np.ndarray]] = {name: [] for name in heads}
        for step in self.trace.steps(sampled=False):
            if not step.warmup:
                for name, (il, head) in heads.items():
                    mass = step.mass_sum[il, head]
                    found[name].append(mass / max(float(mass.sum()), 1e-9))
        return {name: np.array(steps) for name, steps in found.items()}

    def kept(self, il: int, head: int) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
        """The pages that some policies choose at MAP_BUDGET: for one head bool [step, page]; for all heads the chosen pages' shares by age
        (AGES), preceded by the shares of the attention itself."""
        masks: dict[str, np.ndarray] = {}
        ages: dict[str, list[float]] = {"attention": self._ages_of_mass()}
        for i, name in enumerate(HIGHLIGHTS):
            self.progress(f"{self.text}: pages that {name} chooses", i, len(HIGHLIGHTS))
            replay = Replay(self.trace, Scenario(budget=MAP_BUDGET, **self.subjects[name]))
            mask = np.zeros((self.n_steps, self.header.n_pages), bool)
            counts, n = np.zeros(len(AGES)), 0
            for step in self.trace.steps():
                replay.step(step)
                if not step.warmup and replay.chosen is not None:
                    mask[n, : step.n_used_end] = replay.chosen[il, head]
                    counts += self._by_age(replay.chosen.sum(axis=(0, 1)), step.n_used_end)
                    n += 1
            masks[name] = mask
            ages[name] = (counts / counts.sum()).tolist()
        return masks, ages

    def _ages_of_mass(self) -> list[float]:
        sums = np.zeros(len(AGES))
        for step in self.trace.steps(sampled=False):
            if not step.warmup:
                sums += self._by_age(step.mass_sum.sum(axis=(0, 1))[: step.n_used_end], step.n_used_end)
        return (sums / sums.sum()).tolist()

    def _by_age(self, values: np.ndarray, end: int) -> np.ndarray:
        """Sums of [:end] values over AGES: the first page, then by distance from the newest."""
        age = (end - 1 - np.arange(end)) * self.header.page_tokens
        bins = 1 + np.digitize(age, _AGE_LIMITS)
        bins[0] = 0
        return np.bincount(bins, values, len(AGES))


_AGE_LIMITS = (64, 512, 2048)
AGES = ("first page", "newest 64 tokens", "64 to 512", "512 to 2,048", "older")

