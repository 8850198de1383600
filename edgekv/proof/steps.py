"""The steps of the proof and their parts, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypedDict

FACTS, RATES, KERNELS, PLANE = STEPS = ("facts", "rates", "kernels", "plane")

PROVES = (KERNELS, PLANE)
"""A card on which all parts of these steps are right has passed."""


class Outcome(str, Enum):
    """What a row says of its case."""

    RIGHT = "right"
    WRONG = "WRONG"
    KILLED = "KILLED"  # its process ended before the part did
    SKIPPED = "skipped"
    TOLD = "-"  # nothing was judged

    @property
    def fails(self) -> bool:
        return self in (Outcome.WRONG, Outcome.KILLED)


class Row(TypedDict):
    """One line of the table."""

    step: str
    case: str
    outcome: str
    said: str


@dataclass(frozen=True)
class HeadShape:
    """Heads of a layer with attention."""

    n_head: int = 8
    n_head_kv: int = 2
    head_dim: int = 128


@dataclass(frozen=True)
class Part:
    """What one process does. limit: seconds, after which it is ended."""

    step: str
    name: str
    limit: float
    quick: bool = False
    kind: str = "cuda"
    index: int = 0
    shape: HeadShape = field(default_factory=HeadShape)
    arena: bool = True

    @property
    def title(self) -> str:
        return self.step if self.name == self.step else f"{self.step}: {self.name}"


LIMITS = {FACTS: 30.0, RATES: 60.0, KERNELS: 90.0, PLANE: 60.0}
"""Seconds of a part."""
EMULATED = 10
"""Times as long is an emulated device given: its limits only end what hangs."""

STOCK, EXACT, RING, SPARSE_ALL, SPARSE_TENTH = ("stock", "exact", "exact through the ring", "sparse, all rows", "sparse, a tenth")

CASES = {FACTS: (FACTS,), RATES: (RATES,), KERNELS: (KERNELS,), PLANE: (STOCK, EXACT, RING, SPARSE_ALL, SPARSE_TENTH)}
"""The parts of a step."""


def parts(steps: tuple[str, ...], quick: bool, kind: str, index: int, shape: HeadShape) -> list[Part]:
    """The parts of these steps."""
    slower = 1 if kind == "cuda" else EMULATED
    return [Part(step, name, slower * LIMITS[step], quick, kind, index, shape) for step in STEPS if step in steps for name in CASES[step]]
