"""The figures in Prometheus' text format, for /metrics. Every name stands in the README beside this file.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgekv.live.figures import Figures
from edgekv.serving.shown import Shown, StoreFigures, tiers

Value = tuple[dict[str, str], float]
"""Labels and a number."""


@dataclass(frozen=True)
class Metric:
    name: str
    """As in the text; a counter's ends in _total."""
    kind: str
    """gauge or counter."""
    help: str
    read: Callable[[Shown], Iterable[Value]]


def _one(read: Callable[[Figures], float | None]) -> Callable[[Shown], Iterable[Value]]:
    """A number without labels; None: there is none now."""
    def values(shown: Shown) -> Iterable[Value]:
        value = None if shown.figures is None else read(shown.figures)
        return [] if value is None else [({}, value)]

    return values


def _of_store(read: Callable[[StoreFigures], float]) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [] if shown.store is None else [({}, read(shown.store))]


def _about(shown: Shown) -> Iterable[Value]:
    labels = {"model": shown.served.model, "mode": shown.mode.value, "version": shown.served.version}
    if shown.figures is not None:
        labels |= {"policy": shown.figures.options.placement.policy, "sketch": shown.figures.options.selection.sketch.value}
    yield labels, 1


def _tier_bytes(field: str) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [({"tier": tier["tier"]}, tier[field]) for tier in tiers(shown) if tier[field] is not None]


