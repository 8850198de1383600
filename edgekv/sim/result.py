"""What a simulation found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.sim.setting import Setting
from edgekv.trace import Header
from edgekv.vocab import Split


@dataclass(frozen=True)
class Result:
    """Means over the steps that are measured. Arrays _by_head are float64 [row, head], NaN where the row has no such head; arrays
    _over_time are float64 [step], means over all heads."""

    setting: Setting
    header: Header
    split: Split
    """How the budget was divided."""
    observe: str
    """That of the setting, or "ahead": the policy saw each step before it was selected, as only the oracle does."""
    coverage_by_head: np.ndarray
    """True mass on attended pages / true mass on all."""
    hit_rate_by_head: np.ndarray
    """Wanted pages that were hot / wanted pages."""
    hit_rate_mass_by_head: np.ndarray
    """True mass on hot pages / true mass on all."""
    arena_hits_by_head: np.ndarray
    """Attended pages that were hot before the step / attended pages."""
    attended_by_head: np.ndarray
    """Pages in a step."""
    hot_by_head: np.ndarray
    """Pages in a step."""
    fetched_by_head: np.ndarray
    """Pages that became hot for a step, prefetched ones included."""
    prefetched_by_head: np.ndarray
    """Pages that prefetch made hot for a step."""
    n_wanted: np.ndarray
    """Wanted pages [row, head], of all steps together."""
    n_visible: float
    """Pages in a step, mean."""
    coverage_over_time: np.ndarray
    attended_over_time: np.ndarray
    seconds: float
    """What the simulation took."""

    @property
    def coverage(self) -> float:
        return self._mean(self.coverage_by_head)

    @property
    def hit_rate(self) -> float:
        """Of all wanted pages of all heads."""
        wanted = self.n_wanted.sum()
        return float(np.nansum(self.hit_rate_by_head * self.n_wanted) / wanted) if wanted else float("nan")

    @property
    def arena_hits(self) -> float:
        """Of all attended pages of all heads."""
        return float(np.nansum(self.arena_hits_by_head * self.attended_by_head) / np.nansum(self.attended_by_head))

    @staticmethod
    def _mean(by_head: np.ndarray) -> float:
        return float(np.nanmean(by_head))

    def row(self) -> dict[str, Any]:
        """Numbers and words, for a table. hit_rate is by access; budget is a share, or a whole number of tokens."""
        setting = self.setting
        return {
            "policy": setting.policy, "budget": setting.budget.tokens or setting.budget.share, "split": self.split.value,
            "observe": self.observe, "sketch": setting.sketch, "blend": setting.blend if setting.sketch else None,
            "feed": setting.feed and self.observe == "honest", "prefetch": setting.prefetch, "pool": setting.pool,
            "target": setting.coverage, "access": str(setting.access),
            "hit_rate": self.hit_rate, "hit_rate_mass": self._mean(self.hit_rate_mass_by_head), "coverage": self.coverage,
            "worst_coverage": float(np.nanmin(self.coverage_by_head)), "arena_hits": self.arena_hits,
            "attended": self._mean(self.attended_by_head) / self.n_visible, "hot": self._mean(self.hot_by_head) / self.n_visible,
            "fetched": self._mean(self.fetched_by_head), "prefetched": self._mean(self.prefetched_by_head),
            "seconds": self.seconds,
        }

    def by_head(self) -> Iterator[dict[str, Any]]:
        """A row for each head that there is, the layer's number in the model."""
        for row, head in zip(*np.nonzero(np.array(self.header.exists))):
            yield {"layer": self.header.layers[row], "head": int(head), **self._figures(np.s_[row, head])}

    def by_layer(self) -> Iterator[dict[str, Any]]:
        """A row for each layer: means over its heads."""
        for row, layer in enumerate(self.header.layers):
            yield {"layer": layer, **self._figures(np.s_[row])}

    def worst(self, n: int) -> list[dict[str, Any]]:
        """The heads with the lowest coverage, the lowest first."""
        return sorted(self.by_head(), key=lambda row: row["coverage"])[:n]

    def _figures(self, part: Any) -> dict[str, Any]:
        wanted, attended = self.n_wanted[part], self.attended_by_head[part]
        return {
            "hit_rate": _weighted(self.hit_rate_by_head[part], wanted),
            "hit_rate_mass": self._mean(self.hit_rate_mass_by_head[part]), "coverage": self._mean(self.coverage_by_head[part]),
            "arena_hits": _weighted(self.arena_hits_by_head[part], attended),
            "attended": self._mean(attended) / self.n_visible, "hot": self._mean(self.hot_by_head[part]) / self.n_visible,
            "fetched": self._mean(self.fetched_by_head[part]), "prefetched": self._mean(self.prefetched_by_head[part]),
        }


def _weighted(rates: np.ndarray, weights: np.ndarray) -> float:
    total = np.nansum(weights)
    return float(np.nansum(rates * weights) / total) if total else float("nan")
