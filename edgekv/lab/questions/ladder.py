"""The ladder adds one idea for keeping pages at a time, on recorded attention.

The rungs up to RoPE prefetch, and their published hit rates, are those of the design's source; EdgeKV's additions follow. Every rung is
simulated on a trace of each text (`edgekv.lab.traces.sim`), once for each kind of observation, with the budget as hot tier. Under sampled
observation that is the arena of mode sparse; under honest observation, the pages that a policy attends when it decides alone. What it costs
a model to lose the others, mode evict shows (`edgekv lab quality --policy`).
A rung's gain is over its base, which is not always the previous rung: all kinds of prefetch are compared with the same rung without.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from edgekv import __version__, policies
from edgekv.bench.text import Text
from edgekv.common.enums import PAGE_TOKENS, Split
from edgekv.common.errors import ConfigError
from edgekv.common.machine import stamp
from edgekv.lab.traces.record import Recording, record
from edgekv.lab.traces.sim import Scenario, simulate
from edgekv.lab.traces.trace import Trace, TraceHeader
from edgekv.models import geometry

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]


class Rung(Struct, frozen=True):
    name: str
    scenario: Mapping[str, Any]
    """Changes to `BASE` besides budget and observation."""
    base: str | None
    """The rung against which its gain is measured."""
    published: float | None = None
    """Hit rate in the design's source, as a share."""


_PER_HEAD = {"policy": "ema+anchor"}

RUNGS = (
    Rung("lru", {"policy": "lru"}, None, 0.70),
    Rung("+ anchors", {"policy": "lru+anchor"}, "lru", 0.78),
    Rung("+ ema, shared", {"policy": "ema-any+anchor"}, "+ anchors", 0.85),
    Rung("+ per head", _PER_HEAD, "+ ema, shared", 0.91),
    Rung("+ prefetch rope", {**_PER_HEAD, "prefetch": "rope"}, "+ per head", 0.95),
    Rung("or previous", {**_PER_HEAD, "prefetch": "previous"}, "+ per head"),
    Rung("or random", {**_PER_HEAD, "prefetch": "random"}, "+ per head"),
    Rung("+ recent pins", {"policy": "ema+anchor+recent"}, "+ per head"),
    Rung("+ one pool", {"policy": "ema+anchor+recent", "split": "pooled"}, "+ recent pins"),
    Rung("streaming", {"policy": "streaming"}, None),
    Rung("oracle", {"policy": "oracle"}, None),
    Rung("oracle, one pool", {"policy": "oracle", "split": "pooled"}, "oracle"),
)
"""The first five rungs are the source's; the next two replace its last one; further rungs and their references follow. lru works
per head here. A rung divides the budget uniformly unless it says otherwise."""

BASE = Scenario(split=Split.UNIFORM)

LADDER_FILE = "ladder.json"
MEAN = "mean"
"""The text's name in rows of means over several texts."""

_SIMULATED = ("hit_rate", "hit_rate_mass", "worst_mass", "hot", "fetched")
FIGURES = (*_SIMULATED, "gain", "gain_mass")
"""The figures of a row. gain: hit_rate less the base's."""

_PREFILL_BYTE_SECONDS, _DECODE_BYTE_SECONDS, _SIMULATED_PAGE_SECONDS = 5e-11, 8e-11, 5e-8
"""Seconds of one core of a server's processor: the first two for each byte of weights and cache and each token, the last for each page
of each head and step."""


class LadderBench(Struct, frozen=True):
    """The request: every budget, observation and rung, on each text of a model, or without one on the files of `traces`."""

    model: Path | None
    texts: tuple[Text, ...] = ()
    traces: tuple[Path, ...] = ()
    depth: int = 7168
    n_steps: int = 1024
    budgets: tuple[float, ...] = (0.05, 0.10, 0.20, 0.25)
    observe: tuple[str, ...] = ("sampled", "honest")
    n_threads: int = 1
    rungs: tuple[Rung, ...] = RUNGS

    def estimated_seconds(self) -> float:
        """A rough estimate from sizes and the constants above. For a message, not for a decision."""
        n_texts, n_settings = len(self.traces or self.texts), len(self.budgets) * len(self.observe) * len(self.rungs)
        pages = (self.depth + self.n_steps) / PAGE_TOKENS
        if self.model is None:
            heads = max(Trace.open(path).header.shape.n_existing_heads for path in self.traces)
            return n_texts * n_settings * self.n_steps * heads * pages * _SIMULATED_PAGE_SECONDS
        model = geometry(self.model)
        weights, cache = self.model.stat().st_size, model.kv_bytes(self.depth + self.n_steps, "f16", "f16")
        recorded = self.depth * (weights + cache / 2) * _PREFILL_BYTE_SECONDS + 2 * self.n_steps * (weights + cache) * _DECODE_BYTE_SECONDS
        return n_texts * (recorded + n_settings * self.n_steps * sum(model.n_head_kv) * pages * _SIMULATED_PAGE_SECONDS)


