"""The hierarchy of one native context: its shape, its arena, and what a step looks like from there."""

from __future__ import annotations

import numpy as np

from edgekv._native import core, hierarchy as native
from edgekv.config import KvOptions
from edgekv.errors import DoesNotFit, TierError
from edgekv.fit import arena_bytes
from edgekv.hierarchy import Hierarchy
from edgekv.observation import Observation, Shape
from edgekv.policies import Settings
from edgekv.prefetch import Rope
from edgekv.reports import SelectionReport, TierReport
from edgekv.residency import State
from edgekv.stats import Stats
from edgekv.tiers.arena import HostArena

STEP_EVERY = 16
"""Decode steps that share one run of the policy where nobody observes each: their attention mass adds up meanwhile."""

BYTES_PER_STEP = 1 << 21
"""Bytes that one run of the policy may move: a small share of the time between two runs."""


class Tiering:
    """Makes the Hierarchy of an attached context and feeds it with the context's steps."""

    def __init__(self, handle: core.Handle, options: KvOptions, stats: Stats):
        self._handle = handle
        native.set_arena(handle, 0)
        view = native.hierarchy(handle)
        observed = core.observation(handle)
        layers = [layer for layer in core.layers(handle) if layer.row >= 0]
        exists = np.zeros(view.priority.shape[:2], bool)
        for layer in layers:
            exists[layer.row, : layer.n_head_kv] = True
        self.shape = Shape(*view.priority.shape, page_tokens=observed.page_tokens, pages_per_stream=observed.pages_per_stream, exists=exists)
        self.slot_bytes = view.slot_bytes
        self._newest = view.newest
        rope = core.rope(handle)
        head_dim = layers[0].head_dim if layers else 0
        transport = HostArena(self._copy, self._publish, self._release, self._resize)
        self.hierarchy = Hierarchy(
            self.shape, transport, view.priority, view.pinned, page_bytes=max(1, self.slot_bytes), policy=options.policy,
            prefetch_name=options.prefetch, settings=Settings(sink_tokens=options.sink_tokens, recent_tokens=options.recent_tokens),
            rope=Rope(head_dim, *rope) if rope and head_dim else None, plan_every=max(1, options.plan_every // STEP_EVERY),
            bytes_per_step=BYTES_PER_STEP, stats=stats)
        self.resize(options)

    def resize(self, options: KvOptions) -> None:
        """The arena that these options ask for. Raises DoesNotFit."""
        n_pages = self.shape.n_existing_heads * self.shape.n_pages
        kv_bytes = n_pages * self.slot_bytes
        n_slots = arena_bytes(options, kv_bytes, self.shape.n_pages * self.shape.page_tokens) // max(1, self.slot_bytes)
        try:
            self.hierarchy.resize(n_slots)
        except TierError as error:
            raise DoesNotFit(str(error)) from error

    def step(self, seen: core.NativeObservation) -> None:
        """After a ubatch: all phases of the hierarchy."""
        used = np.flatnonzero(self._newest >= 0)
        self.hierarchy.step(Observation(
            seen.mass_sum, seen.mass_max, seen.n_tokens_hooked or seen.n_tokens, seen.n_tokens_hooked > 0, seen.changed, self._newest, seen.newest,
            int(used[-1]) + 1 if len(used) else 0))

    # ---- reports ------------------------------------------------------------------------------------------------------------

    def tiers(self) -> TierReport:
        counts, stats = self.hierarchy.tiers(), self.hierarchy.stats
        return TierReport(
            counts[State.RESIDENT], counts[State.HOME], counts[State.FILLING], counts[State.MOVING], counts[State.FREE],
            self.hierarchy.table.n_slots, self.slot_bytes, stats.moved_bytes, stats.n_promoted, stats.n_demoted, stats.n_invalidated,
            stats.n_failed_copies,
            tuple((state.name.lower(), reason.description, n) for state, reason, n in self.hierarchy.why()))

    # ---- transport ------------------------------------------------------------------------------------------------------------

    def _moves(self, ids: np.ndarray, slots: np.ndarray | int = -1) -> np.ndarray:
        moves = np.empty(len(ids), native.MOVE)
        moves["row"], moves["head"], moves["page"] = self.shape.places(ids)
        moves["slot"] = slots
        return moves

    def _copy(self, ids: np.ndarray, slots: np.ndarray) -> None:
        native.copy_pages(self._handle, self._moves(ids, slots))

    def _publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return native.publish_pages(self._handle, self._moves(ids, slots))

    def _release(self, ids: np.ndarray) -> None:
        native.release_pages(self._handle, self._moves(ids))

    def _resize(self, n_slots: int) -> None:
        try:
            native.set_arena(self._handle, n_slots)
        except DoesNotFit as error:
            raise TierError(str(error)) from error


def selection_report(handle: core.Handle, n_rows: int, n_heads: int) -> SelectionReport:
    """The sums over all layers and heads."""
    of = native.selected(handle, n_rows, n_heads)
    count = {name: int(of[name].sum()) for name in ("n_steps", "n_visible", "n_selected", "n_hits", "n_fallbacks")}
    return SelectionReport(count["n_steps"], count["n_visible"], count["n_selected"], count["n_hits"], float(of["mass"].sum()),
                           float(of["mass_hits"].sum()), float(of["coverage"].sum()), count["n_fallbacks"])
