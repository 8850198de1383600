"""The figures in Prometheus' text format, for /metrics. The README beside this file lists every name.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Callable, Iterable
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from edgekv._native.http_server import PrefixCounts, Waits
from edgekv.server.figures import Figures, SequenceFigures
from edgekv.server.shown import Shown, tiers

Value = tuple[dict[str, str], "float | Waits"]
"""Labels and a number, or all numbers of a histogram."""


class Metric(Struct, frozen=True):
    name: str
    """The name in the text; a counter's ends in _total."""
    kind: str
    """gauge, counter or histogram."""
    help: str
    read: Callable[[Shown], Iterable[Value]]


def _one(read: Callable[[Figures], float | None]) -> Callable[[Shown], Iterable[Value]]:
    """A reader of one number without labels; None: there is no number now."""
    def values(shown: Shown) -> Iterable[Value]:
        value = None if shown.figures is None else read(shown.figures)
        return [] if value is None else [({}, value)]

    return values


def _of_store(field: str) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [] if shown.store is None else [({}, shown.store[field])]


def _of_traffic(field: str) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [] if shown.traffic is None else [({}, shown.traffic[field])]


def _by_label(label: str, read: Callable[[PrefixCounts], dict[str, int]]) -> Callable[[Shown], Iterable[Value]]:
    """A reader of PrefixCounts, one number for each value of a label."""
    return lambda shown: [] if shown.traffic is None else [({label: name}, n) for name, n in read(shown.traffic["prefixes"]).items()]


def _by_place(label: str = "place", **fields: str) -> Callable[[Shown], Iterable[Value]]:
    """A reader of fields of `Shown.store`, labelled by the place that they count."""
    return lambda shown: [] if shown.store is None else [({label: place}, shown.store[name]) for place, name in fields.items()]


def _about(shown: Shown) -> Iterable[Value]:
    labels = {"model": shown.served.model, "mode": shown.mode.value, "version": shown.served.version}
    if shown.figures is not None:
        labels |= {"policy": shown.figures.options.placement.policy}
    yield labels, 1


def _tier_bytes(field: str) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [({"tier": tier["tier"]}, tier[field]) for tier in tiers(shown) if tier[field] is not None]


