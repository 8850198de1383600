"""Exponential moving average, in place."""

from __future__ import annotations

import numpy as np


def ema(scores: np.ndarray, mass: np.ndarray, alpha: float, n_tokens: int, scratch: np.ndarray) -> None:
    """scores = a * mass / n_tokens + (1 - a) * scores, with a = 1 - (1 - alpha) ^ n_tokens.

    For one token that is DESIGN section 1's EMA. A step of several tokens holds the sum of their masses: it counts as n_tokens steps of
    its mean, so that scores stay on the scale of one token's attention. All arrays float32 of one shape; scratch is overwritten.
    """
    a = alpha if n_tokens == 1 else 1.0 - (1.0 - alpha) ** n_tokens
    np.multiply(mass, np.float32(a / n_tokens), out=scratch)
    scores *= np.float32(1.0 - a)
    scores += scratch
