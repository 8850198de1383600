"""Exponential moving average, in place."""

from __future__ import annotations

import math

import numpy as np

BLOCK = 1 << 16
"""Elements that are worked on at a time: they stay in the processor's cache between the passes."""


def weights(alpha: float, n_tokens: int) -> tuple[np.float32, np.float32]:
    """What `ema` multiplies mass and scores with, for a run of n_tokens tokens.

    scores = a * mass / n_tokens + (1 - a) * scores, with a = 1 - (1 - alpha) ^ n_tokens: for one token the usual EMA. A
    run of several tokens holds the sum of their masses: it counts as n_tokens runs of its mean, so that scores stay on the scale
    of one token's attention.
    """
    a = alpha if n_tokens == 1 else 1.0 - (1.0 - alpha) ** n_tokens
    return np.float32(a / n_tokens), np.float32(1.0 - a)


def ema(scores: np.ndarray, mass: np.ndarray, new: np.float32, old: np.float32, scratch: np.ndarray) -> None:
    """scores = new * mass + old * scores, each product and the sum rounded to float32. scores and mass are float32 [row, ...],
    scratch is flat float32 with at least `scratch_elements` and is overwritten."""
    step = _rows_of_block(scores.shape)
    for start in range(0, len(scores), step):
        part = scores[start : start + step]
        weighted = np.multiply(mass[start : start + step], new, out=scratch[: part.size].reshape(part.shape))
        part *= old
        part += weighted


def scratch_elements(shape: tuple[int, ...]) -> int:
    """What `ema` needs for arrays of this shape, or of a part of it."""
    return min(math.prod(shape), max(BLOCK, math.prod(shape[1:])))


def _rows_of_block(shape: tuple[int, ...]) -> int:
    return max(1, min(shape[0], BLOCK // max(1, math.prod(shape[1:]))))


def flush(scores: np.ndarray, least: float) -> None:
    """Scores below `least` become 0. What only decays ends in denormal numbers, which take a processor a hundred times longer."""
    np.copyto(scores, 0, where=scores < least)
