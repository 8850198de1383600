"""The fields of a benchmark's row beyond llama-bench's. Each figure is a line here: its field, its formula, its column."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from edgekv.bench.modes import BenchMode
from edgekv.bench.taken import Taken
from edgekv.bench.tally import Tally
from edgekv.common.enums import KvMode
from edgekv.common.units import MIB, fixed, percent, signed_percent


class Found(Struct, frozen=True):
    """The measurements of one mode in one test, and the measurements to compare with."""

    mode: BenchMode
    taken: Taken
    n_threads: int
    n_heads: int
    """Query heads of the layers that EdgeKV serves."""
    stock: Taken | None = None
    """The faster of stock's kernels; None: neither was measured."""
    shallow: float | None = None
    """Seconds of a pass at the smallest depth."""
    limit: float | None = None
    """Seconds of a token with an empty cache."""
    references: Mapping[str, Tally] = field(default_factory=dict)
    """The references for predictions: `stock` and `exact`."""
    ram_mib: float | None = None
    vram_mib: float | None = None
    on_disk: bool = False
    """K and V lie in a file."""

    @property
    def is_prompt(self) -> bool:
        return not self.taken.test.n_gen

    def of_mode(self, name: str, measured: float | None) -> float | None:
        """The figure that the mode has by definition, otherwise the measured one."""
        return self.mode.figures.get(name, measured)

    def selected(self, name: str) -> float | None:
        """A figure of the selection; None if nothing was selected."""
        selection = self.taken.tally.selection
        return getattr(selection, name) if selection.n_selections else None

    def counted(self, name: str) -> float | None:
        """What a pass counted for a token (`edgekv.bench.process.COUNTED`), the median; None where this system does not count it."""
        return float(np.median(self.taken.counts[name])) if name in self.taken.counts else None

    def for_each_token(self, name: str) -> float | None:
        """A count of the hierarchy per token; None if EdgeKV did not run."""
        counted = self.taken.tally.stats
        known = self.taken.tally.milliseconds and counted.n_ubatches_hooked
        return getattr(counted, name) / max(1, counted.n_ubatches) if known else None

    def tokens_per_s(self, percentile: float) -> float | None:
        """The speed at this percentile of the tokens' times; None for a test with a prompt."""
        return 1000 / float(np.percentile(self.taken.tally.milliseconds, percentile)) if self.taken.test.decodes else None

    def compared(self, what: str, reference: str) -> float | None:
        """The mean of `kld` or `same_top` over all positions; None for the reference itself."""
        values = getattr(self.taken.tally, what).get(reference)
        return float(np.mean(values)) if values else None

    def less_likely(self, reference: str) -> float | None:
        """The relative difference of the mean negative log-likelihood from `reference`; above 0 the text is less likely."""
        there = self.references.get(reference)
        if there is None or there is self.taken.tally or not there.nll or not self.taken.tally.nll:
            return None
        return float(np.mean(self.taken.tally.nll)) / float(np.mean(there.nll)) - 1


def _limit_ratio(found: Found) -> float | None:
    """The time of a token or prompt over the time of the same work with an empty cache."""
    taken = found.taken
    if taken.test.decodes:
        return float(np.median(taken.tally.milliseconds)) / (1000 * found.limit) if found.limit else None
    if not found.is_prompt:
        return None
    return taken.typical / float(np.median(taken.empty)) if taken.empty else None if taken.test.depth else 1.0


def _attention(found: Found) -> float | None:
    """The prompt's extra seconds over an empty cache; None if it was not read into one."""
    return found.taken.typical - float(np.median(found.taken.empty)) if found.taken.empty else None


def _attention_share(found: Found) -> float | None:
    seconds = _attention(found)
    return None if seconds is None else seconds / found.taken.typical


def _pair_ns(found: Found) -> float | None:
    """The nanoseconds for each query, key and query head."""
    seconds, test = _attention(found), found.taken.test
    n_pairs = test.n_prompt * test.depth * found.n_heads
    return 1e9 * seconds * found.n_threads / n_pairs if seconds is not None and n_pairs else None


def _overhead(found: Found) -> float | None:
    seconds = found.for_each_token("python_seconds")
    return None if seconds is None else 1000 * seconds / float(np.mean(found.taken.tally.milliseconds))


def _coverage(found: Found) -> float | None:
    everything = None if found.mode.changes["mode"] is KvMode.SPARSE else 1.0
    return found.of_mode("coverage", found.selected("coverage") or everything)


def _arena(found: Found) -> float | None:
    return found.taken.bytes_kept.get("arena_bytes", 0) / MIB if found.mode.changes["mode"] is KvMode.SPARSE else None


