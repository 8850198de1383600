"""The question whether sketches want a coarse level above them: what two levels would read, at the error of one. Studied in NumPy, over queries, keys and
values of a live context; the product has one level.

One level scans a code of every key. Two levels estimate the attention of each group of keys from a summary, visit a group by chance P, in proportion
to the estimate, scan codes in visited groups only, and read rows there by p / P: in all by their chance p, if P is not below it. Weighted by 1 / P the
normaliser stays unbiased as well. `squared_error` states what visiting groups costs.

    python -m edgekv.lab.questions.two_levels MODEL.gguf TOKENS LAYER,... TEXT... > rows.csv
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgekv.arrays.sample import EVEN_SHARE, GROUP_CELLS
from edgekv.config import SelectionOptions
from edgekv.errors import EdgeKVError
from edgekv.lab.heads.recorded import Head, record

STEPS = 16
"""Decoded tokens whose queries are studied."""

RESOLUTION = 2000
RESOLUTIONS = (2000, 2250, 2500, 3000, 4000)
PUSHES = (0.125, 0.25, 0.5, 1, 2, 4)
FLOORS = (0, 0.01, 0.03, 0.1)
SIZES = (32, 64, 128)
DESIGNS = ("truth", "mean", "deviation", "box", "loud", "before", "before and deviation")
"""Estimates of a group's attention: the truth; from each channel's mean; from mean and deviation, as if keys were normal; the same from the low and the
step that a sketch has anyway; the third, but LOUD keys by their codes; what the token before gave the group; the larger one of that and the third."""

LOUD = 4
"""The keys of a group that are farthest from its mean in the direction of the head's mean query."""

LEARNED = 4
"""The mean query is that of the first steps; later ones are studied."""

_SINKS, _RECENT = SelectionOptions.sink_tokens, SelectionOptions.recent_tokens
_RANGE_DEVIATIONS = 4.7
"""A range of 64 normal values in their deviations."""


class Setting(NamedTuple):
    """How two levels choose. P = min(1, max(push * resolution * the group's estimated share, floor))."""

    design: str
    size: int
    resolution: float
    push: float
    floor: float


class Cost(NamedTuple):
    """Of one token in one KV head, or means."""

    error: float
    """Squared error of the output relative to its square, mean of the query heads."""
    visited: float
    """The share of the cells whose codes are scanned."""
    scanned: float
    """Bytes of summaries and codes relative to one level's."""
    rows: float
    n_bytes: float
    """Scanned, and rows of K and V in f16."""


