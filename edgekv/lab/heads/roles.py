"""The roles of KV heads, by the place of their attention mass, its concentration and its change.

The pages of a step fall into three parts: the first ones, where models park unneeded attention (Efficient Streaming
Language Models with Attention Sinks, arXiv:2309.17453), the newest ones, and the middle. A cache must serve heads that find things in
the middle (Retrieval Head Mechanistically Explains Long-Context Factuality, arXiv:2404.15574; DuoAttention,
arXiv:2410.10819). Those works find retrieval heads by copying tests and by training. Observed mass alone decides here,
so that a recorded trace or a few live steps are enough. A step decodes one token.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np
from msgspec import Struct

SINK_PAGES = 1
"""Pages at the start that count as first: the sink is one token, or the few first tokens of a chat template."""

RECENT_PAGES = 4
"""Pages at the end that count as recent: the 64 newest tokens, which mode sparse always attends."""

MOST = 0.5
"""A head with at least this share of its mass on the first pages is an anchor head, on the newest ones a recency head: pins alone
serve more than half of its mass."""

CONSIDERABLE = 0.2
"""Least share of the mass in the middle for a retrieval head. With a smaller share, dropping the whole middle changes the output by less
than a fifth; about a third of the default model's heads have a smaller one."""

FEW = 0.05
"""Part of the middle's pages that counts as few, at least one page; a share makes roles independent of the depth."""

CONCENTRATED = 0.4
"""Least part of the middle's mass on its best few pages of each step, for a retrieval head: eight times the part of an even spread.
A head with less (layer 0 of the default model has 0.2) spreads its mass, and no choice of few pages serves it."""

CHANGING = 0.25
"""Least change of the middle from step to step for a retrieval head, as the part of its mass that moves to other pages (total
variation distance). With less change, the previous step's pages serve the head: it is static, not searching. The default model's median
is there; its heads of wide, fixed attention in layers 2 to 10 have 0.1 to 0.2, searching heads 0.3 to 0.6."""

MIN_STEPS = 2
"""Change needs two steps, so one step decides no roles."""


class Role(str, Enum):
    """The roles in the order of their tests, retrieval first: a head that parks mass on the first page and also searches would
    be lost if treated as an anchor head."""

    RETRIEVAL = "retrieval"
    ANCHOR = "anchor"
    RECENCY = "recency"
    OTHER = "other"

    @property
    def letter(self) -> str:
        return _LETTERS[self]

    @property
    def description(self) -> str:
        return _DESCRIPTIONS[self]


_LETTERS = {Role.RETRIEVAL: "R", Role.ANCHOR: "A", Role.RECENCY: "N", Role.OTHER: "o"}
_DESCRIPTIONS = {
    Role.RETRIEVAL: "much of its mass on few pages in the middle, others in each step",
    Role.ANCHOR: "most of its mass on the first page",
    Role.RECENCY: "most of its mass on the newest pages",
    Role.OTHER: "none of these: diffuse, or always the same pages",
}
ROLES = tuple(Role)
UNKNOWN = -1


MEASURES = ("sink", "recent", "middle", "concentration", "change")


class Profile(Struct, frozen=True):
    """Figures of each head: float64 [layer, kv_head], means over the observed steps; NaN for an unobserved head."""

    n_steps: int
    sink: np.ndarray
    """Share of the mass on the first pages."""
    recent: np.ndarray
    """Share on the newest pages."""
    middle: np.ndarray
    """Share on the pages between them."""
    concentration: np.ndarray
    """Part of the middle's mass on its best pages of each step, `FEW` of them: 1 is all mass, 0 also stands for no mass."""
    change: np.ndarray
    """Part of the middle's mass that moves from step to step: 0 always the same pages, 1 always other pages. NaN after one step."""

    def roles(self) -> np.ndarray:
        """int8 [layer, kv_head]: index into `ROLES`, or `UNKNOWN` with fewer than two observed steps."""
        searching = (self.middle >= CONSIDERABLE) & (self.concentration >= CONCENTRATED) & (self.change >= CHANGING)
        anchored = (self.sink >= MOST) & (self.sink >= self.recent)
        tests = [np.isnan(self.change), searching, anchored, self.recent >= MOST]
        answers = [UNKNOWN, *(ROLES.index(role) for role in (Role.RETRIEVAL, Role.ANCHOR, Role.RECENCY))]
        return np.select(tests, answers, ROLES.index(Role.OTHER)).astype(np.int8)

    def spread(self, layers: list[int], n_layers: int, n_heads: int) -> Profile:
        """The profile over all heads: its layers become `layers` of `n_layers`, its heads the first of `n_heads`; all others count as unobserved."""
        def spread(values: np.ndarray) -> np.ndarray:
            wide = np.full((n_layers, n_heads), np.nan)
            wide[layers, : values.shape[1]] = values[:, :n_heads]
            return wide

        return Profile(self.n_steps, *(spread(getattr(self, name)) for name in MEASURES))

    def names(self) -> list[list[str | None]]:
        """The role of each head by name, None if unknown."""
        return [[None if role == UNKNOWN else ROLES[role].value for role in heads] for heads in self.roles()]


