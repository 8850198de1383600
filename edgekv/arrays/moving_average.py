"""Exponential moving average, in place."""

import math

import numpy as np

BLOCK = 1 << 16
"""Elements of one block, which stays in the processor's cache between the passes."""


def weights(alpha: float, n_tokens: int) -> tuple[np.float32, np.float32]:
    """`new` and `old` of `ema` for a run of n_tokens tokens, whose mass is the sum of theirs.

    scores = a * mass / n_tokens + (1 - a) * scores, with a = 1 - (1 - alpha) ^ n_tokens: for one token the usual EMA. A longer run counts as
    n_tokens runs of its mean, so that scores stay on the scale of one token's mass.
    """
    a = alpha if n_tokens == 1 else 1.0 - (1.0 - alpha) ** n_tokens
    return np.float32(a / n_tokens), np.float32(1.0 - a)


def ema(scores: np.ndarray, mass: np.ndarray, new: np.float32, old: np.float32, scratch: np.ndarray) -> None:
    """scores = new * mass + old * scores, each product and the sum rounded to float32. scores, mass: float32 of one shape; scratch: flat
    float32 of at least `scratch_elements`, overwritten."""
    step = _layers_of_block(scores.shape)
    for start in range(0, len(scores), step):
        part = scores[start : start + step]
        weighted = np.multiply(mass[start : start + step], new, out=scratch[: part.size].reshape(part.shape))
        part *= old
        part += weighted


def scratch_elements(shape: tuple[int, ...]) -> int:
    """Elements of scratch that `ema` needs for arrays of this shape, or of a part of it."""
    return min(math.prod(shape), max(BLOCK, math.prod(shape[1:])))


def _layers_of_block(shape: tuple[int, ...]) -> int:
    return max(1, min(shape[0], BLOCK // max(1, math.prod(shape[1:]))))


def flush(scores: np.ndarray, least: float) -> None:
    """Set scores below `least` to 0. Decaying scores would become denormal numbers, which take a processor a hundred times longer."""
    np.copyto(scores, 0, where=scores < least)
