"""The figures of a server at one moment, and the documents that show them."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, to_builtins

from edgekv import __version__
from edgekv.common.enums import KvMode
from edgekv.server.conversations import Conversation
from edgekv.server.figures import Figures, SequenceFigures
from edgekv.server.history import History, Point

DecodeSpeed = Callable[[KvMode, int], float]
"""Tokens a second in a mode behind a number of tokens, by this machine's plan."""


class Served(Struct, frozen=True):
    """Facts that do not change while a server lives."""

    model: str
    n_slots: int
    n_context: int
    """Tokens of a slot."""
    kv_bytes: int
    """Bytes of K and V in all slots, for a context without a Runtime."""
    has_chat_page: bool = False
    version: str = __version__


class Shown(Struct, frozen=True):
    """Figures of one moment."""

    served: Served
    figures: Figures | None = None
    """None: the context has no Runtime, because stock llama.cpp serves it, or no figures were requested yet."""
    busy: bool = False
    """Whether a ubatch was computed since the server last had nothing to do."""
    store: dict[str, int] | None = None
    """What `Prefixes.figures()` says."""
    traffic: dict[str, Any] | None = None
    """What `publisher.traffic()` says; None: not counted."""
    conversations: tuple[Conversation, ...] = ()
    """By slot."""
    seconds_saved: float = 0.0
    """Seconds that prompts did not take because tokens were found."""
    decode_speed: DecodeSpeed | None = None

    @property
    def mode(self) -> KvMode:
        return KvMode.OFF if self.figures is None else self.figures.options.mode


def props(shown: Shown) -> dict[str, Any]:
    """The `edgekv` object of /props."""
    served, figures = shown.served, shown.figures
    about = {"version": served.version, "page": "/edgekv", "mode": shown.mode.value, "mode_description": shown.mode.description,
             "n_ctx_slot": served.n_context}
    if figures is None:
        return about
    options = figures.options
    sparse = {"policy": options.placement.policy, "prefetch": options.placement.prefetch,
              "sample_budget": options.selection.sample_budget if options.selection.target_error is None else None,
              "target_error": options.selection.target_error}
    return {**about, "page_size": options.cache.page_size, "n_layers": figures.n_layers, "n_layers_served": figures.n_layers_served,
            **(sparse if shown.mode is KvMode.SPARSE else {}),
            **({"policy": options.placement.policy, "keep_tokens": options.keep_tokens,
                "sample_budget": options.selection.sample_budget if options.samples_kept else None} if shown.mode is KvMode.EVICT else {}),
            "coverage": figures.coverage, "tiers": tiers(shown), "store": shown.store}


def slots(shown: Shown) -> list[dict[str, Any]]:
    """The `edgekv` objects of /slots, by the slot's number."""
    if shown.figures is None:
        return []
    known = shown.conversations or (Conversation(),) * len(shown.figures.sequences)
    return [_slot(sequence, shown) | to_builtins(conversation) for sequence, conversation in zip(shown.figures.sequences, known, strict=True)]


def _slot(sequence: SequenceFigures, shown: Shown) -> dict[str, Any]:
    figures = shown.figures
    assert figures is not None
    n_pages = sequence.n_arena_pages + sequence.n_home_pages
    per_token = figures.memory.home_bytes / max(1, figures.memory.n_cells)
    return {"stream": sequence.stream, "n_tokens": sequence.n_tokens, "n_positions": sequence.n_positions, "n_ctx": shown.served.n_context,
            "n_tokens_read_sparsely": sequence.n_read_sparsely, "pages_arena": sequence.n_arena_pages, "pages_home": sequence.n_home_pages,
            "coverage": sequence.coverage, "arena_ratio": sequence.n_arena_pages / n_pages if n_pages else 0.0,
            "bytes_arena": sequence.n_arena_pages * figures.tiers.slot_bytes, "bytes_home": round(sequence.n_held * per_token)}


