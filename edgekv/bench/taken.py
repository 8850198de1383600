"""The times of one mode in one test, pass by pass."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from msgspec import Struct, field

from edgekv.bench.passes import Pass
from edgekv.bench.request import BenchTest
from edgekv.bench.tally import Tally


class Taken(Struct):
    """All passes of a mode in a test."""

    test: BenchTest
    seconds: list[float] = field(default_factory=list)
    """Seconds of each pass."""
    empty: list[float] = field(default_factory=list)
    """Seconds of the same prompt in an empty cache, for each pass."""
    first: list[float] = field(default_factory=list)
    """Seconds until the first generated token, for tests pp+tg."""
    tally: Tally = field(default_factory=Tally)
    """The generated tokens."""
    bytes_kept: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the mode keeps besides the cache, by name."""
    counts: dict[str, list[float]] = field(default_factory=dict)
    """What was counted (`edgekv.bench.process.COUNTED`) for a timed token, for each pass."""

    def add(self, prompt: float, done: Pass | None, empty: float | None, counts: Mapping[str, float]) -> None:
        """Add a pass. prompt: seconds to read it. empty: the same in an empty cache. counts: of the pass, by name."""
        generated = done.seconds if done else []
        self.seconds.append(prompt + sum(generated))
        if empty is not None:
            self.empty.append(empty)
        if self.test.n_prompt and generated:
            self.first.append(prompt + generated[0])
        if done:
            self.tally.time(generated, done.stats, done.selection)
        for name, n in counts.items():
            self.counts.setdefault(name, []).append(n / max(1, self.test.n_prompt + len(generated)))

    @property
    def typical(self) -> float:
        """The median of the passes in seconds, which ignores a pass that another program disturbed."""
        return float(np.median(self.seconds))

    def samples(self) -> dict[str, Any]:
        return samples([round(1e9 * value) for value in self.seconds], self.test.n_tokens)


def samples(nanoseconds: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """The passes' averages and deviations in llama-bench's form."""
    speeds = [1e9 * n_tokens / ns for ns in nanoseconds]
    of_ns, of_speeds = (stdev(nanoseconds), stdev(speeds)) if len(speeds) > 1 else (0.0, 0.0)
    return {
        "avg_ns": round(fmean(nanoseconds)), "stddev_ns": round(of_ns), "avg_ts": fmean(speeds), "stddev_ts": of_speeds,
        "samples_ns": list(nanoseconds), "samples_ts": speeds,
    }
