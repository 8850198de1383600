"""A page budget is divided over layers and heads: pages have scores, and the best are taken."""

import numpy as np

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.common.registry import Registry

SPLITS: Registry[Split] = Registry("budget split")
SPLITS.add("uniform", Split.UNIFORM, Split.UNIFORM.description, "StreamingLLM, H2O, SnapKV, Quest")
SPLITS.add("layer", Split.LAYER, Split.LAYER.description, "Ada-KV, arXiv:2407.11550")
SPLITS.add("pyramid", Split.PYRAMID, Split.PYRAMID.description, "PyramidKV, arXiv:2406.02069")
SPLITS.add("pooled", Split.POOLED, Split.POOLED.description, "EdgeKV")

LAYER_FLOOR = 0.2
"""The least that each head gets if a layer's heads share a budget, as a part of its even share: Ada-KV's safeguard."""

PYRAMID_STEEPNESS = 20
"""PyramidKV's beta: the last layer has 1 / beta of the mean budget."""


def layer_weights(split: Split, n_rows: int) -> np.ndarray:
    """float64 [row], 1 on average: a layer's budget for each head, in units of the mean one. Pyramid (section 3.2 of its source): from
    2 - 1/beta in the first layer falling evenly to 1/beta in the last."""
    if split is not Split.PYRAMID or n_rows < 2:
        return np.ones(n_rows)
    last = 1 / PYRAMID_STEEPNESS
    return np.linspace(2 - last, last, n_rows)


def divide(split: Split, scores: np.ndarray, always: np.ndarray | np.bool_, visible: np.ndarray | np.bool_, n_budget: float,
           exists: np.ndarray | None = None) -> np.ndarray:
    """bool [layer, head, page]: the pages taken, n_budget for each head on average, or all where fewer are visible.

    Args:
        scores: float [layer, head, page], higher = keep.
        always: bool, broadcasts. These are taken first where they are visible. They count, and may exceed the budget.
        visible: bool, broadcasts. Only these are taken.
        exists: bool [layer, head]; None: every layer has every head.

    Of equal scores the higher page is taken, as native selection does.
    """
    if n_budget < 0:
        raise ConfigError(f"the page budget is {n_budget}; it must not be negative")
    n_rows, n_heads, n_pages = scores.shape
    visible = np.broadcast_to(visible, scores.shape)
    if exists is not None:
        visible = visible & exists[:, :, None]
    values = np.where(visible, np.where(always, np.inf, scores), -np.inf)
    n_in_row = np.full(n_rows, n_heads) if exists is None else exists.sum(axis=1)
    a_head = np.minimum(n_budget * layer_weights(split, n_rows), n_pages)  # a budget may be infinite
    if split in (Split.UNIFORM, Split.PYRAMID):
        counts = np.rint(np.repeat(a_head, n_heads)).astype(np.int64)
        return _best(values.reshape(-1, n_pages), counts).reshape(values.shape)
    if split is Split.LAYER:
        least = np.full(n_rows * n_heads, round(LAYER_FLOOR * min(n_budget, n_pages)))
        values[_best(values.reshape(-1, n_pages), least).reshape(values.shape)] = np.inf
        counts = np.rint(a_head * n_in_row).astype(np.int64)
        return _best(values.reshape(n_rows, -1), counts).reshape(values.shape)
    return _best(values.reshape(1, -1), np.array([round(min(n_budget, n_pages) * n_in_row.sum())])).reshape(values.shape)


def _best(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """bool [group, n]: the counts[group] largest values of each group. Infinite values are always taken, minus infinity never; of equal
    values the later ones are taken."""
    n = values.shape[1]
    always = values == np.inf
    counts = np.minimum(np.maximum(counts, always.sum(axis=1)), (values > -np.inf).sum(axis=1))
    if n == 0 or not counts.any():
        return np.zeros(values.shape, bool)
    if len(np.unique(counts)) == 1:
        at = n - int(counts[0])
        least = np.partition(values, at, axis=1)[:, at] if at < n else np.full(len(values), np.inf)
    else:
        ranked = np.sort(values, axis=1)
        least = np.where(counts > 0, np.take_along_axis(ranked, np.minimum(n - counts, n - 1)[:, None], axis=1)[:, 0], np.inf)
    above = values > least[:, None]
    tied = values == least[:, None]
    left = np.where(counts > 0, counts - above.sum(axis=1), 0)
    crowded = tied.sum(axis=1) > left
    if crowded.any():
        later = np.cumsum(tied[crowded, ::-1], axis=1)[:, ::-1]
        tied[crowded] &= later <= left[crowded, None]
    return above | tied