def tiers(shown: Shown) -> list[dict[str, Any]]:
    """The tiers, the fastest first: bytes allocated, and bytes in use (None: not counted)."""
    figures = shown.figures
    if figures is None:
        return [{"tier": "home", "bytes": shown.served.kv_bytes, "used_bytes": None}]
    memory, pages = figures.memory, figures.tiers
    found: list[tuple[str, int, int | None]] = []
    if memory.arena_bytes or pages.n_slots:
        found.append(("arena", memory.arena_bytes, (pages.n_resident + pages.n_moving) * pages.slot_bytes))
    found.append(("home", memory.home_bytes, memory.used_bytes))
    if memory.sketch_bytes:
        found.append(("sketches", memory.sketch_bytes, None))
    found.append(("tables", memory.table_bytes + memory.observation_bytes, None))
    found.append(("work", memory.workspace_bytes, None))
    if shown.store is not None:
        found += [(f"store_{place}", shown.store[f"{place}_limit_bytes"], shown.store[f"{place}_bytes"]) for place in ("ram", "disk")
                  if place == "ram" or shown.store["disk_limit_bytes"]]
    return [{"tier": name, "bytes": n_bytes, "used_bytes": used} for name, n_bytes, used in found]


def state(shown: Shown) -> dict[str, Any]:
    """The document /edgekv/state: all figures of the page except curves and maps."""
    served, figures = shown.served, shown.figures
    found: dict[str, Any] = {
        "model": served.model, "version": served.version, "mode": shown.mode.value, "busy": shown.busy,
        "n_slots": served.n_slots, "n_ctx_slot": served.n_context, "tiers": tiers(shown), "slots": slots(shown),
        "prompt_tokens": shown.traffic and {"asked": shown.traffic["prefixes"].queries, "found": sum(shown.traffic["prefixes"].hits.values()),
                                            "seconds_saved": round(shown.seconds_saved, 2)}, "plan": _plan(shown),
        "served": figures is not None}
    if figures is None:
        return found
    options, pages, selection = figures.options, figures.tiers, figures.selection
    settings = {"page size": f"{options.cache.page_size}"}
    if shown.mode is KvMode.SPARSE:
        sampled = dict([options.selection.sampled_by])
        settings = {**sampled, "policy": options.placement.policy, **settings}
    elif shown.mode is KvMode.EVICT:
        sampled = dict([options.selection.sampled_by]) if options.samples_kept else {}
        settings = {"kept": f"{options.keep_tokens:,} tokens", **sampled, "policy": options.placement.policy, **settings}
    return {
        **found, "taken": round(figures.taken, 3), "settings": settings, "n_layers": figures.n_layers,
        "n_layers_served": figures.n_layers_served, "n_heads": figures.n_heads,
        "pages": {"arena": pages.n_resident, "moving": pages.n_moving, "home": pages.n_home, "filling": pages.n_filling,
                  "arena_slots": pages.n_slots, "promoted": pages.n_promotions, "demoted": pages.n_demotions,
                  "dropped_tokens": pages.n_freed, "moved_bytes": pages.moved_bytes, "stall_seconds": round(figures.stats.stall_seconds, 6)},
        "reasons": [{"where": where, "why": why, "pages": n} for where, why, n in pages.reasons],
        "selection": {"rows_per_head": round(selection.rows_per_head, 1), "visible_per_head": round(selection.visible_per_head, 1),
                      "read": selection.attended, "hit_rate": selection.hit_rate if pages.n_slots else None, "error": selection.error,
                      "coverage": figures.coverage},
        "kept": [figures.memory.n_cells_used, sum(slot.n_positions for slot in figures.sequences)] if shown.mode is KvMode.EVICT else None}


def _plan(shown: Shown) -> dict[str, float] | None:
    """How many times as fast as stock llama.cpp the longest conversation is answered, by this machine's plan; None: it is unknown."""
    depth = max((one.n_positions for one in shown.figures.sequences), default=0) if shown.figures else 0
    if shown.decode_speed is None or not depth or shown.mode in (KvMode.OFF, KvMode.EVICT):
        return None
    return {"depth": depth, "times": round(shown.decode_speed(shown.mode, depth) / shown.decode_speed(KvMode.OFF, depth), 2)}


def history(past: History) -> dict[str, list[float | None]]:
    """The document /edgekv/history: a list for each field of a Point."""
    return {name: [_rounded(getattr(point, name)) for point in past.points] for name in Point.__struct_fields__}


def _rounded(value: float | None) -> float | None:
    """A value rounded for a curve."""
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1e9 else round(value, 1)