def run(bench: LadderBench, traces: Mapping[str, Path], progress: Progress = lambda what, done, total: None) -> list[Row]:
    """The rows of every text, budget, observation and rung; with several texts also their means, as text MEAN. traces: by name of the
    text."""
    rows = [{**dict.fromkeys(FIGURES), **row} for name, path in traces.items() for row in _simulated(bench, name, path, progress)]
    return rows + _means(rows) if len(traces) > 1 else rows


def of_traces(paths: Sequence[Path], **options: Any) -> LadderBench:
    """The bench on recorded traces, with their depth and steps. Raises ConfigError if traces differ in depth or steps."""
    headers = [_header(path) for path in paths]
    if len({(header.depth, header.n_steps) for header in headers}) > 1:
        raise ConfigError("the traces have different depths or numbers of steps, and a mean over them says nothing; give them "
                          "one by one")
    return LadderBench(None, (), tuple(paths), headers[0].depth, headers[0].n_steps, **options)


def prepare(
    bench: LadderBench, folder: Path, progress: Progress = lambda what, done, total: None,
    warn: Callable[[str], None] = lambda text: None,
) -> dict[str, Path]:
    """The traces by name of their text: given ones, or recordings in `folder`, made unless one of the same model, text, depth and
    steps exists."""
    if bench.model is None:
        return _named(bench.traces)
    found = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; choose another folder") from None
    for text in bench.texts:
        path = folder / f"{Path(text.name).stem}-{bench.depth}.npz"
        recording = Recording(bench.model, text, bench.depth, bench.n_steps, n_threads=bench.n_threads)
        if not _is_of(path, recording):
            record(recording, path, lambda what, done, total, name=text.name: progress(f"{name}: {what}", done, total), warn)  # type: ignore[misc]  # a default
        found[text.name] = path
    return found


def _header(path: Path) -> TraceHeader:
    with Trace.open(path) as trace:
        return trace.header


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Traces by text, or by file if two have the same text."""
    texts = [_header(path).text for path in paths]
    return dict(zip(texts if len(set(texts)) == len(texts) else [str(path) for path in paths], paths))


def _is_of(path: Path, recording: Recording) -> bool:
    if not path.exists():
        return False
    header = _header(path)
    return (header.model, header.text, header.depth, header.n_steps, header.resolution) == \
        (recording.model.name, recording.text.name, recording.depth, recording.n_steps, recording.resolution)


def save(rows: Sequence[Row], folder: Path) -> Path:
    """Write the rows into `folder`. Raises ConfigError if that fails."""
    path = folder / LADDER_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
    return path


def _simulated(bench: LadderBench, text: str, path: Path, progress: Progress) -> Iterator[Row]:
    with Trace.open(path) as trace:
        trace.keep()
        common = {"kind": "ladder", "model": trace.header.model, "text": text, "depth": trace.header.depth,
                  "n_steps": trace.header.n_steps, "version": __version__, **stamp()}
        plans = [(budget, observe, rung) for budget in bench.budgets for observe in bench.observe for rung in bench.rungs
                 if observe == bench.observe[0] or not any(kind.clairvoyant for kind in policies.kinds(rung.scenario["policy"]))]
        done: dict[tuple[float, str, str | None], Row] = {}
        for i, (budget, observe, rung) in enumerate(plans):
            progress(f"{text}: {rung.name}, {observe}, at {100 * budget:g} %", i, len(plans))
            found = simulate(trace, BASE.with_(budget=budget, observe=observe, **rung.scenario)).row()
            row = {**common, "rung": rung.name, "base": rung.base, "published": rung.published, "budget": budget,
                   **{key: found[key] for key in ("policy", "split", "observe", "prefetch")},
                   **{key: found[key] for key in _SIMULATED}}
            done[budget, row["observe"], rung.name] = row
            if (base := done.get((budget, row["observe"], rung.base))) is not None:
                row |= {"gain": row["hit_rate"] - base["hit_rate"], "gain_mass": row["hit_rate_mass"] - base["hit_rate_mass"]}
            yield row


def _means(rows: Sequence[Row]) -> list[Row]:
    """Means over texts, for each budget, observation and rung; a figure that a text lacks is None."""
    groups: dict[tuple[float, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["budget"], row["observe"], row["rung"]), []).append(row)
    means = []
    for group in groups.values():
        figures = {key: None if any(row[key] is None for row in group) else float(np.mean([row[key] for row in group]))
                   for key in FIGURES}
        means.append({**group[0], **figures, "text": MEAN})
    return means
