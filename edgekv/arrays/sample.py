"""Sampling: the K/V rows that one query token reads in one KV head, and their weights. native/src/kernels/select/sample.h is tested against
this reference.

A cell is read with probability `resolution` times its estimated share of the attention, at most 1; its weight is the inverse of that
probability. Over the offsets of its page's walk, the mean of a weighted sum over the rows read is the sum over all cells (Horvitz and Thompson,
1952). Attention is the ratio of two such sums, a consistent estimate.

A part of the resolution is spread evenly over the visible cells, as a floor under the probabilities: a cell whose share is underestimated is
read now and then, and no weight is above 1 / floor.
"""

import math
from dataclasses import dataclass

import numpy as np

GROUP_CELLS = 64
"""Cells of a group, whose estimates share a top (their maximum) and a sum."""

ONE = 1 << 20
"""Probability 1: probabilities are whole multiples of 2^-20, so that their sums are exact."""

WALK_CELLS = 16
"""Cells of a walk: those of the least page."""

TURN = 8378495
"""What a page's offset moves in a token, on a circle of 2^32: once round in 512.618 tokens. Because of that fraction, the golden ratio's, a
second round falls between the offsets of the first, and so on: no cell is passed over for ever, however small its probability is."""

EVEN_SHARE = 1 / 128
"""The part of the resolution that the floors of all visible cells add up to."""


@dataclass(frozen=True)
class SampledRows:
    rows: np.ndarray
    """int32 [n]: the cells read, ascending."""
    weights: np.ndarray
    """float32 [n]: 1 / the probability of each."""
    n_certain: int
    """The number of rows with probability 1."""
    missed: float
    """`resolution` times the estimated share of the attention on the cells that were not read."""


def shares_of(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result of an exact scan of logits, float [group, cell] in whole groups of cells, -inf where the token cannot see. Returns shares,
    uint16 [group, cell], the upper half of float32 exp(logit - top of its group of cells); tops (-inf: none seen) and sums, float32
    [group, n_groups]."""
    x = logits.reshape(len(logits), -1, GROUP_CELLS).astype(np.float64)
    tops = x.max(axis=2)
    exponentials = np.exp(x - np.where(np.isfinite(tops), tops, 0)[:, :, None])
    shares = (exponentials.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return shares.reshape(logits.shape), tops.astype(np.float32), exponentials.sum(axis=2).astype(np.float32)


def page_turn(layer: int, head: int, position: int) -> int:
    """What a token adds to the numbers of all pages of a KV head, in [0, 2^32): a hash of layer and head (Appleby's finaliser of MurmurHash3),
    and a TURN for each position. layer: index among the hooked layers; position: the token's own."""
    x = (layer * 0x85EBCA77 + head * 0xC2B2AE3D) & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (x ^ x >> 16) + position * TURN & 0xFFFFFFFF


def walk_offsets(turn: int, first: np.ndarray) -> np.ndarray:
    """int64 [page]: where the walk of each page begins, in [0, ONE): the page's own number and the token's turn. Numbers of neighbouring pages
    are multiples of the golden ratio, which spread evenly. They need no state and do not depend on the place of cells.

    Args:
        turn: `page_turn` of the token.
        first: [page] the position of the page's first cell, -1 if it is empty.
    """
    return ((np.asarray(first, np.int64) >> 4) * 0x9E3779B1 + turn & 0xFFFFFFFF) >> 12


def least_chance(resolution: float, n_visible: int) -> int:
    """The floor under the probabilities of visible cells, at least 1, in units of 1 / ONE."""
    return min(max(math.floor(resolution * EVEN_SHARE * ONE / max(n_visible, 1) + 0.5), 1), ONE)


def certain_cells(visible: np.ndarray, certain: np.ndarray, exact_tokens: int) -> np.ndarray:
    """bool [cell]: what a token reads in any case: the cells that are `certain`, and all that it sees if these are at most `exact_tokens`."""
    return visible if np.count_nonzero(visible) <= exact_tokens else certain


def by_share(shares: np.ndarray, tops: np.ndarray, sums: np.ndarray, visible: np.ndarray, certain: np.ndarray, resolution: float,
             sinks: np.ndarray | None = None) -> np.ndarray:
    """int64 [cell]: the probability of each cell without the floor, in units of 1 / ONE.

    Args:
        shares: uint16 [group, cell], tops and sums: float32 [group, n_groups], from `shares_of`; group: query heads.
        visible: bool [cell]; other cells have probability 0.
        certain: bool [cell]: visible cells with probability 1.
        sinks: float [group]: logits of the model's attention sinks, which take part of the attention and are never read.
    """
    group = len(shares)
    tops, sums = tops.astype(np.float64), sums.astype(np.float64)
    highest = tops.max(axis=1) if sinks is None else np.maximum(tops.max(axis=1), sinks)
    scale = np.exp(tops - np.where(np.isfinite(highest), highest, 0)[:, None])  # 0 if a group has no top
    total = np.where(tops > -np.inf, sums * scale, 0).sum(axis=1) + (0 if sinks is None else np.exp(sinks - highest))
    factors = resolution / group * np.divide(scale, total[:, None], out=np.zeros_like(scale), where=total[:, None] > 0)
    values = (shares.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    # a group of cells without a top has unwritten shares
    expected = np.where(factors.repeat(GROUP_CELLS, axis=1) > 0, values * factors.repeat(GROUP_CELLS, axis=1), 0).sum(axis=0)
    p = np.where(certain, ONE, np.rint(np.minimum(expected, 1) * ONE).astype(np.int64))
    return np.where(visible, p, 0)


def chances(of_share: np.ndarray, visible: np.ndarray, resolution: float) -> np.ndarray:
    """int64 [cell]: the probability of each cell, in units of 1 / ONE: `by_share`, but at least the floor."""
    return np.where(visible, np.maximum(of_share, least_chance(resolution, int(np.count_nonzero(visible)))), 0)


def walk(chances: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Systematic sampling, page by page: a cell is read where the running sum of its page's probabilities, begun at the page's offset, passes a
    whole number. A page has as many reads as probability, to within one; no state, no random numbers.

    Args:
        chances: int64 [cell], in whole pages.
        offsets: int64 [page], from `walk_offsets`.

    Returns int32 [n] the cells read, ascending, and float32 [n] their weights."""
    by_page = chances.reshape(-1, WALK_CELLS)
    sums = np.cumsum(by_page, axis=1) + offsets[:, None]
    rows = np.flatnonzero(sums // ONE != (sums - by_page) // ONE).astype(np.int32)
    return rows, (ONE / chances[rows]).astype(np.float32)


def sample(shares: np.ndarray, tops: np.ndarray, sums: np.ndarray, visible: np.ndarray, certain: np.ndarray, resolution: float,
           offsets: np.ndarray, sinks: np.ndarray | None = None) -> SampledRows:
    """The rows that one query token reads. Arguments as for `by_share` and `walk`."""
    of_share = by_share(shares, tops, sums, visible, certain, resolution, sinks)
    rows, weights = walk(chances(of_share, visible, resolution), offsets)
    return SampledRows(rows, weights, int(np.count_nonzero(weights == 1)), int(of_share.sum() - of_share[rows].sum()) / ONE)
