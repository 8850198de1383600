"""Compares two results: rows of `edgekv bench` and of llama-bench, paired by measurement, with the ratio of their speeds and its
noise.

The noise of a ratio is propagated from the samples of both sides: var(ln ratio) = (s_a / m_a)^2 / n_a + (s_b / m_b)^2 / n_b, with means m,
sample standard deviations s and n samples (the repetitions, -r), and a 95 % interval from Student's t with the degrees of freedom of B. L.
Welch, "The generalization of Student's problem when several different population variances are involved", Biometrika 34 (1947). A
bootstrap of the usual three to five samples would be much too narrow. With one sample on a side the noise is unknown.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from statistics import fmean, stdev
from typing import Any

from msgspec import Struct, field

from edgekv.common.enums import STOCK_KERNELS
from edgekv.common.errors import ConfigError

Row = dict[str, Any]

LLAMA_BENCH = "llama-bench"
"""The mode of llama-bench's own rows; their flash attention setting follows it."""

SETTINGS = ("model", "test", "mode", "threads", "types")
"""Two rows with equal settings are a pair."""
_MORE = ("budget", "n_batch", "n_ubatch", "n_gpu_layers", "text", "fill", "peer")
"""Also compared if rows of one file differ in nothing else. An automatic budget follows the context, so two runs rarely have the same."""

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
      2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
"""97.5 % quantile of Student's t with 1, 2, ... degrees of freedom."""
_T_MANY = 1.960

_MACHINE = {"processor": ("cpu_info", "cpu"), "family": ("family",), "cores": ("cores",), "instruction set": ("isa",), "GPU": ("gpu", "gpu_info"),
            "driver": ("driver",), "link": ("link",), "EdgeKV": ("edgekv", "version"), "llama.cpp": ("llama_cpp", "build_commit"),
            "commit": ("commit",), "Python": ("python",)}
"""Facts of a machine, by the keys of a row."""


class Measured(Struct, frozen=True):
    """The speed of a test on one side, in tokens/s."""

    settings: dict[str, Any]
    """Values of SETTINGS and _MORE."""
    speed: float | None
    """The mean; None: not measured, and `note` says why."""
    deviation: float | None
    """Standard deviation of the samples; None: fewer than two samples."""
    n_samples: int
    note: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    """The row's known facts by the keys of _MACHINE."""


