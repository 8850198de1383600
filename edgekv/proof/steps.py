"""The steps of the proof and their parts, in order."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypedDict

from msgspec import Struct, field

FACTS, RATES, KERNELS, PLANE, MEMORY, SPEED = STEPS = ("facts", "rates", "kernels", "plane", "memory", "speed")

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


Told = tuple[str, Outcome, str] | tuple[str, Outcome, str, dict[str, Any]]
"""What a part tells of a case: a row but for its step."""


class Row(TypedDict):
    """One line of the table. replay: what `Part.replay` needs to run a case that failed again, where that is known; else empty."""

    step: str
    case: str
    outcome: str
    said: str
    replay: dict[str, Any]


class HeadShape(Struct, frozen=True):
    """Heads of a layer with attention."""

    n_head: int = 8
    n_head_kv: int = 2
    head_dim: int = 128


class Part(Struct, frozen=True):
    """What one process does. limit: seconds, after which it is ended."""

    step: str
    name: str
    limit: float
    quick: bool = False
    kind: str = "cuda"
    index: int = 0
    shape: HeadShape = field(default_factory=HeadShape)
    arena: bool = True
    model: str = ""
    """Path of MODEL, for memory and speed; empty: a small model of these heads."""
    replay: dict[str, Any] = field(default_factory=dict)
    """One kernel's case, or a case's events, in place of all."""

    @property
    def emulated(self) -> bool:
        return self.kind != "cuda"

    @property
    def events(self) -> list[list[Any]]:
        """What happens to the contexts of a case of the plane, each a name and numbers: tokens of a prompt; tokens of each step; where it goes back; the
        first token that is forgotten, and how many. What stands without steps is followed by four tokens."""
        if self.replay:
            return self.replay["events"]
        n_prompt = 330 if self.quick or self.emulated else 3000  # read in pieces, of which the last is long enough to be a prompt too
        one = [1] * 4
        tokens = [1] * (8 if self.quick else 20) + [2, 5, 16, 1]
        rows = [[COPIED_ROWS, one]] if self.name == SPARSE_ALL else []
        return [["prompt", n_prompt], ["tokens", tokens], *rows, ["rewind", one, 30], ["shift", one, 64, 48],
                *([name, one] for name in (*SECOND, *CHANGES.get(self.name, ())))]

    @property
    def title(self) -> str:
        return self.step if self.name == self.step else f"{self.step}: {self.name}"


LIMITS = {FACTS: 30.0, RATES: 60.0, KERNELS: 90.0, PLANE: 60.0, MEMORY: 60.0, SPEED: 60.0}
"""Seconds of a part. Speed looks at the clock itself, and measures what it has time for."""
EMULATED = 30
"""Times as long is an emulated device given: its limits only end what hangs."""

STOCK, EXACT, RING, SPARSE_ALL, SPARSE_TENTH = ("stock", "exact", "exact through the ring", "sparse, all rows", "sparse, a tenth")

CASES = {FACTS: (FACTS,), RATES: (RATES,), KERNELS: (KERNELS,), PLANE: (STOCK, EXACT, RING, SPARSE_ALL, SPARSE_TENTH), MEMORY: (MEMORY,), SPEED: (SPEED,)}
"""The parts of a step."""

SECOND = ("save and load", "a second context", "the first beside it", "the second beside it", "load again")
COPIED_ROWS = "copies of rows"
"""Most of the arena is for them from here on, and what follows changes rows that have copies."""
_MODES, _BUDGETS = ("to sparse", "to stock", "to exact", "to this mode"), ("a small budget", "no bound again")
CHANGES = {EXACT: _MODES + _BUDGETS, SPARSE_ALL: _MODES + _BUDGETS, SPARSE_TENTH: _BUDGETS}
"""Changes while a case of the plane runs. Stock has none: the noise must not hold our own faults."""


def parts(steps: tuple[str, ...], quick: bool, kind: str, index: int, shape: HeadShape, model: str = "") -> list[Part]:
    """The parts of these steps."""
    return [_part(step, name, quick, kind, index, shape, model=model) for step in STEPS if step in steps for name in CASES[step]]


def replayed(row: Row, shape: HeadShape) -> Part:
    """A case of a report, for the emulated device."""
    return _part(row["step"], row["case"], True, "emulated", 0, shape, replay=row["replay"])


def _part(step: str, name: str, quick: bool, kind: str, index: int, shape: HeadShape, **more: Any) -> Part:
    return Part(step, name, LIMITS[step] * (1 if kind == "cuda" else EMULATED), quick, kind, index, shape, **more)
