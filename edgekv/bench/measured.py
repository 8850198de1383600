"""What one mode did over some decode steps, and how it compares with stock at the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np


class Measured:
    """A time for each timed step; likelihood, divergence from stock and agreement on the top token for each step."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.nll: list[float] = []
        self.kld: list[float] = []
        self.same_top: list[bool] = []

    def compare(self, stock: list[np.ndarray], logits: list[np.ndarray], targets: list[int]) -> None:
        """Add steps: stock's log probabilities, this mode's logits (both [n_vocab]) and the token that the text has next."""
        for log_p, row, target in zip(stock, logits, targets, strict=True):
            log_q = log_softmax(row)
            self.nll.append(-float(log_q[target]))
            self.kld.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
            self.same_top.append(bool(np.argmax(log_p) == np.argmax(log_q)))

    def figures(self, stock: Measured) -> dict[str, Any]:
        """The keys of a row; `stock` may be this one. Ratios are of times, stock's over this mode's: above 1 is faster."""
        figures: dict[str, Any] = {"nll": float(np.mean(self.nll))}
        if self.milliseconds:
            p10, p50, p90 = (float(value) for value in np.percentile(self.milliseconds, (10, 50, 90)))
            figures |= {
                "decode_ms_p10": p10, "decode_ms_p50": p50, "decode_ms_p90": p90,
                "ratio_vs_stock": float(np.median(stock.milliseconds)) / p50,
                "ratio_paired": float(np.median(np.array(stock.milliseconds) / self.milliseconds)),
            }
        if self is not stock:
            figures |= {"kld_mean": float(np.mean(self.kld)), "same_top": float(np.mean(self.same_top))}
        return figures


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In double precision: the divergence of two nearly equal distributions is a difference of nearly equal numbers."""
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
