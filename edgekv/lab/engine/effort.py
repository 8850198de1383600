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
    """What is planned, in order, and what is done. A token takes a + b * position seconds, fitted to what was done of its kind."""

    def __init__(self, planned: Sequence[Work]):
        self.n_tokens = sum(work.n_tokens for work in planned)
        self._left = list(planned)
        self._doing: list[Work] = []
        """Done of the first one that is left."""
        self._measured: dict[Kind, list[tuple[int, int, float]]] = {kind: [] for kind in Kind}
        self._spent = 0.0

    @property
    def n_done(self) -> int:
        """Tokens, as planned."""
        n_doing = min(sum(work.n_tokens for work in self._doing), self._left[0].n_tokens) if self._left else 0
        return self.n_tokens - sum(work.n_tokens for work in self._left) + n_doing

    def add(self, work: Work, seconds: float) -> None:
        """A part of the first planned work that is left."""
        if work.n_tokens:
            self._measured[work.kind].append((work.position, work.n_tokens, seconds))
            self._doing.append(work)
            self._spent += seconds

    def finish(self) -> None:
        """The first planned work that is left is done, in fewer tokens than were planned perhaps."""
        self._left.pop(0)
        self._doing.clear()

    def seconds_left(self) -> float | None:
        """None until work of each kind that is left has been done."""
        fits = {kind: _fit(done) for kind, done in self._measured.items() if done}
        if not {work.kind for work in self._left} <= set(fits):
            return None

        def seconds(work: Work) -> float:
            a, b = fits[work.kind]
            return work.n_tokens * (a + b * work.position)

        first = [max(0.0, seconds(work) - sum(map(seconds, self._doing))) for work in self._left[:1]]
        return sum(first) + sum(map(seconds, self._left[1:]))

    def seconds_in_all(self) -> float | None:
        left = self.seconds_left()
        return None if left is None else self._spent + left


def _fit(done: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Least squares over tokens, neither number negative: one position says nothing about the slope."""
    position, n, seconds = np.array(done, np.float64).T
    mean, rate = np.average(position, weights=n), seconds / n
    spread = np.average((position - mean) ** 2, weights=n)
    slope = np.average((position - mean) * (rate - np.average(rate, weights=n)), weights=n) / spread if spread else 0.0
    slope = max(0.0, float(slope))
    start = float(np.average(rate, weights=n)) - slope * float(mean)
    return (start, slope) if start >= 0 else (0.0, float(np.sum(seconds) / np.sum(n * position)))
