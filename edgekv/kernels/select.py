"""Selection: which pages a query token attends in one KV head. The truth that native/src/select_kernel.h is tested against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Selection:
    pages: np.ndarray
    """int [n]: the pages taken, ascending."""
    covered: np.ndarray
    """float64 [group]: estimated coverage of each query head; 1 without estimates."""
    missed: np.ndarray
    """float64 [page]: estimated mass of the pages not taken, summed over the query heads; otherwise 0."""
    fell_back: bool


def page_mass(estimates: np.ndarray, standing: np.ndarray) -> np.ndarray:
    """float64 [group, page]: each query head's softmax over the visible pages, from the natural log of each page's sum of
    exponentials."""
    x = np.where(standing == -np.inf, -np.inf, estimates.astype(np.float64))
    top = x.max(axis=1, keepdims=True)
    weights = np.exp(x - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def select(estimates: np.ndarray | None, standing: np.ndarray, priority: np.ndarray, pinned: np.ndarray, n_budget: int,
           threshold: float = -1.0, coverage: float = 0.0, floor: float = 0.0, blend: float = 0.5) -> Selection:
    """
    Args:
        estimates: float [group, page], or None: the priority alone counts.
        standing: float [page], -inf: invisible, +inf: always taken, otherwise 0.
        priority: float [page], not negative, in units of mass.
        pinned: bool [page], always taken where visible.
        n_budget: pages to take, with those always taken; these may exceed it.
        threshold: the value from which a page is taken whatever the budget; negative: by budget. Of equal values the higher page
            comes first.
        coverage: the fewest of the best pages that reach this coverage are enough; 0: no target.
        floor: with a lower mean coverage everything visible is taken.
        blend: weight of the priority against the estimated mass.
    """
    n = len(standing)
    visible = standing > -np.inf
    always = visible & ((standing == np.inf) | pinned)
    group = 1 if estimates is None else len(estimates)
    mass = np.zeros((group, n)) if estimates is None else page_mass(estimates, standing)
    value = priority.astype(np.float64) if estimates is None else (1 - blend) * mass.sum(axis=0) + blend * priority
    # best first: what is always taken, then by value, of equal ones the higher page
    order = np.lexsort((-np.arange(n), -value, ~always))
    order = order[visible[order]]
    ranked = np.where(always, np.inf, value)[order]

    if threshold >= 0:
        n_taken = int(np.count_nonzero(ranked >= threshold))
    else:
        n_taken = min(max(n_budget, int(always.sum())), len(order))
    if coverage > 0 and estimates is not None:
        reached = np.cumsum(mass.sum(axis=0)[order])
        enough = int(np.argmax(reached >= coverage * reached[-1])) + 1 if len(order) else 0
        enough = max(enough, int(np.count_nonzero(ranked >= ranked[enough - 1]))) if enough else 0  # equal values stay together
        n_taken = min(n_taken, max(enough, int(always.sum())))
    taken = order[:n_taken]

    def cover() -> np.ndarray:
        total = mass[:, visible].sum(axis=1)
        return np.where(total > 0, mass[:, taken].sum(axis=1) / np.where(total > 0, total, 1), 1.0)

    fell_back = bool(cover().mean() < floor)
    if fell_back:
        taken = order
    missed = mass.sum(axis=0)
    missed[taken] = 0
    return Selection(np.sort(taken), cover(), missed, fell_back)
