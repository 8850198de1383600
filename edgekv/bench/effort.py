"""How long a run will still take, from what it has taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np


class Kind(Enum):
    READ = "read"
    """In batches."""
    DECODE = "decode"
    """One by one."""


@dataclass(frozen=True)
class Work:
    """`n_tokens` tokens, in the middle of which `position` stand in the cache."""

    kind: Kind
    position: int
    n_tokens: int

    @classmethod
    def after(cls, kind: Kind, position: int, n_tokens: int) -> Work:
        """Tokens after those that stand in the cache already."""
        return cls(kind, position + n_tokens // 2, n_tokens)


class Effort:
    """What is planned and what is done. A token takes a + b * position seconds, fitted to what was done of its kind."""

    def __init__(self, planned: Sequence[Work]):
        self._planned = list(planned)
        self._n_tokens = sum(work.n_tokens for work in planned)
        self._done: dict[Kind, list[tuple[int, int, float]]] = {kind: [] for kind in Kind}
        self._spent = dict.fromkeys(Kind, 0)

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    @property
    def n_done(self) -> int:
        return min(self._n_tokens, sum(self._spent.values()))

    def add(self, work: Work, seconds: float) -> None:
        if work.n_tokens:
            self._done[work.kind].append((work.position, work.n_tokens, seconds))
            self._spent[work.kind] += work.n_tokens

    def seconds_in_all(self) -> float | None:
        """For everything planned; None until work of each planned kind has been done."""
        total = 0.0
        for kind in {work.kind for work in self._planned}:
            if not self._done[kind]:
                return None
            a, b = _fit(self._done[kind])
            total += sum(work.n_tokens * (a + b * work.position) for work in self._planned if work.kind is kind)
        return total

    def seconds_left(self) -> float | None:
        """In proportion to the tokens that are left."""
        in_all = self.seconds_in_all()
        return None if in_all is None else in_all * (1 - self.n_done / max(1, self._n_tokens))


def _fit(done: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Least squares over tokens, neither number negative: one position says nothing about the slope."""
    position, n, seconds = np.array(done, np.float64).T
    mean, rate = np.average(position, weights=n), seconds / n
    spread = np.average((position - mean) ** 2, weights=n)
    slope = np.average((position - mean) * (rate - np.average(rate, weights=n)), weights=n) / spread if spread else 0.0
    slope = max(0.0, float(slope))
    start = float(np.average(rate, weights=n)) - slope * float(mean)
    return (start, slope) if start >= 0 else (0.0, float(np.sum(seconds) / np.sum(n * position)))
