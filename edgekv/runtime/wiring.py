"""The hierarchy of one native context: its shape, its observations, and on a device its arena."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from edgekv._native import core, device_calls, native_arrays
from edgekv._native import paging as native
from edgekv._native.native_pages import NativePages
from edgekv.arrays.ops import Ops
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import DoesNotFit, TierError
from edgekv.common.reports import LayerReport, TierReport
from edgekv.config import EvictionOptions, KvOptions
from edgekv.pages.observation import Observation
from edgekv.pages.residency import State
from edgekv.pages.shape import PageShape
from edgekv.planning.device import ships
from edgekv.runtime import context, effective
from edgekv.runtime.native_evictor import NativeEvictor
from edgekv.tiering.device_arena import DeviceArena
from edgekv.tiering.planner import MoveLimits
from edgekv.tiering.prefetch import Rope
from edgekv.tiering.stats import Stats
from edgekv.tiering.step import Hierarchy, HierarchySettings
from edgekv.tiering.transport import NoSlots

BYTES_PER_RUN = 1 << 21
"""Bytes that one run of the policy may move, which takes a small share of the time between two runs; a known link rate may allow more."""

LINK_SHARE = 0.1
"""The share of the link's time that copies may take: tokens read their misses over the same link."""

ROWS_SHARE = 0.75
"""The share of a device's arena that keeps single rows in mode sparse, where not all pages fit: the rows that were read most lately. The policy's pages have
the rest. Replayed reads are hit as often as with rows alone, and fewer rows cross the link than for pages alone (lab/results/rows_on_device.csv)."""

DEVICE_MOVES = 16384
"""Most promotions in one plan for a device, whose arena fills while the prompt is read."""


def limits(mode: KvMode, on_device: bool) -> MoveLimits:
    """How many pages a plan moves. On a device any page may fill an empty slot, which would be useless otherwise. In mode exact each token reads
    every page, so that a page keeps its slot: a swap would cost the link's time and gain nothing."""
    if not on_device:
        return MoveLimits()
    return MoveLimits(max_moves=DEVICE_MOVES, swap=mode is not KvMode.EXACT, fill=True)


def bytes_per_run(link: float | None, seconds: float | None) -> int:
    """Bytes that one run of the policy may move. link: bytes per second; seconds: time between two runs; None: unknown."""
    return BYTES_PER_RUN if link is None or seconds is None else max(BYTES_PER_RUN, int(LINK_SHARE * link * seconds))


def budget_pages(options: KvOptions, n_visible: int, page_tokens: int, n_slots: float) -> int:
    """The pages of a head that the policy grants: in mode evict those that are kept, otherwise those with a slot. n_visible: the head's pages;
    n_slots: arena slots of a head, on average."""
    if options.mode is KvMode.EVICT:
        return options.keep_tokens // page_tokens
    return min(n_visible, round(n_slots))


def evicts(options: KvOptions) -> EvictionOptions | None:
    """The tokens that mode evict keeps; None in the other modes."""
    return options.eviction if options.mode is KvMode.EVICT else None


def _layer_bytes(handle: core.Handle, layers: list[LayerReport]) -> np.ndarray | None:
    """Bytes of a token's K and V in each of these layers; None: they are the same."""
    if len({(layer.n_head_kv, layer.head_dim, layer.type_k, layer.type_v) for layer in layers}) < 2:
        return None
    rows = [(native_arrays.rows(handle, layer.il, value=False), native_arrays.rows(handle, layer.il, value=True)) for layer in layers]
    return np.array([k.strides[1] + v.strides[1] for k, v in rows], np.float64)


def tiering(handle: core.Handle, options: KvOptions, stats: Stats, ops: Ops) -> Tiering:
    """A Tiering with the rates of the context's device."""
    plane = device_calls.plane(handle)
    rates = effective.rates(plane.kind, plane.index) if plane is not None and plane.kind is DeviceKind.CUDA else None
    return Tiering(handle, options, stats, ops, rates)


