"""One run, as policies, prefetchers and the page table see it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Observation:
    """The tokens since the last run. Arrays are views, valid during the call."""

    mass_sum: np.ndarray
    """float32 [layer, head, page]: attention mass, summed over the query heads of the group and over the query tokens. In mode sparse with
    sketches it is an estimate from the rows that were read, right on average over tokens; without sketches unattended pages have zero."""
    mass_max: np.ndarray
    """The same, the maximum over the query heads."""
    n_tokens: int
    observed: bool
    """False if no mass was kept: stock nodes read a prompt, or the option `observe` or `observe_prompt` is off. The mass is then zero and
    says nothing."""
    changed: np.ndarray
    """int [n]: pages with a cell that changed since the last run, ascending; storing a token is a change."""
    page_positions: np.ndarray
    """int32 [page]: the newest position in the page; -1: the page is empty."""
    position: int
    """The newest position stored in this run; -1: none."""
    n_used_end: int
    """All pages from this one on are empty."""
    n_budget: int = 0
    """Pages that a head may keep, attend or have in the arena on average, those that are always taken included. 0: unknown."""
    key_norms: np.ndarray | None = None
    """float32 [layer, head, page]: mean L2 norm of the page's keys, zero where it is empty; None: no policy needs it."""
    n_unobserved: int = 0
    """Tokens of the run that were not observed: all of a prompt but the last ones of each stream. They come before those whose mass this is."""
    in_prompt: bool = False
    """Some tokens are a prompt's, as the server and the chat say."""