class Pair(Struct, frozen=True):
    a: Measured
    b: Measured

    @property
    def ratio(self) -> float | None:
        """Speed of B / speed of A; above 1 B is faster."""
        return self.b.speed / self.a.speed if self.a.speed and self.b.speed else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the ratio; None if a side has fewer than two samples."""
        ratio, sides = self.ratio, (self.a, self.b)
        if ratio is None or any(side.deviation is None for side in sides):
            return None
        variances = [((side.deviation or 0.0) / (side.speed or 1.0)) ** 2 / side.n_samples for side in sides]
        total = sum(variances)
        if total == 0.0:
            return ratio, ratio
        freedom = total ** 2 / sum(variance ** 2 / (side.n_samples - 1) for variance, side in zip(variances, sides))
        n = int(freedom)  # rounded down, so the interval is a little wider
        half = (_T[max(1, n) - 1] if n <= len(_T) else _T_MANY) * math.sqrt(total)
        return ratio * math.exp(-half), ratio * math.exp(half)

    @property
    def verdict(self) -> str:
        """The verdict on B, compared with A."""
        if self.ratio is None:
            return self.b.note or self.a.note or "not measured"
        if self.interval is None:
            return "noise unknown"
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "within noise"

    def row(self) -> Row:
        """The pair as a flat row, with None for unknown values."""
        low, high = self.interval or (None, None)
        a, b = self.a.settings, self.b.settings
        return {"in": "both", **{name: _both(a[name], b[name]) for name in a},
                "a_tokens_per_s": self.a.speed, "a_stddev": self.a.deviation, "a_n": self.a.n_samples,
                "b_tokens_per_s": self.b.speed, "b_stddev": self.b.deviation, "b_n": self.b.n_samples,
                "ratio": self.ratio, "ratio_low": low, "ratio_high": high, "verdict": self.verdict}


class Comparison(Struct, frozen=True):
    pairs: list[Pair]
    only_a: list[Measured]
    only_b: list[Measured]
    differences: list[tuple[str, str, str]]
    """(name, A's value, B's value): settings and machine facts in which the files differ as a whole."""
    keys: tuple[str, ...]
    """The settings that tell pairs apart."""

    def rows(self) -> list[Row]:
        """The pairs, then the rows of one side alone."""
        alone = [(name, side) for name, sides in (("A", self.only_a), ("B", self.only_b)) for side in sides]
        empty = dict.fromkeys(("a_tokens_per_s", "a_stddev", "a_n", "b_tokens_per_s", "b_stddev", "b_n", "ratio", "ratio_low", "ratio_high"))
        return [*(pair.row() for pair in self.pairs), *(
            {"in": name, **side.settings, **empty, f"{name.lower()}_tokens_per_s": side.speed, f"{name.lower()}_stddev": side.deviation,
             f"{name.lower()}_n": side.n_samples, "verdict": side.note or f"only in {name}"} for name, side in alone)]


def compare(a: Sequence[Row], b: Sequence[Row]) -> Comparison:
    """Pair the rows of A and B. A setting with one value in A and another in B is a difference and does not prevent pairs; neither does the
    mode if one side is all llama-bench. Repeated rows within a side count as one, with all samples. Raises ConfigError if no rows
    can be paired."""
    sides = [_measured(a, "A"), _measured(b, "B")]
    of = [{name: {_said(one.settings[name]) for one in side} for name in (*SETTINGS, *_MORE)} for side in sides]
    foreign = [all(mode.startswith(LLAMA_BENCH) for mode in values["mode"]) for values in of]
    apart = [name for name in SETTINGS if name == "test" or not (len(of[0][name]) == len(of[1][name]) == 1 and of[0][name] != of[1][name])]
    changed = [name for name in SETTINGS if name not in apart]
    if foreign[0] != foreign[1]:
        apart = [name for name in apart if name != "mode"]
    more = [name for name in _MORE if any(_tells_apart(name, side) for side in sides)]
    keys = (*apart, *(name for name in more if name != "budget" or foreign[0] == foreign[1]))
    left, right = (_by_key(side, keys) for side in sides)
    pairs = [Pair(one, other) for key, ones in left.items() for one in ones for other in right.get(key, ()) if _same_kernel(one, other)]
    if not pairs:
        raise ConfigError(f"the two have no rows in common: A has {_listed(sides[0])}; B has {_listed(sides[1])}; measure the same model, "
                          "tests, modes and threads")
    return Comparison(pairs, [one for key, ones in left.items() if key not in right for one in ones],
                      [one for key, ones in right.items() if key not in left for one in ones],
                      [*((name, next(iter(of[0][name])), next(iter(of[1][name]))) for name in changed), *_machines(*sides)], keys)


def _measured(rows: Iterable[Row], side: str) -> list[Measured]:
    found = [one for row in rows if (one := _one(row)) is not None]
    if not found:
        raise ConfigError(f"{side} has no rows of edgekv bench or of llama-bench; write them with -o json or -o jsonl")
    merged: dict[tuple, list[tuple[Measured, list[float]]]] = {}
    for pair in found:
        merged.setdefault(tuple(pair[0].settings.values()), []).append(pair)
    return [ones[0][0] if len(ones) == 1 else _together(ones) for ones in merged.values()]


def _one(row: Row) -> tuple[Measured, list[float]] | None:
    """The row's speed and its samples; None for another kind of row."""
    if not {"n_prompt", "n_gen", "avg_ts"} <= set(row):
        return None
    samples = [float(sample) for sample in row.get("samples_ts") or []]
    speed = row["avg_ts"] if row["avg_ts"] is not None else fmean(samples) if samples else None
    mode, test = row.get("kv_mode") or _foreign_mode(row), row.get("test") or _test(row)
    settings = {"model": PurePath(str(row.get("model_filename") or row.get("model"))).name, "test": test, "mode": mode,
                "threads": row.get("n_threads", row.get("threads")), "types": f"{row.get('type_k')}/{row.get('type_v')}",
                **{name: row.get(name) for name in _MORE}, "budget": row.get("kv_budget_mib")}
    known = {**row, **(row.get("environment") or {})}
    facts = {name: str(value) for name, keys in _MACHINE.items() if (value := next((known[key] for key in keys if known.get(key)), None)) is not None}
    deviation = stdev(samples) if len(samples) > 1 else None
    return Measured(settings, float(speed) if speed else None, deviation, len(samples), row.get("note"), facts), samples