class Copies:
    """Finds the streams of a context that `llama_memory_seq_cp` copied whole since it was last asked, between sequences with cells of their own."""

    def __init__(self, handle: core.Handle, n_streams: int):
        self._handle = handle
        self._copied = [native_arrays.cells(handle, stream).copied for stream in range(n_streams)]

    def since_last(self) -> tuple[tuple[int, int], ...]:
        """`Observation.copies`. A copy of a copy is left out: it is not known which of the two came first."""
        sources = {}
        for stream, before in enumerate(self._copied):
            copied = native_arrays.cells(self._handle, stream).copied
            if copied != before:
                self._copied[stream] = copied
                sources[stream] = copied[1]
        return tuple((stream, source) for stream, source in sources.items() if source not in sources)


class Tiering:
    """The Hierarchy of an attached context, and the observations that it gets.

    ops: `operations` of the context. rates: measured rates of its device; None: unknown. Raises ConfigError and DoesNotFit.
    """

    def __init__(self, handle: core.Handle, options: KvOptions, stats: Stats, ops: Ops, rates: device_calls.Rates | None = None):
        self._handle = handle
        self._options = options
        self._link = None if rates is None else rates.link_gather
        self._intervals: deque[float] = deque(maxlen=8)
        self._last_run = 0.0
        view = native.page_arrays(handle)
        observed = native_arrays.run_so_far(handle)
        layers = [layer for layer in core.layers(handle) if layer.index >= 0]
        exists = np.zeros(view.shape[:2], bool)
        for layer in layers:
            exists[layer.index, : layer.n_head_kv] = True
        self.shape = PageShape(*view.shape, page_tokens=observed.page_tokens, pages_per_stream=observed.pages_per_stream, exists=exists)
        self.slot_bytes = view.slot_bytes
        self._ships = rates is None or ships(self.slot_bytes, rates)
        self._newest = view.newest
        self._dropped = view.dropped
        self._limits = core.limits(handle)
        self._plane = device_calls.plane(handle)
        rope = core.rope(handle)
        head_dim = layers[0].head_dim if layers else 0
        settings = HierarchySettings(
            page_bytes=max(1, self.slot_bytes), policy=options.placement.policy, prefetch=options.placement.prefetch,
            policy_settings={"sink_tokens": options.selection.sink_tokens, "recent_tokens": options.selection.recent_tokens},
            rope=Rope(head_dim, *rope) if rope and head_dim else None, limits=limits(options.mode, self._plane is not None),
            plan_every=context.runs_per_plan(options), bytes_per_run=BYTES_PER_RUN, by_stream=options.mode is KvMode.EVICT and self.shape.n_streams > 1)
        self._device_arena: DeviceArena | None = None
        if self._plane is not None:
            pages = NativePages(handle, self.shape, ops, self.slot_bytes)
            pages.resize(0)
            self._device_arena = DeviceArena(pages, ops)
        self._evictor = NativeEvictor(handle, self.shape, self._dropped, evicts(options), self._limits.n_kept if layers else 0,
                                      None if self._plane is not None else _layer_bytes(handle, layers))
        self.hierarchy = Hierarchy(self.shape, self._device_arena or NoSlots(), settings, ops=ops, stats=stats, evictor=self._evictor)
        self._copies = Copies(handle, self.shape.n_streams) if settings.by_stream else None
        self.resize(options)

    @property
    def on_device(self) -> bool:
        return self._plane is not None

    def resize(self, options: KvOptions) -> None:
        """Resize the arena to what these options ask for, as far as a device has room. Raises DoesNotFit."""
        self._use(options)
        if (plane := device_calls.plane(self._handle)) is None:
            n_slots = 0  # all pages are at home
        elif not self._ships:
            n_slots = 0  # the link is about as fast as the device's memory: copies gain nothing
        else:
            self._plane = plane  # another selection leaves another number of slots
            n_pages = self.shape.n_existing_heads * self.shape.n_pages
            kv_bytes = n_pages * self.slot_bytes
            budget = kv_bytes if options.placement.kv_budget is None else options.placement.kv_budget
            n_slots = self._beside_rows(options, min(n_pages, budget // max(1, self.slot_bytes), plane.n_slots_max), n_pages)
        try:
            self.hierarchy.resize(n_slots)
        except TierError as error:
            raise DoesNotFit(str(error)) from error

    def _beside_rows(self, options: KvOptions, n_slots: int, n_pages: int) -> int:
        """Leave a part of a device's arena to rows, where they pay. Returns the slots that pages have."""
        keeps = options.mode is KvMode.SPARSE and n_slots < n_pages
        of_rows = round(ROWS_SHARE * n_slots) if keeps else 0
        native.set_hot_rows(self._handle, of_rows * self.slot_bytes)
        return n_slots - of_rows

    def set_mode(self, options: KvOptions) -> None:
        """Change the mode from the next token on; pages stay where they are. On a device another mode has a Tiering of its own."""
        self._use(options)
        self.hierarchy.limits = limits(options.mode, self._plane is not None)

    def _use(self, options: KvOptions) -> None:
        self._options = options
        self._evictor.eviction = evicts(options)

    def observation(self, seen: native_arrays.RunSums) -> Observation:
        """A run, as the hierarchy sees it. If a device reads a prompt, this tells the arena and makes the next step plan."""
        if self._link is not None:
            self._measure()
        used = np.flatnonzero(self._newest >= 0)
        if self._device_arena is not None:
            # a shorter ubatch is the end of its prompt
            in_prompt = seen.n_tokens_hooked == 0 and seen.n_tokens >= self._limits.n_ubatch
            self._device_arena.in_prompt = in_prompt
            if in_prompt:
                self.hierarchy.plan_next()  # the prompt's next part brings the planned pages along
        n_observed = seen.n_tokens_observed
        return Observation(
            seen.mass_sum, seen.mass_max, n_observed or seen.n_tokens, n_observed > 0, seen.changed, self._newest,
            seen.newest, int(used[-1]) + 1 if len(used) else 0, self._budget_pages(len(used)),
            seen.n_tokens - n_observed if n_observed else 0, seen.n_tokens_prompt > 0, seen.streams if len(seen.streams) else None,
            () if self._copies is None else self._copies.since_last())

    def _budget_pages(self, n_visible: int) -> int:
        n_slots = self.hierarchy.table.n_slots / max(1, self.shape.n_existing_heads)
        return budget_pages(self._options, n_visible, self.shape.page_tokens, n_slots)

    def _measure(self) -> None:
        now = time.perf_counter()
        if self._last_run:
            self._intervals.append(now - self._last_run)
            self.hierarchy.pace(bytes_per_run(self._link, min(self._intervals)))  # the shortest: longer ones may contain pauses
        self._last_run = now

    def close(self) -> None:
        """Wait for the copies under way. Call it before the context is freed or tiered again."""
        self.hierarchy.close()

    # ---- reports ------------------------------------------------------------------------------------------------------------

    def tiers(self) -> TierReport:
        counts, stats = self.hierarchy.tiers(), self.hierarchy.stats
        return TierReport(
            n_resident=counts[State.RESIDENT], n_home=counts[State.HOME], n_filling=counts[State.FILLING], n_moving=counts[State.MOVING],
            n_free=counts[State.FREE], n_slots=self.hierarchy.table.n_slots, slot_bytes=self.slot_bytes, moved_bytes=stats.moved_bytes,
            n_promotions=stats.n_promoted, n_demotions=stats.n_demoted, n_invalidated=stats.n_invalidated, n_failed=stats.n_failed_copies,
            n_dropped=0 if self._dropped is None else int(np.count_nonzero(self._dropped)), n_freed=stats.n_freed,
            reasons=tuple((state.name.lower(), reason.description, n) for state, reason, n in self.hierarchy.why()))
