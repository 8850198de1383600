"""What one mode took for one test, pass by pass, and the figures that come of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgekv.amounts import MIB
from edgekv.lab.engine.passes import Pass
from edgekv.lab.engine.request import BenchTest
from edgekv.lab.engine.tally import Tally


@dataclass
class Taken:
    """All passes of a mode."""

    test: BenchTest
    seconds: list[float] = field(default_factory=list)
    """Of each pass, as a whole."""
    first: list[float] = field(default_factory=list)
    """Until the first generated token, where a prompt was read before it."""
    tally: Tally = field(default_factory=Tally)
    """Of what was generated."""
    arena_bytes: int | None = None

    def add(self, prompt: float, done: Pass | None) -> None:
        """prompt: seconds that it took to read."""
        generated = done.seconds if done else []
        self.seconds.append(prompt + sum(generated))
        if self.test.n_prompt and generated:
            self.first.append(prompt + generated[0])
        if done:
            self.tally.time(generated, done.stats, done.selection)

    @property
    def typical(self) -> float:
        """Seconds of a pass, the median: one that another program disturbed does not count."""
        return float(np.median(self.seconds))

    def figures(self) -> dict[str, Any]:
        """Those that need no other mode."""
        figures = samples([round(1e9 * value) for value in self.seconds], self.test.n_tokens)
        if self.first:
            figures["ttft_ms"] = 1000 * float(np.median(self.first))
        ms, counted, read = self.tally.milliseconds, self.tally.stats, self.tally.selection
        if ms and not self.test.n_prompt:
            slow, middle = np.percentile(ms, (95, 50))
            figures |= {"tg_ts_p50": 1000 / float(middle), "tg_ts_p5": 1000 / float(slow)}
        if ms and counted.n_ubatches_hooked:
            n = max(1, counted.n_ubatches)
            figures |= {"bytes_moved": counted.moved_bytes / n, "stall_ms": 1000 * counted.stall_seconds / n}
        if read.n_selections:
            figures |= {"rows_per_head": read.rows_per_head, "hit_rate": read.hit_rate, "coverage": read.coverage}
        if self.arena_bytes is not None:
            figures["kv_budget_mib"] = self.arena_bytes / MIB
        return figures


def samples(nanoseconds: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """Averages and deviations of the passes as llama-bench has them."""
    speeds = [1e9 * n_tokens / ns for ns in nanoseconds]
    return {
        "avg_ns": round(_mean(nanoseconds)), "stddev_ns": round(_deviation(nanoseconds)), "avg_ts": _mean(speeds),
        "stddev_ts": _deviation(speeds), "samples_ns": list(nanoseconds), "samples_ts": speeds,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
