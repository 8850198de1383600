"""Counters of one attached context."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Stats:
    """What the steps of a context came to. A step is one ubatch."""

    n_steps: int = 0
    n_steps_hooked: int = 0
    """Steps attended by our kernel; the others (prompts, mode off) ran on the stock nodes."""
    n_tokens: int = 0
    n_tokens_hooked: int = 0
    python_seconds: float = 0.0
    """Time spent in the Python layer after steps, observers included."""

    def as_dict(self) -> dict[str, int | float]:
        return asdict(self)
