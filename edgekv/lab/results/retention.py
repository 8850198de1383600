"""Retention: the share of full attention's answers that a mode keeps."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from edgekv.bench.intervals import wilson

HANDFUL = 5
"""If full attention finds fewer answers than this, and fewer than half of all, the model cannot do the task:
its answers may be luck, and the task says nothing about the cache."""


class Retention(Struct, frozen=True):
    """Counts of answers, each asked of full attention and of a mode."""

    n_asked: int = 0
    n_full: int = 0
    """Answers that full attention finds; the others are the model's own failures."""
    n_found: int = 0
    n_kept: int = 0
    """Answers that both find."""

    def __add__(self, other: Retention) -> Retention:
        return Retention(self.n_asked + other.n_asked, self.n_full + other.n_full, self.n_found + other.n_found, self.n_kept + other.n_kept)

    @classmethod
    def of(cls, full: tuple[bool, ...], mode: tuple[bool, ...]) -> Retention:
        """The answers to one question, in the same order."""
        if len(full) != len(mode):
            raise ValueError(f"{len(full)} answers of full attention and {len(mode)} of the mode")
        return cls(len(full), sum(full), sum(mode), sum(a and b for a, b in zip(full, mode)))

    @property
    def says_nothing(self) -> bool:
        return self.n_full < HANDFUL and 2 * self.n_full < self.n_asked or not self.n_full

    @property
    def share(self) -> float | None:
        """The kept share; None if full attention finds nothing."""
        return self.n_kept / self.n_full if self.n_full else None

    def row(self) -> dict[str, Any]:
        """The counts, and the share with its interval (Wilson's; answers to one context are not quite independent, so it is
        too narrow rather than too wide)."""
        low, high = wilson(self.n_kept, self.n_full) if self.n_full else (None, None)
        return {
            "asked": self.n_asked, "full_found": self.n_full, "found": self.n_found, "kept": self.n_kept,
            "extra": self.n_found - self.n_kept, "retention": self.share, "retention_low": low, "retention_high": high,
            "says_nothing": self.says_nothing,
        }
