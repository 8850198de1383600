"""The last minutes of decoding, second by second."""

from collections import deque

from msgspec import Struct

from edgekv.server.figures import Figures, coverage

SECONDS = 1.0
"""The least time between two points."""
LAST_SECONDS = 0.25
"""The least time for the last point before a pause."""
POINTS = 240


class Point(Struct, frozen=True):
    """One stretch of decoding. None: nothing was selected in it, or the figure was not kept."""

    at: float
    """`time.time()` at its end."""
    tokens_per_second: float
    """Computed tokens of prompts and answers, in all slots."""
    rows_per_head: float | None
    """Tokens that a head reads for a token."""
    visible_per_head: float | None
    """Tokens that it sees."""
    coverage: float | None
    """Estimated share of the attention on the read tokens."""
    error: float | None
    """Estimated relative error of a head's output."""


class History:
    """Points of one server, the oldest first."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._before: Figures | None = None

    def add(self, figures: Figures, began: bool = False, ended: bool = False) -> bool:
        """Add figures; returns whether they made a new point. `began`: decoding resumes after a pause, which belongs to no stretch. `ended`: a pause
        follows, so a shorter stretch also makes a point."""
        before = self._before
        if before is None or began or figures.n_tokens < before.n_tokens:
            self._before = figures
            return False
        seconds = figures.taken - before.taken
        if seconds < (LAST_SECONDS if ended else SECONDS):
            return False
        self._before = figures
        n_tokens = figures.n_tokens - before.n_tokens
        if not n_tokens:
            return False
        read = figures.selection.since(before.selection)
        self.points.append(Point(figures.taken, n_tokens / seconds, *(
            (read.rows_per_head, read.visible_per_head, coverage(figures.options.mode, read), read.error) if read.n_selections else (None,) * 4)))
        return True
