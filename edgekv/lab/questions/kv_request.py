"""What the benchmarks of speed have in common: where they measure, and in which modes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekv.lab.engine.modes import check_counts, check_turns
from edgekv.lab.texts.text import Text
from edgekv.vocab import FULL, STOCK, CacheType


@dataclass(frozen=True)
class SpeedRequest:
    """Every combination of text, cache types, threads and depth is measured in each mode, in turns. Raises ConfigError for what cannot
    be."""

    model: Path
    texts: tuple[Text, ...]
    depths: tuple[int, ...] = (512, 4096, 7680)
    threads: tuple[int, ...] = (1,)
    cache_types: tuple[tuple[CacheType, CacheType], ...] = ((CacheType.F16, CacheType.F16),)
    modes: tuple[str, ...] = (STOCK, FULL)
    n_rounds: int = 3
    """Passes of each mode."""
    page_tokens: int | None = None

    def __post_init__(self) -> None:
        check_turns(self.modes)
        check_counts({"depth": self.depths, "thread count": self.threads, "number of rounds": (self.n_rounds,)})
