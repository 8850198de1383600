"""What a policy, a prefetcher and the page table see of one run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Observation:
    """The tokens since the last run. Arrays are views that stay valid during the call."""

    mass_sum: np.ndarray
    """float32 [row, head, page]: attention mass, summed over the query heads of the group and over the query tokens. In mode sparse with
    sketches it is estimated from the rows that were read, and right on average over tokens; without sketches it is zero where a page was
    not attended."""
    mass_max: np.ndarray
    """The same, the maximum over the query heads."""
    n_tokens: int
    observed: bool
    """False where no mass was kept: stock nodes read a prompt, or the options `observe` or `observe_prompt` are off. The mass is zero then
    and says nothing."""
    changed: np.ndarray
    """int [n]: pages with a cell that changed since the last run, ascending; also where a new token was stored."""
    page_positions: np.ndarray
    """int32 [page]: the newest position in the page, -1: no cell is in use."""
    position: int
    """The newest position stored since then; -1: none."""
    n_used_end: int
    """From this page on all are empty."""
    n_budget: int = 0
    """Pages that a head may keep, attend or have in the arena on average; pages that are always taken count too. 0: unknown."""
    key_norms: np.ndarray | None = None
    """float32 [row, head, page]: mean L2 norm of the page's keys, zero where it is empty; None where no policy needs it."""
    n_unobserved: int = 0
    """Tokens of the run before those whose mass this is, which nobody observed: of a prompt the last ones of each stream are."""
    in_prompt: bool = False
    """It has tokens of a prompt, as the server and the chat know."""
