"""What `edgekv bench` measures: tests as llama-bench has them, at depths, in modes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edgekv.errors import ConfigError
from edgekv.lab.engine.modes import check_counts, check_turns, find_mode
from edgekv.lab.texts.text import Text
from edgekv.vocab import FULL, STOCK, CacheType, KvMode


class Fill(str, Enum):
    """What stands in the cache before a test."""

    TEXT = "text"
    """A text, which is read once."""
    SYNTHETIC = "synthetic"
    """Made-up K and V: nothing is computed."""


@dataclass(frozen=True)
class BenchTest:
    """A prompt of `n_prompt` tokens is read, or `n_gen` tokens are decoded one by one, or one after the other, behind `depth` tokens."""

    n_prompt: int
    n_gen: int
    depth: int

    @property
    def name(self) -> str:
        parts = [f"{what}{n}" for what, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen


@dataclass(frozen=True)
class BenchRequest:
    """Every model is measured with every pair of cache types, batch, ubatch and number of threads, in each test, at each depth, in each mode.
    Raises ConfigError for what cannot be."""

    models: tuple[Path, ...]
    text: Text
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    n_pg: tuple[tuple[int, int], ...] = ()
    depths: tuple[int, ...] = (0,)
    modes: tuple[str, ...] = (STOCK, FULL, KvMode.SPARSE.value)
    budgets: tuple[int | None, ...] = ()
    """Of the arena in bytes: each mode that has one is measured with each; empty: as the mode says."""
    threads: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (2048,)
    ubatches: tuple[int, ...] = (512,)
    cache_types: tuple[tuple[CacheType, CacheType], ...] = ((CacheType.F16, CacheType.F16),)
    n_rounds: int = 5
    fill: Fill = Fill.TEXT
    peer: Path | None = None
    """Another llama-bench."""

    def __post_init__(self) -> None:
        check_turns(self.modes)
        check_counts({"number of threads": self.threads, "batch": self.batches, "ubatch": self.ubatches,
                      "number of repetitions": (self.n_rounds,)})
        if not self.depths:
            raise ConfigError("there is no depth; 0 is an empty cache")
        if not self.tests(0):
            raise ConfigError("there is no test: name tokens of a prompt with -p, tokens to generate with -n, or both with -pg")
        if self.budgets and not any(with_arena(mode) for mode in self.modes):
            raise ConfigError("--kv-budget is the size of an arena, and none of the modes has one; add sparse to --modes")

    def tests(self, depth: int) -> list[BenchTest]:
        """In llama-bench's order, each once."""
        named = [*((n, 0) for n in self.n_prompt), *((0, n) for n in self.n_gen), *self.n_pg]
        return [BenchTest(*n, depth) for n in dict.fromkeys(named) if any(n)]


def with_arena(mode: str) -> bool:
    """Whether a mode keeps pages in an arena whose size can be said."""
    changes = find_mode(mode).changes
    return changes["mode"] is KvMode.SPARSE and "kv_budget" not in changes