class RoleMeter:
    """Running sums over the steps that a trace or a live context hands in; of the steps themselves only the previous one is
    kept."""

    def __init__(self, n_layers: int, n_heads: int, sink_pages: int = SINK_PAGES, recent_pages: int = RECENT_PAGES):
        self.sink_pages, self.recent_pages = sink_pages, recent_pages
        self.n_steps = 0
        self._sums = np.zeros((4, n_layers, n_heads))  # sink, recent, middle, and the middle's few best pages
        self._seen = np.zeros((n_layers, n_heads), np.int64)
        self._moved = np.zeros((n_layers, n_heads))
        self._compared = np.zeros((n_layers, n_heads))
        self._before: np.ndarray | None = None  # shares of the previous step

    def add(self, mass: np.ndarray, n_used_end: int) -> None:
        """Add a decode step. mass: [layer, kv_head, page], on any scale; n_used_end: pages from here on are empty. A head without
        mass (the layer lacks it) does not count."""
        share = np.array(mass[:, :, :n_used_end], np.float64)
        total = share.sum(axis=2, keepdims=True)
        share /= np.where(total > 0, total, 1.0)
        start = min(self.sink_pages, n_used_end)
        end = max(start, n_used_end - self.recent_pages)
        middle = share[:, :, start:end]
        n_few = max(1, round(FEW * (end - start)))
        best = np.partition(middle, -n_few, axis=2)[:, :, -n_few:] if end > start else middle
        for total_share, part in zip(self._sums, (share[:, :, :start], share[:, :, end:], middle, best)):
            total_share += part.sum(axis=2)  # noqa: PLW2901 (in place)
        self._seen += total[:, :, 0] > 0
        if self._before is not None:
            self._compare(middle, self._before[:, :, start:end])
        self._before = share
        self.n_steps += 1

    def _compare(self, middle: np.ndarray, before: np.ndarray) -> None:
        """Compare pages that were in the middle in both steps, each step's mass as a distribution; a step's weight is its middle's
        mass."""
        middle = middle[:, :, : before.shape[2]]
        now, then = middle.sum(axis=2), before.sum(axis=2)
        weight = np.minimum(now, then)
        scaled = middle / np.where(now > 0, now, 1.0)[:, :, None] - before / np.where(then > 0, then, 1.0)[:, :, None]
        self._moved += weight * np.abs(scaled).sum(axis=2) / 2
        self._compared += weight

    def profile(self) -> Profile:
        seen = np.where(self._seen > 0, self._seen, np.nan)
        sink, recent, middle, best = self._sums / seen
        with np.errstate(invalid="ignore", divide="ignore"):
            concentration = np.where(middle > 0, best / middle, np.where(np.isnan(middle), np.nan, 0.0))
            change = np.where(self._compared > 0, self._moved / self._compared, 0.0)
        change = np.where(self._seen >= MIN_STEPS, change, np.nan)
        return Profile(self.n_steps, sink, recent, middle, concentration, change)


def of_steps(steps: Iterable[tuple[np.ndarray, int]], n_layers: int, n_heads: int) -> Profile:
    """The profile of steps given as (mass, n_used_end); see `RoleMeter.add`."""
    meter = RoleMeter(n_layers, n_heads)
    for mass, n_used_end in steps:
        meter.add(mass, n_used_end)
    return meter.profile()