def _foreign_mode(row: Row) -> str:
    """The mode of a llama-bench row. It gives flash attention as -1 (its own choice), 0 or 1; older versions as false or true."""
    return _FOREIGN.get(row.get("flash_attn", -1), LLAMA_BENCH)


_FOREIGN = {False: f"{LLAMA_BENCH}, no flash", True: f"{LLAMA_BENCH}, flash"}


def _same_kernel(one: Measured, other: Measured) -> bool:
    """Whether rows of stock and llama-bench pair: they must have the same kernel, unless flash attention was left to llama-bench."""
    said = {str(side.settings["mode"]) for side in (one, other)}
    stock, flash = said & set(STOCK_KERNELS), said & set(_FOREIGN.values())
    return not stock or not flash or flash == {_FOREIGN[stock == {STOCK_KERNELS[0]}]}


def _test(row: Row) -> str:
    parts = [f"{name}{row[key]}" for name, key in (("pp", "n_prompt"), ("tg", "n_gen")) if row[key]]
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row.get("n_depth") else "")


def _together(ones: Sequence[tuple[Measured, list[float]]]) -> Measured:
    """Merge rows of the same settings into one."""
    first = ones[0][0]
    measured = [(one, samples) for one, samples in ones if one.speed is not None]
    if not measured:
        return first
    samples = [sample for _, some in measured for sample in some]
    if all(some for _, some in measured):
        return Measured(first.settings, fmean(samples), stdev(samples) if len(samples) > 1 else None, len(samples), None, first.facts)
    return Measured(first.settings, fmean(one.speed or 0.0 for one, _ in measured), None, 0, None, first.facts)


def _tells_apart(name: str, side: Sequence[Measured]) -> bool:
    """Whether rows of a side have the same SETTINGS and another `name`."""
    seen: dict[tuple, Any] = {}
    return any(seen.setdefault(tuple(one.settings[key] for key in SETTINGS), one.settings[name]) != one.settings[name] for one in side)


def _by_key(side: Sequence[Measured], keys: Sequence[str]) -> dict[tuple, list[Measured]]:
    found: dict[tuple, list[Measured]] = {}
    for one in side:
        found.setdefault(tuple(_said(one.settings[name]) for name in keys), []).append(one)
    return found


def _machines(a: Sequence[Measured], b: Sequence[Measured]) -> list[tuple[str, str, str]]:
    """The facts in which the machines differ."""
    told = []
    for name in _MACHINE:
        of_a, of_b = (", ".join(dict.fromkeys(one.facts[name] for one in side if name in one.facts)) for side in (a, b))
        if of_a and of_b and of_a != of_b:
            told.append((name, of_a, of_b))
    return told


def _both(a: Any, b: Any) -> Any:
    """The common value, or "A -> B". A value that only one side has is not a difference."""
    return b if a is None else a if b is None or a == b else f"{_said(a)} -> {_said(b)}"


def _listed(side: Sequence[Measured]) -> str:
    one = side[0].settings
    others = f" and {len(side) - 1} more" if len(side) > 1 else ""
    return f"{one['model']} {one['test']}, {one['mode']}, threads {_said(one['threads'])}, {one['types']}{others}"


def _said(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