def _pages(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None:
        pages = shown.figures.tiers
        for state, n in (("arena", pages.n_resident), ("moving", pages.n_moving), ("home", pages.n_home), ("filling", pages.n_filling)):
            yield {"state": state}, n


def _hit_ratio(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None and shown.figures.tiers.n_slots:
        selection = shown.figures.selection
        if selection.n_read:
            yield {"by": "access"}, selection.hit_rate
        if selection.mass:
            yield {"by": "mass"}, selection.hit_rate_mass


def _slot_tokens(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None:
        for number, slot in enumerate(shown.figures.sequences):
            yield {"slot": f"{number}"}, slot.n_tokens


def _slot_context(shown: Shown) -> Iterable[Value]:
    for number in range(shown.served.n_slots):
        yield {"slot": f"{number}"}, shown.served.n_context


def _slot_pages(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None:
        for number, slot in enumerate(shown.figures.sequences):
            yield {"slot": f"{number}", "tier": "arena"}, slot.n_arena_pages
            yield {"slot": f"{number}", "tier": "home"}, slot.n_home_pages


METRICS = (
    Metric("edgekv_info", "gauge", "Always 1; its labels say model, KV mode, policy, sketch and version.", _about),
    Metric("edgekv_tier_bytes", "gauge", "Bytes allocated in each tier.", _tier_bytes("bytes")),
    Metric("edgekv_tier_used_bytes", "gauge", "Bytes of each tier that hold something.", _tier_bytes("used_bytes")),
    Metric("edgekv_pages", "gauge", "Pages by where they are; a page is one of a layer and KV head.", _pages),
    Metric("edgekv_arena_pages_max", "gauge", "Pages that the arena has room for.", _one(lambda figures: figures.tiers.n_slots)),
    Metric("edgekv_hit_ratio", "gauge", "What was read from the arena, of all that was read, since the start.", _hit_ratio),
    Metric("edgekv_read_ratio", "gauge", "Tokens read, of those visible, since the start.",
           _one(lambda figures: figures.selection.attended if figures.selection.n_selections else None)),
    Metric("edgekv_coverage_ratio", "gauge", "Estimated share of the attention that the tokens read hold, since the start; 1: all were read.",
           _one(lambda figures: figures.coverage)),
    Metric("edgekv_error_ratio", "gauge", "Estimated relative error of a head's output against full attention, since the start.",
           _one(lambda figures: figures.selection.error)),
    Metric("edgekv_selections_total", "counter", "Choices of what to read: one for each layer, KV head and token.",
           _one(lambda figures: figures.selection.n_selections)),
    Metric("edgekv_rows_visible_total", "counter", "Rows that these could see.", _one(lambda figures: figures.selection.n_visible)),
    Metric("edgekv_rows_read_total", "counter", "Rows that these read.", _one(lambda figures: figures.selection.n_read)),
    Metric("edgekv_rows_certain_total", "counter", "Rows that were read for certain; the others by chance.",
           _one(lambda figures: figures.selection.n_certain)),
    Metric("edgekv_rows_hit_total", "counter", "Rows that were read from the arena.", _one(lambda figures: figures.selection.n_hits)),
    Metric("edgekv_mass_read_total", "counter", "Attention mass on the rows that were read.", _one(lambda figures: figures.selection.mass)),
    Metric("edgekv_mass_hit_total", "counter", "Attention mass on the rows that were read from the arena.",
           _one(lambda figures: figures.selection.mass_hits)),
    Metric("edgekv_pages_promoted_total", "counter", "Pages that came into the arena.", _one(lambda figures: figures.tiers.n_promotions)),
    Metric("edgekv_pages_demoted_total", "counter", "Pages that left the arena for others.", _one(lambda figures: figures.tiers.n_demotions)),
    Metric("edgekv_pages_invalidated_total", "counter", "Pages that left the arena because their tokens changed.",
           _one(lambda figures: figures.tiers.n_invalidated)),
    Metric("edgekv_copies_failed_total", "counter", "Copies into the arena that failed, or whose page changed meanwhile.",
           _one(lambda figures: figures.tiers.n_failed)),
    Metric("edgekv_moved_bytes_total", "counter", "Bytes of the copies into the arena.", _one(lambda figures: figures.tiers.moved_bytes)),
    Metric("edgekv_stall_seconds_total", "counter", "Time that tokens waited for these copies.",
           _one(lambda figures: figures.stats.stall_seconds)),
    Metric("edgekv_policy_seconds_total", "counter", "Time for policy, plans and copies, stalls included.",
           _one(lambda figures: figures.stats.hierarchy_seconds)),
    Metric("edgekv_plans_total", "counter", "Plans of what should move.", _one(lambda figures: figures.stats.n_plans)),
    Metric("edgekv_tokens_total", "counter", "Tokens computed, of prompts and answers.", _one(lambda figures: figures.n_tokens)),
    Metric("edgekv_tokens_dropped_total", "counter", "Mode evict: tokens that were dropped for good.",
           _one(lambda figures: figures.tiers.n_freed)),
    Metric("edgekv_slot_tokens", "gauge", "Tokens of each slot in the KV cache.", _slot_tokens),
    Metric("edgekv_slot_context_tokens", "gauge", "Tokens that each slot has room for.", _slot_context),
    Metric("edgekv_slot_pages", "gauge", "Pages of each slot, in the arena and only at home.", _slot_pages),
    Metric("edgekv_worst_gap_seconds", "gauge", "The longest pause between two tokens of a running answer.",
           lambda shown: [] if shown.worst_gap is None else [({}, shown.worst_gap)]),
    Metric("edgekv_store_hits_total", "counter", "Prompts that began with tokens from the prefix store.", _of_store(lambda of: of.n_hits)),
    Metric("edgekv_store_misses_total", "counter", "Prompts that did not.", _of_store(lambda of: of.n_misses)),
    Metric("edgekv_store_tokens_total", "counter", "Prompt tokens that came from the prefix store and were not computed.",
           _of_store(lambda of: of.n_tokens_loaded)),
    Metric("edgekv_store_blocks", "gauge", "Blocks in the prefix store, in RAM and on disk.", _of_store(lambda of: of.n_blocks)),
)


def text(shown: Shown) -> str:
    """All of them; one without a value is left out."""
    lines = []
    for metric in METRICS:
        values = list(metric.read(shown))
        if values:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(labels)} {value:.17g}" for labels, value in values]
    return "\n".join([*lines, ""])


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
