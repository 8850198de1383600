"""An estimate of the time left in a run, from the time that its parts have taken."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from msgspec import Struct


class Kind(Enum):
    READ = "read"
    """Tokens are read in batches."""
    DECODE = "decode"
    """Tokens are decoded one by one."""


class Work(Struct, frozen=True):
    """The work of `n_tokens` tokens. `position`: tokens in the cache halfway through."""

    kind: Kind
    position: int
    n_tokens: int

    @classmethod
    def after(cls, kind: Kind, position: int, n_tokens: int) -> Work:
        """The work of `n_tokens` tokens after `position` others."""
        return cls(kind, position + n_tokens // 2, n_tokens)


class Effort:
    """The planned works in order, and the works done. A token takes a + b * position seconds; a and b are fitted to the works of its kind."""

    def __init__(self, planned: Sequence[Work]):
        self.n_tokens = sum(work.n_tokens for work in planned)
        self._left = list(planned)
        self._doing: list[Work] = []
        """The measured parts of the first work in `_left`."""
        self._measured: dict[Kind, list[tuple[int, int, float]]] = {kind: [] for kind in Kind}
        self._spent = 0.0

    @property
    def n_done(self) -> int:
        """The planned tokens that are done."""
        n_doing = min(sum(work.n_tokens for work in self._doing), self._left[0].n_tokens) if self._left else 0
        return self.n_tokens - sum(work.n_tokens for work in self._left) + n_doing

    def add(self, work: Work, seconds: float) -> None:
        """Add a part of the first remaining work."""
        if work.n_tokens:
            self._measured[work.kind].append((work.position, work.n_tokens, seconds))
            self._doing.append(work)
            self._spent += seconds

    def finish(self) -> None:
        """End the first remaining work; it may have taken fewer tokens than planned."""
        self._left.pop(0)
        self._doing.clear()

    def seconds_left(self) -> float | None:
        """The estimated seconds left; None until each remaining kind of work has been measured once."""
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
    """Fit a and b over tokens by least squares, both at least 0. With a single position the slope is 0."""
    position, n, seconds = np.array(done, np.float64).T
    mean, rate = np.average(position, weights=n), seconds / n
    spread = np.average((position - mean) ** 2, weights=n)
    slope = np.average((position - mean) * (rate - np.average(rate, weights=n)), weights=n) / spread if spread else 0.0
    slope = max(0.0, float(slope))
    start = float(np.average(rate, weights=n)) - slope * float(mean)
    return (start, slope) if start >= 0 else (0.0, float(np.sum(seconds) / np.sum(n * position)))
