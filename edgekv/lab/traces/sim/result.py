"""The result of a simulation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from edgekv.common.enums import Split
from edgekv.lab.traces.sim.scenario import Scenario
from edgekv.lab.traces.trace import TraceHeader


class Result(Struct, frozen=True):
    """Means over the measured steps. Arrays _by_head are float64 [layer, head], NaN if the layer lacks the head."""

    scenario: Scenario
    header: TraceHeader
    split: Split
    """The division of the budget."""
    observe: str
    """The scenario's observation, or "ahead": the policy saw each step before its choice, as only the oracle does."""
    hit_rate_by_head: np.ndarray
    """Wanted and hot / wanted."""
    hit_rate_mass_by_head: np.ndarray
    """True mass on hot pages / true mass on all pages."""
    hot_by_head: np.ndarray
    """Hot pages in a step."""
    fetched_by_head: np.ndarray
    """Pages that became hot for a step, prefetched ones included."""
    prefetched_by_head: np.ndarray
    """Pages that prefetch made hot for a step."""
    n_wanted: np.ndarray
    """Wanted rows [layer, head], summed over all steps."""
    n_visible: float
    """Mean number of pages in a step."""
    seconds: float
    """Time of the simulation."""

    @staticmethod
    def _mean(by_head: np.ndarray) -> float:
        return float(np.nanmean(by_head))

    def row(self) -> dict[str, Any]:
        """Numbers and words for a table. hit_rate is of all heads together; worst_mass is the lowest hit_rate_mass of any head; budget is a
        share, or a whole number of tokens."""
        scenario = self.scenario
        budget: Any = scenario.budget  # __post_init__ made it a Budget
        return {
            "policy": scenario.policy, "budget": budget.tokens or budget.share, "split": self.split.value,
            "observe": self.observe, "prefetch": scenario.prefetch, **self._figures(np.s_[:]),
            "worst_mass": float(np.nanmin(self.hit_rate_mass_by_head)), "seconds": self.seconds,
        }

    def by_head(self) -> Iterator[dict[str, Any]]:
        """A row for each existing head, with the layer's number in the model."""
        for il, head in zip(*np.nonzero(np.array(self.header.exists))):
            yield {"layer": self.header.layers[il], "head": int(head), **self._figures(np.s_[il, head])}

    def by_layer(self) -> Iterator[dict[str, Any]]:
        """A row for each layer, with means over its heads."""
        for il, layer in enumerate(self.header.layers):
            yield {"layer": layer, **self._figures(np.s_[il])}

    def worst(self, n: int) -> list[dict[str, Any]]:
        """The `n` heads with the lowest hit rate by mass, the lowest first."""
        return sorted(self.by_head(), key=lambda row: row["hit_rate_mass"])[:n]

    def _figures(self, part: Any) -> dict[str, Any]:
        return {
            "hit_rate": _weighted(self.hit_rate_by_head[part], self.n_wanted[part]),
            "hit_rate_mass": self._mean(self.hit_rate_mass_by_head[part]), "hot": self._mean(self.hot_by_head[part]) / self.n_visible,
            "fetched": self._mean(self.fetched_by_head[part]), "prefetched": self._mean(self.prefetched_by_head[part]),
        }


def _weighted(rates: np.ndarray, weights: np.ndarray) -> float:
    total = np.nansum(weights)
    return float(np.nansum(rates * weights) / total) if total else float("nan")
