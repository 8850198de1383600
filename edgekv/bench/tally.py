"""Adds up a mode's decode steps, and compares its predictions with those of stock and of full attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from edgekv.bench.intervals import of_mean
from edgekv.common.reports import SelectionReport
from edgekv.tiering.stats import Stats

T = TypeVar("T", Stats, SelectionReport)


class Tally:
    """The sums of one mode's steps: each timed step's time and the counters of all; each compared step's likelihood and, for each
    reference, divergence and agreement on the top token."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.stats = Stats()
        self.selection = SelectionReport()
        self.nll: list[float] = []
        self.kld: dict[str, list[float]] = {}
        self.same_top: dict[str, list[bool]] = {}

    def time(self, seconds: Sequence[float], stats: Stats, selection: SelectionReport) -> None:
        """Add timed steps and their counters."""
        self.milliseconds += [1000 * value for value in seconds]
        self.stats = added(self.stats, stats)
        self.selection = added(self.selection, selection)

    def compare(
        self, references: Mapping[str, Sequence[np.ndarray]], logits: Sequence[np.ndarray], targets: Sequence[int]
    ) -> None:
        """Add steps: the logits of each reference and of this mode (all [n_vocab]), and the text's next token."""
        for i, (row, target) in enumerate(zip(logits, targets, strict=True)):
            log_q = log_softmax(row)
            self.nll.append(-float(log_q[target]))
            for name, rows in references.items():
                log_p = log_softmax(rows[i])
                self.kld.setdefault(name, []).append(divergence(log_p, log_q))
                self.same_top.setdefault(name, []).append(bool(np.argmax(log_p) == np.argmax(log_q)))

    def __add__(self, other: Tally) -> Tally:
        """The steps of both, in this order."""
        both = Tally()
        both.milliseconds = self.milliseconds + other.milliseconds
        both.stats, both.selection = added(self.stats, other.stats), added(self.selection, other.selection)
        both.nll = self.nll + other.nll
        both.kld = {name: values + other.kld[name] for name, values in self.kld.items()}
        both.same_top = {name: values + other.same_top[name] for name, values in self.same_top.items()}
        return both

    def distance(self, name: str, reference: Tally) -> dict[str, Any]:
        """Compare the predictions with `reference`, called `name`, with 95 % intervals (`edgekv.bench.intervals`):
        `ppl_vs_` is the relative difference of perplexity, `kld_p99_` the divergence that one position in a hundred exceeds."""
        kld, difference = self.kld[name], np.subtract(self.nll, reference.nll)
        low, high = of_mean(kld)
        nll_low, nll_high = of_mean(difference)
        return {
            f"kld_{name}": float(np.mean(kld)), f"kld_low_{name}": low, f"kld_high_{name}": high,
            f"kld_p99_{name}": float(np.percentile(kld, 99)), f"same_top_{name}": float(np.mean(self.same_top[name])),
            f"nll_minus_{name}": float(np.mean(difference)), f"nll_low_{name}": nll_low, f"nll_high_{name}": nll_high,
            f"ppl_vs_{name}": float(np.expm1(np.mean(difference))), f"ppl_low_{name}": float(np.expm1(nll_low)),
            f"ppl_high_{name}": float(np.expm1(nll_high)),
        }


def added(one: T, other: T, sign: int = 1) -> T:
    """The sum of two sets of counters; with sign -1 the difference."""
    return type(one)(*(getattr(one, count) + sign * getattr(other, count) for count in one.__struct_fields__))


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> float:
    """The Kullback-Leibler divergence of a prediction from the reference `log_p`, both [n_vocab] as of `log_softmax`."""
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The log-softmax in double precision: the divergence of two close distributions is a difference of nearly equal numbers."""
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