def _sketches(found: Found) -> float | None:
    n_bytes = found.taken.bytes_kept.get("sketch_bytes")
    return None if n_bytes is None else n_bytes / MIB


class Figure(Struct, frozen=True):
    key: str
    of: Callable[[Found], Any]
    """Its formula; where it gives None the row has null."""
    title: str = ""
    """Title of its column; empty: it has none."""
    show: Callable[[Any], str] = partial(fixed, digits=2)
    only: frozenset[str] = frozenset()
    """When to show its column: "md" in Markdown, "kld" with --kld, "prompts" if all tests are prompts; empty: always."""


_kld = "{:.1e}".format
_WIDE, _PROMPTS, _WIDE_PROMPTS, _KLD = (frozenset(names.split()) for names in ("md", "prompts", "md prompts", "md kld"))

FIGURES = (
    Figure("ratio_vs_stock", lambda found: found.stock.typical / found.taken.typical if found.stock else None, "x stock"),
    Figure("best_stock", lambda found: found.taken is found.stock),
    Figure("limit_ratio", _limit_ratio, "x limit"),
    Figure("limit_ms", lambda found: 1000 * found.limit if found.limit and found.taken.test.decodes else None, "limit ms", only=_WIDE),
    Figure("growth", lambda found: found.taken.typical / found.shallow - 1 if found.shallow else None, "growth %", partial(percent, digits=0), _WIDE),
    Figure("ms_min", lambda found: 1000 * min(found.taken.seconds), "min ms", partial(fixed, digits=0), _PROMPTS),
    Figure("ms_max", lambda found: 1000 * max(found.taken.seconds), "max ms", partial(fixed, digits=0), _PROMPTS),
    Figure("attention_fraction", _attention_share, "attention %", partial(percent, digits=0), _WIDE_PROMPTS),
    Figure("pair_ns", _pair_ns, "ns/pair", only=_WIDE_PROMPTS),
    Figure("tg_ts_p50", lambda found: found.tokens_per_s(50)),
    Figure("tg_ts_p5", lambda found: found.tokens_per_s(95), "slowest 5 %", only=_WIDE),
    Figure("ttft_ms", lambda found: 1000 * float(np.median(found.taken.first)) if found.taken.first else None, "first ms", partial(fixed, digits=0)),
    Figure("rows_per_head", lambda found: found.selected("rows_per_head"), "rows", partial(fixed, digits=0)),
    Figure("attended_fraction", lambda found: found.of_mode("attended_fraction", found.selected("attended")), "read %", percent, _KLD),
    Figure("coverage", _coverage, "coverage %", percent, _KLD),
    Figure("error", lambda found: found.of_mode("error", found.selected("error")), "error %", partial(percent, digits=2), _KLD),
    Figure("hit_rate", lambda found: found.selected("hit_rate"), "hits %", percent, _KLD),
    Figure("hit_rate_mass", lambda found: found.selected("hit_rate_mass")),
    Figure("disk_pages", lambda found: found.counted("disk_pages") if found.on_disk else None, "disk pages", partial(fixed, digits=0)),
    Figure("bytes_moved", lambda found: found.for_each_token("moved_bytes")),
    Figure("stall_ms", lambda found: None if (s := found.for_each_token("stall_seconds")) is None else 1000 * s),
    Figure("overhead_fraction", _overhead, "overhead %", percent, _KLD),
    Figure("nll", lambda found: float(np.mean(found.taken.tally.nll)) if found.taken.tally.nll else None),
    Figure("nll_vs_stock", lambda found: found.less_likely("stock")),
    Figure("nll_vs_exact", lambda found: found.less_likely("exact"), "NLL +%", signed_percent, _KLD),
    Figure("kld", lambda found: found.compared("kld", "stock"), "KLD", _kld, _KLD),
    Figure("kld_exact", lambda found: found.compared("kld", "exact"), "KLD exact", _kld, _KLD),
    Figure("same_top", lambda found: found.compared("same_top", "stock")),
    Figure("same_top_exact", lambda found: found.compared("same_top", "exact"), "same top %", percent, _KLD),
    Figure("kv_budget_mib", _arena, "arena MiB", partial(fixed, digits=1)),
    Figure("sketch_mib", _sketches),
    Figure("ram_peak_mib", lambda found: found.ram_mib, "RAM MiB", partial(fixed, digits=0), _WIDE),
    Figure("vram_peak_mib", lambda found: found.vram_mib, "VRAM MiB", partial(fixed, digits=0), _WIDE),
)