def _pages(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None and (pages := shown.figures.tiers).slot_bytes:
        for state, n in (("arena", pages.n_resident), ("moving", pages.n_moving), ("home", pages.n_home), ("filling", pages.n_filling)):
            yield {"state": state}, n


def _hit_ratio(shown: Shown) -> Iterable[Value]:
    if shown.figures is not None and shown.figures.tiers.n_slots:
        selection = shown.figures.selection
        if selection.n_read:
            yield {"by": "access"}, selection.hit_rate
        if selection.mass:
            yield {"by": "mass"}, selection.hit_rate_mass


def _by_slot(read: Callable[[SequenceFigures], Iterable[Value]]) -> Callable[[Shown], Iterable[Value]]:
    return lambda shown: [({"slot": f"{number}"} | labels, value) for number, slot in enumerate(shown.figures.sequences if shown.figures else ())
                          for labels, value in read(slot)]


METRICS = (
    Metric("edgekv_info", "gauge", "Always 1; its labels say model, KV mode, policy, sketch and version.", _about),
    Metric("edgekv_tier_bytes", "gauge", "Bytes allocated in each tier.", _tier_bytes("bytes")),
    Metric("edgekv_tier_used_bytes", "gauge", "Bytes of each tier that hold something.", _tier_bytes("used_bytes")),
    Metric("edgekv_pages", "gauge", "Pages by where they are; a page is one of a layer and KV head.", _pages),
    Metric("edgekv_pool_frames", "gauge", "Frames of the page pool: pages that it has room for.", _one(lambda figures: figures.tiers.n_slots)),
    Metric("edgekv_hit_ratio", "gauge", "Rows read from the arena over all rows read, since the start.", _hit_ratio),
    Metric("edgekv_attended_ratio", "gauge", "Tokens attended over tokens visible, since the start.",
           _one(lambda figures: figures.selection.attended if figures.selection.n_selections else None)),
    Metric("edgekv_coverage_ratio", "gauge", "Estimated share of the attention that the tokens read hold, since the start; 1: all were read.",
           _one(lambda figures: figures.coverage)),
    Metric("edgekv_error_ratio", "gauge", "Estimated relative error of a head's output against full attention, since the start.",
           _one(lambda figures: figures.selection.error)),
    Metric("edgekv_selections_total", "counter", "Selections of tokens: one for each layer, KV head and token computed.",
           _one(lambda figures: figures.selection.n_selections)),
    Metric("edgekv_tokens_visible_total", "counter", "Tokens visible to the selections.", _one(lambda figures: figures.selection.n_visible)),
    Metric("edgekv_tokens_attended_total", "counter", "Tokens that the selections attended.", _one(lambda figures: figures.selection.n_read)),
    Metric("edgekv_tokens_always_attended_total", "counter", "Tokens that were attended in any case; the others were sampled.",
           _one(lambda figures: figures.selection.n_certain)),
    Metric("edgekv_tokens_hit_total", "counter", "Attended tokens that lay in the page pool.", _one(lambda figures: figures.selection.n_hits)),
    Metric("edgekv_mass_read_total", "counter", "Attention mass on the rows that were read.", _one(lambda figures: figures.selection.mass)),
    Metric("edgekv_mass_hit_total", "counter", "Attention mass on the rows that were read from the arena.",
           _one(lambda figures: figures.selection.mass_hits)),
    Metric("edgekv_pages_promoted_total", "counter", "Pages that came into the arena.", _one(lambda figures: figures.tiers.n_promotions)),
    Metric("edgekv_pages_demoted_total", "counter", "Pages that left the arena for others.", _one(lambda figures: figures.tiers.n_demotions)),
    Metric("edgekv_pages_invalidated_total", "counter", "Pages that left the arena because their tokens changed.",
           _one(lambda figures: figures.tiers.n_invalidated)),
    Metric("edgekv_copies_failed_total", "counter", "Copies into the arena that failed, or whose page changed during the copy.",
           _one(lambda figures: figures.tiers.n_failed)),
    Metric("edgekv_moved_bytes_total", "counter", "Bytes of the copies into the arena.", _one(lambda figures: figures.tiers.moved_bytes)),
    Metric("edgekv_stall_seconds_total", "counter", "Time that tokens waited for these copies.",
           _one(lambda figures: figures.stats.stall_seconds)),
    Metric("edgekv_policy_seconds_total", "counter", "Time for policy, plans and copies, stalls included.",
           _one(lambda figures: figures.stats.hierarchy_seconds)),
    Metric("edgekv_plans_total", "counter", "Migration plans.", _one(lambda figures: figures.stats.n_plans)),
    Metric("edgekv_tokens_total", "counter", "Tokens computed, of prompts and answers.", _one(lambda figures: figures.n_tokens)),
    Metric("edgekv_tokens_dropped_total", "counter", "Mode evict: tokens that were dropped for good.",
           _one(lambda figures: figures.tiers.n_freed)),
    Metric("edgekv_slot_tokens", "gauge", "Tokens of each slot in the KV cache.", _by_slot(lambda slot: [({}, slot.n_tokens)])),
    Metric("edgekv_slot_context_tokens", "gauge", "Tokens that each slot has room for.",
           lambda shown: [({"slot": f"{number}"}, shown.served.n_context) for number in range(shown.served.n_slots)]),
    Metric("edgekv_slot_pages", "gauge", "Pages of each slot, in the arena and only at home.",
           _by_slot(lambda slot: [({"tier": "arena"}, slot.n_arena_pages), ({"tier": "home"}, slot.n_home_pages)])),
    Metric("edgekv_worst_gap_seconds", "gauge", "The longest pause between two tokens of a running answer.", _of_traffic("worst_gap")),
    Metric("edgekv_requests_running", "gauge", "Slots at work when the newest batch began.", _of_traffic("n_running")),
    Metric("edgekv_requests_waiting", "gauge", "Requests that have no slot.", _of_traffic("n_waiting")),
    Metric("edgekv_requests_refused_total", "counter", "Requests that found no place to wait.", _of_traffic("n_refused")),
    Metric("edgekv_queue_time_seconds", "histogram", "How long requests waited for a slot.", _of_traffic("queue")),
    Metric("edgekv_time_to_first_token_seconds", "histogram", "From a request to the first token of its answer.", _of_traffic("first_token")),
    Metric("edgekv_inter_token_latency_seconds", "histogram", "Between two tokens of an answer.", _of_traffic("gaps")),
    Metric("edgekv_prefix_cache_queries_total", "counter", "Prompt tokens that the prefix cache was asked for: all but each prompt's last.",
           lambda shown: [] if shown.traffic is None else [({}, shown.traffic["prefixes"].queries)]),
    Metric("edgekv_prefix_cache_hits_total", "counter", "Prompt tokens that were found and not computed, by tier.",
           _by_label("tier", lambda prefixes: prefixes.hits)),
    Metric("edgekv_prefix_cache_misses_total", "counter", "Prompt tokens that were not found, by reason.",
           _by_label("reason", lambda prefixes: {reason.value: n for reason, n in prefixes.misses.items()})),
    Metric("edgekv_store_tokens_total", "counter", "Prompt tokens that came from the prefix cache and were not computed.",
           _of_store("n_tokens_loaded")),
    Metric("edgekv_store_blocks", "gauge", "Blocks in the prefix cache, in RAM and on disk.", _of_store("n_blocks")),
    Metric("edgekv_store_waiting_writes", "gauge", "Blocks that wait to be written below RAM.", _of_store("n_waiting_writes")),
    Metric("edgekv_store_dropped_total", "counter", "Blocks that RAM had no room for before they were written.", _of_store("n_dropped")),
    Metric("edgekv_store_evicted_total", "counter", "Blocks that made room for others.", _by_place(ram="ram_evicted", disk="disk_evicted")),
    Metric("edgekv_store_refused_total", "counter", "Blocks that were damaged, truncated or foreign, and not used.",
           _by_place(disk="disk_refused", remote="remote_refused")),
    Metric("edgekv_tier_errors_total", "counter", "Times that a place could not be used: full, read-only, gone, unreachable, slow.",
           _by_place("tier", disk="disk_outages", remote="remote_outages")),
)

RENAMED = {
    "edgekv_arena_pages_max": "edgekv_pool_frames",
    "edgekv_read_ratio": "edgekv_attended_ratio",
    "edgekv_rows_visible_total": "edgekv_tokens_visible_total",
    "edgekv_rows_read_total": "edgekv_tokens_attended_total",
    "edgekv_rows_certain_total": "edgekv_tokens_always_attended_total",
    "edgekv_rows_hit_total": "edgekv_tokens_hit_total",
    "edgekv_token_gap_seconds": "edgekv_inter_token_latency_seconds",
}
"""Names of before, which stand beside the new ones until the next release."""

_OF_BEFORE = (
    *(replace(metric, name=old, help=f"Now called {metric.name}.") for old, new in RENAMED.items() for metric in METRICS if metric.name == new),
    Metric("edgekv_store_outages_total", "counter", "Now called edgekv_tier_errors_total.", _by_place(disk="disk_outages", remote="remote_outages")),
)

_IN_VLLM = {
    "num_requests_running": "requests_running", "num_requests_waiting": "requests_waiting", "request_queue_time_seconds": "queue_time_seconds",
    "time_to_first_token_seconds": "time_to_first_token_seconds", "inter_token_latency_seconds": "inter_token_latency_seconds",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
}

VLLM = tuple(
    replace(metric, name=f"vllm:{theirs}", help=f"As {metric.name}.",
            read=lambda shown, read=metric.read: [({"model_name": shown.served.model}, value) for _, value in read(shown)])
    for theirs, ours in _IN_VLLM.items() for metric in METRICS if metric.name == f"edgekv_{ours}")
"""The same figures under vLLM's names and with its label, so that readers of its metrics can read ours."""


def text(shown: Shown) -> str:
    """All figures that have a value."""
    lines = []
    for metric in (*METRICS, *VLLM, *_OF_BEFORE):
        values = list(metric.read(shown))
        if values:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            for labels, value in values:
                lines += _histogram(metric.name, labels, value) if isinstance(value, Waits) else [_sample(metric.name, labels, value)]
    return "\n".join([*lines, ""])


def _histogram(name: str, labels: dict[str, str], waits: Waits) -> list[str]:
    """Each bucket counts all waits up to its bound."""
    bounds = [*(f"{bound:g}" for bound in waits.bounds), "+Inf"]
    buckets = [_sample(f"{name}_bucket", labels | {"le": bound}, n) for bound, n in zip(bounds, accumulate(waits.counts), strict=True)]
    return [*buckets, _sample(f"{name}_sum", labels, waits.sum_s), _sample(f"{name}_count", labels, sum(waits.counts))]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    said = ",".join(f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items())
    return f"{name}{f'{{{said}}}' if labels else ''} {value:.17g}"


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