def coded(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys as codes of b3 give them back, float32 [cell, channel]; low and step, [group, channel]. keys: whole groups."""
    grouped = keys.reshape(-1, GROUP_CELLS, keys.shape[1])
    low, high = grouped.min(axis=1), grouped.max(axis=1)
    step = (high - low) / 7
    codes = np.rint((grouped - low[:, None]) / np.where(step > 0, step, 1)[:, None])
    return (low[:, None] + codes * step[:, None]).reshape(keys.shape), low, step


def code_bytes(head_dim: int) -> float:
    """Bytes of a cell's codes, and its part of the group's lows and steps (native/src/kernels/sketch/sketch_layout.cpp)."""
    return -(-head_dim // 32) * 12 + (16 + 2 * (-(-head_dim // 64) * 64)) / GROUP_CELLS


def summary_bytes(design: str, head_dim: int) -> int:
    """Bytes of a group's summary: 8 bits for each value, and scales. The token before left its shares; loud keys have a place and a code."""
    loud = LOUD * (1 + 3 * head_dim // 8) if design == "loud" else 0
    return {"truth": 0, "before": 4, "mean": head_dim + 4}.get(design, 2 * head_dim + 8 + loud)


def log_sum(x: np.ndarray) -> np.ndarray:
    """Logarithm of the sum of exponentials over the last axis."""
    top = x.max(axis=-1, keepdims=True)
    return np.squeeze(top, -1) + np.log(np.exp(x - top).sum(axis=-1))


def squared_error(cells: np.ndarray, groups: np.ndarray, p: np.ndarray, visits: np.ndarray) -> np.ndarray:
    """[head] the expected squared length of the error of a sum over y, which is read in two stages by independent chances: groups with `visits` [group],
    cells in them with min(1, p / visit). Two-stage sampling (Cochran, Sampling Techniques, 1977, chapter 11). With y = weight * (value - output) that is
    an output's squared error to first order; draws by walks come out a little lower.

    Args:
        cells: [head, cell] the squared length of each y.
        groups: [head, group] that of the sum of each group's."""
    within = np.minimum(1, p.reshape(len(visits), -1) / visits[:, None])
    spread = ((1 / within - 1) / visits[:, None]).reshape(-1)
    return groups @ (1 / visits - 1) + cells @ spread


class _Summaries:
    """Of all groups: [group, channel]."""

    def __init__(self, keys: np.ndarray, size: int, low: np.ndarray, step: np.ndarray, query: np.ndarray):
        n = len(keys) // size * size
        grouped = keys[:n].reshape(-1, size, keys.shape[1])
        self.size, self.mean, self.variance = size, grouped.mean(axis=1), grouped.var(axis=1)
        self.loud = np.argpartition(grouped @ query, -LOUD, axis=1)[:, -LOUD:]
        quiet = np.ones(grouped.shape[:2], bool)
        np.put_along_axis(quiet, self.loud, False, axis=1)
        rest = grouped[quiet].reshape(len(grouped), size - LOUD, -1)
        self.quiet_mean, self.quiet_variance = rest.mean(axis=1), rest.var(axis=1)
        self.middle, self.from_range = low + 3.5 * step, (7 * step / _RANGE_DEVIATIONS) ** 2

    def log_mass(self, design: str, q: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """[query head, group] of the first groups: the logarithm of the sum of exponentials. logits: by codes, [query head, group, cell]."""
        n = logits.shape[1]
        if design == "loud":
            quiet = np.log(self.size - LOUD) + q @ self.quiet_mean[:n].T + 0.5 * q**2 @ self.quiet_variance[:n].T
            places = np.broadcast_to(self.loud[:n], (len(q), n, LOUD))
            return np.logaddexp(quiet, log_sum(np.take_along_axis(logits, places, axis=2)))
        mean, variance = (self.middle, self.from_range) if design == "box" else (self.mean, self.variance)
        logs = np.log(self.size) + q @ mean[:n].T
        return logs if design == "mean" else logs + 0.5 * q**2 @ variance[:n].T


class _Step:
    """A token in a head: what it should attend, and what its codes say."""

    def __init__(self, head: Head, coded_keys: np.ndarray, t: int):
        self.n = head.n_before + t + 1
        self.head_dim = head.keys.shape[1]
        n_coded = self.n_coded = self.n // GROUP_CELLS * GROUP_CELLS
        self.q, self.before = head.queries[t], head.queries[t - 1]
        logits = self.q @ head.keys[: self.n].T
        self.weights = np.exp(logits - log_sum(logits)[:, None])
        self.values = head.values[: self.n]
        self.output = self.weights @ self.values
        self.length = (self.output**2).sum(axis=1)[:, None]
        apart = (self.values**2).sum(axis=1) - 2 * self.output @ self.values.T + self.length
        self.squares = self.weights**2 * np.maximum(apart, 0) / self.length
        self.sums: dict[int, np.ndarray] = {}
        self.known: dict[tuple[str, int], np.ndarray] = {}
        self.logits = np.concatenate([self.q @ coded_keys[:n_coded].T, logits[:, n_coded:]], axis=1)
        self.shares = np.exp(self.logits - log_sum(self.logits)[:, None]).mean(axis=0)
        earlier = np.concatenate([self.before @ coded_keys[:n_coded].T, self.before @ head.keys[n_coded : self.n].T], axis=1)
        self.earlier = np.exp(earlier - log_sum(earlier)[:, None]).mean(axis=0)
        cells = np.arange(self.n)
        self.certain = (cells < _SINKS) | (cells >= self.n - _RECENT) | (cells >= n_coded)

    def chances(self, resolution: float) -> np.ndarray:
        """[cell] of one level."""
        return np.where(self.certain, 1, np.maximum(np.minimum(1, resolution * self.shares), resolution * EVEN_SHARE / self.n))

    def one_level(self, resolution: float) -> Cost:
        p = self.chances(resolution)
        return self._cost(p, GROUP_CELLS, np.ones(self.n // GROUP_CELLS), p.sum(), 1, 0)

    def two_levels(self, setting: Setting, summaries: _Summaries) -> Cost:
        p, shares = self.chances(setting.resolution), self.group_shares(setting.design, summaries)
        certain = self.certain[: len(shares) * setting.size].reshape(-1, setting.size).any(axis=1)
        least = max(setting.floor, setting.resolution * EVEN_SHARE / self.n)
        visits = np.where(certain, 1, np.clip(setting.push * setting.resolution * shares, least, 1))
        by_cell = np.concatenate([visits.repeat(setting.size), np.ones(self.n - len(shares) * setting.size)])
        summary = summary_bytes(setting.design, self.head_dim) * len(shares) / (code_bytes(self.head_dim) * self.n)
        return self._cost(p, setting.size, visits, np.minimum(by_cell, p).sum(), by_cell.mean(), summary)

    def group_shares(self, design: str, summaries: _Summaries) -> np.ndarray:
        """[group] the estimated share of the attention, mean of the query heads. Cells behind the last whole group are scanned."""
        if (design, summaries.size) not in self.known:
            n = self.n_coded // summaries.size * summaries.size
            by_group = (-1, summaries.size)
            if design == "truth":
                shares = self.shares[:n].reshape(by_group).sum(axis=1)
            elif design == "before":
                shares = self.earlier[:n].reshape(by_group).sum(axis=1)
            elif design == "before and deviation":
                shares = np.maximum(self.group_shares("before", summaries), self.group_shares("deviation", summaries))
            else:
                certain = self.certain[:n].reshape(by_group).any(axis=1)
                logits = self.logits[:, :n].reshape(len(self.q), *by_group)
                logs = np.where(certain, log_sum(logits), summaries.log_mass(design, self.q, logits))
                total = log_sum(np.concatenate([logs, self.logits[:, n:]], axis=1))
                shares = np.exp(logs - total[:, None]).mean(axis=0)
            self.known[design, summaries.size] = shares
        return self.known[design, summaries.size]

    def group_squares(self, size: int) -> np.ndarray:
        """[query head, group] the squared length of the sum of a group's weight * (value - output), relative to the output's."""
        if size not in self.sums:
            n = self.n_coded // size * size
            weights = self.weights[:, :n].reshape(len(self.weights), -1, size).swapaxes(0, 1)
            sums = weights @ self.values[:n].reshape(-1, size, self.head_dim) - weights.sum(axis=2)[:, :, None] * self.output
            self.sums[size] = (sums**2).sum(axis=2).T / self.length
        return self.sums[size]

    def _cost(self, p: np.ndarray, size: int, visits: np.ndarray, rows: float, visited: float, summary: float) -> Cost:
        n = len(visits) * size
        error = squared_error(self.squares[:, :n], self.group_squares(size), p[:n], visits) + self.squares[:, n:] @ (1 / p[n:] - 1)
        codes = code_bytes(self.head_dim) * self.n
        return Cost(float(error.mean()), visited, visited + summary, rows, (visited + summary) * codes + rows * 4 * self.head_dim)


def _mean(costs: Sequence[Cost]) -> Cost:
    return Cost(*np.mean(costs, axis=0).tolist())


def study(head: Head, steps: Iterable[int], tried: Sequence[Setting]) -> tuple[dict[float, Cost], dict[Setting, Cost]]:
    """Mean costs of `steps`, each 1 or more: of one level by resolution, of two levels by setting."""
    n_whole = len(head.keys) // GROUP_CELLS * GROUP_CELLS
    keys, low, step = coded(head.keys[:n_whole])
    query = head.queries[:LEARNED].mean(axis=(0, 1))
    tables = {size: _Summaries(head.keys[:n_whole], size, low, step, query) for size in {setting.size for setting in tried}}
    seen = [_Step(head, keys, t) for t in steps]
    one = {c: _mean([step.one_level(c) for step in seen]) for c in {RESOLUTION, *(setting.resolution for setting in tried)}}
    return one, {setting: _mean([step.two_levels(setting, tables[setting.size]) for step in seen]) for setting in tried}


def settings(designs: Sequence[str] = DESIGNS, sizes: Sequence[int] = SIZES) -> list[Setting]:
    """All that are tried. What a sketch has anyway is of its own groups."""
    tried = [Setting(*values) for values in product(designs, sizes, RESOLUTIONS, PUSHES, FLOORS)]
    return [one for one in tried if one.design != "box" or one.size == GROUP_CELLS]


def compare(heads: Sequence[Head], steps: Sequence[int], tried: Sequence[Setting]) -> dict[Setting, dict[str, Any]]:
    """What each setting, the same for all heads, does beside one level at RESOLUTION: `error` and `worst_head`, the mean and the largest of the heads'
    ratios of squared errors; `visited` and `scanned`, means; `rows` and `bytes`, ratios of sums."""
    studied = [study(head, steps, tried) for head in heads]
    found = {}
    for setting in tried:
        two, one = [costs[setting] for _, costs in studied], [costs[RESOLUTION] for costs, _ in studied]
        ratios = [a.error / b.error for a, b in zip(two, one)]
        found[setting] = {"error": float(np.mean(ratios)), "worst_head": max(ratios), "visited": float(np.mean([cost.visited for cost in two])),
                          "scanned": float(np.mean([cost.scanned for cost in two])), "rows": sum(cost.rows for cost in two) / sum(cost.rows for cost in one),
                          "bytes": sum(cost.n_bytes for cost in two) / sum(cost.n_bytes for cost in one)}
    return found


def choose(found: dict[Setting, dict[str, Any]]) -> list[Setting]:
    """For each design and size the setting that reads the fewest bytes at no more than one level's error, if there is one."""
    best: dict[tuple[str, int], Setting] = {}
    for setting in sorted(found, key=lambda one: found[one]["bytes"]):
        if found[setting]["error"] <= 1:
            best.setdefault(setting[:2], setting)
    return list(best.values())


def main(model: str, n_before: str, layers: str, *texts: str) -> None:
    """Each text's own choices, and on each later one what was chosen on the first."""
    figures = ["error", "worst_head", "visited", "scanned", "rows", "bytes"]
    out = csv.DictWriter(sys.stdout, ["model", "tokens", "text", "chosen_on", *Setting._fields, *figures])
    out.writeheader()
    first: list[Setting] = []
    for text in map(Path, texts):
        heads = record(Path(model), text.read_text(encoding="utf-8", errors="replace"), int(n_before), [int(il) for il in layers.split(",")], STEPS)
        found = compare(heads, range(LEARNED, STEPS, 3), settings())
        own = choose(found)
        for chosen_on, setting in [*((text, one) for one in own), *((Path(texts[0]), one) for one in first)]:
            out.writerow({"model": Path(model).name, "tokens": n_before, "text": text.name, "chosen_on": chosen_on.name, **setting._asdict(),
                          **{name: round(found[setting][name], 3) for name in figures}})
        first = first or own


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (EdgeKVError, OSError) as error:
        sys.exit(str(error))
