"""Replays a trace against a policy, as `edgekv.sim` describes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edgekv import budgets, policies, prefetch
from edgekv.observation import Observation
from edgekv.policies import Policy
from edgekv.prefetch import Rope
from edgekv.sim.hot import HotTier
from edgekv.sim.result import Result
from edgekv.sim.selection import Selected, Selector
from edgekv.sim.setting import Access, Setting
from edgekv.trace import Header, Trace, TraceStep
from edgekv.vocab import Split

Progress = Callable[[int, int], None]
"""Called with the steps done and their number."""

REPORT_STEPS = 16


def simulate(trace: Trace, setting: Setting, progress: Progress | None = None) -> Result:
    """Raises ConfigError where the trace has not what the setting needs."""
    began = time.perf_counter()
    replay = Replay(trace, setting)
    for i, step in enumerate(trace.steps(() if setting.sketch is None else (setting.sketch,))):
        replay.step(step)
        if progress is not None and i % REPORT_STEPS == 0:
            progress(i, len(trace))
    return replay.result(time.perf_counter() - began)


class Replay:
    """The state of a simulation between two steps."""

    def __init__(self, trace: Trace, setting: Setting):
        header = trace.header
        if setting.sketch is not None:
            trace.require(setting.sketch)
        self.header, self.setting, self.shape = header, setting, header.shape
        self.policy: Policy = policies.make(setting.policy, self.shape, setting.settings)
        self.selector = Selector(self.shape, setting, self.policy)
        self.prefetcher = prefetch.make(setting.prefetch, self.shape, Rope(*header.rope) if header.rope else None)
        self.hot = HotTier(self.shape, setting.pool)
        self.selected: Selected | None = None
        """What the last step attended; None in the warm-up but for its last step, where it says what the step would have."""
        self._groups = np.array(header.groups, np.float32)[:, None, None]
        self._n_prefetch = 0 if setting.prefetch == "none" else round(setting.prefetch_pages * self.shape.n_existing_heads)
        self._key_norms = trace.key_norms if self.policy.needs_keys else None
        self._sums = _Sums(header)
        self._n_done = 0
        if header.n_prompt:
            self._read_prompt()

    def _read_prompt(self) -> None:
        """The tokens read in batches, as a live policy meets them: stored, not observed."""
        nothing = np.zeros(self.shape.axes, np.float32)
        end = self.header.n_used_end(-1)
        n = self.header.n_prompt
        self.policy.update(self._observation(nothing, nothing, n - 1, end, n, np.arange(end), False))

    def _observation(self, mass_sum: np.ndarray, mass_max: np.ndarray, position: int, end: int, n_tokens: int = 1,
                     changed: np.ndarray | None = None, observed: bool = True) -> Observation:
        norms = self._key_norms
        if norms is not None:
            norms = np.where(np.arange(self.shape.n_pages) < end, norms, np.float32(0))
        return Observation(mass_sum, mass_max, n_tokens, observed, np.array([end - 1]) if changed is None else changed,
                           self.header.page_positions(position), position, end,
                           self.setting.n_budget(end, self.shape.page_tokens), norms)

    def step(self, step: TraceStep) -> None:
        """Select, measure, observe; in the warm-up everything is attended."""
        self._n_done += 1
        true = self._observation(step.mass_sum, step.mass_max, step.position, step.n_used_end)
        if self.policy.clairvoyant:
            self.policy.update(true)
        # what the last step of the warm-up would have attended is what is hot when the first one begins
        selects = not step.warmup or self._n_done == self.header.n_warmup
        if selects:
            self._attend(step)
        seen = true if step.warmup or self.setting.observe == "full" else self._honest(step, true)
        if not self.policy.clairvoyant:
            self.policy.update(seen)
        if selects and self._n_prefetch:
            self.hot.prefetch(self.prefetcher, seen, self._n_prefetch)

    def _attend(self, step: TraceStep) -> None:
        end = step.n_used_end
        self.selected = self.selector.select(step)
        before = self.hot.hot[:, :, :end].copy()
        before[:, :, end - 1] = True
        fetched = self.hot.admit(self.selected.attended, self.selected.n_budget, self.policy.scores)
        if step.warmup:
            return
        brought = self.hot.brought[:, :, :end]
        # without a sketch what is attended is known before the step, and is there when it begins
        hot = before if self.setting.sketch else self.hot.hot[:, :, :end] | brought
        self._sums.add(step.mass_sum[:, :, :end], self.selected.attended, before, hot, fetched, brought, self.setting.access)

    def _honest(self, step: TraceStep, true: Observation) -> Observation:
        """What a live system sees of a step: softmax over the attended pages alone. With `feed` the sketch's estimates for the
        others, and the attended pages' mass as if they were seen beside them."""
        end = step.n_used_end
        attended = self.selected.attended
        mass = true.mass_sum[:, :, :end]
        scale = _ratio(mass.sum(axis=2), np.sum(mass, axis=2, where=attended))
        estimate = step.estimates[self.setting.sketch][:, :, :end] if self.setting.feed else None
        if estimate is not None:
            scale *= _ratio(np.sum(estimate, axis=2, where=attended), estimate.sum(axis=2))
        seen = attended * scale[:, :, None]
        mass_sum, mass_max = np.zeros(self.shape.axes, np.float32), np.zeros(self.shape.axes, np.float32)
        np.multiply(mass, seen, out=mass_sum[:, :, :end])
        np.multiply(true.mass_max[:, :, :end], seen, out=mass_max[:, :, :end])
        if estimate is not None:
            np.copyto(mass_sum[:, :, :end], estimate, where=~attended)
            np.copyto(mass_max[:, :, :end], estimate / self._groups, where=~attended)
        return replace(true, mass_sum=mass_sum, mass_max=mass_max)

    def result(self, seconds: float) -> Result:
        observe = "ahead" if self.policy.clairvoyant else self.setting.observe
        return self._sums.result(self.setting, self.header, self.selector.split, observe, seconds)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """float32; 1 where there is nothing below."""
    return np.divide(above, below, out=np.ones(above.shape, np.float32), where=below > 0)


class _Sums:
    """What the measured steps add up to; arrays are float64 [row, head]."""

    def __init__(self, header: Header):
        self._exists = np.array(header.exists)
        self._n_steps = 0
        self._n_visible = 0
        self._coverage, self._hit_mass, self._hits, self._wanted, self._arena, self._attended, self._hot, self._fetched, \
            self._prefetched = np.zeros((9, *self._exists.shape))
        self._coverage_over_time: list[float] = []
        self._attended_over_time: list[float] = []

    def add(self, mass: np.ndarray, attended: np.ndarray, before: np.ndarray, hot: np.ndarray, fetched: np.ndarray,
            brought: np.ndarray, access: Access) -> None:
        """A step; arrays are [row, head, :n_used_end], fetched int [row, head]. before: hot when the step before ended, with what
        prefetch brought then; hot: when the pages are read."""
        self._n_steps += 1
        self._n_visible += mass.shape[2]
        total = mass.sum(axis=2)
        coverage = _ratio(np.sum(mass, axis=2, where=attended), total)
        n_attended = attended.sum(axis=2)
        self._coverage += coverage
        self._hit_mass += _ratio(np.sum(mass, axis=2, where=hot), total)
        self._attended += n_attended
        self._arena += (attended & before).sum(axis=2)
        self._hot += hot.sum(axis=2)
        wanted = _wanted(mass, total, access)
        self._hits += (wanted & hot).sum(axis=2)
        self._wanted += wanted.sum(axis=2)
        prefetched = brought.sum(axis=2)
        self._fetched += fetched + prefetched
        self._prefetched += prefetched
        self._coverage_over_time.append(float(coverage[self._exists].mean()))
        self._attended_over_time.append(float(n_attended[self._exists].mean()))

    def result(self, setting: Setting, header: Header, split: Split, observe: str, seconds: float) -> Result:
        def by_head(sums: np.ndarray, over: np.ndarray | int) -> np.ndarray:
            over = np.broadcast_to(over, sums.shape)
            return np.divide(sums, over, out=np.full(sums.shape, np.nan), where=self._exists & (over > 0))

        n = self._n_steps
        return Result(
            setting, header, split, observe, coverage_by_head=by_head(self._coverage, n),
            hit_rate_by_head=by_head(self._hits, self._wanted),
            hit_rate_mass_by_head=by_head(self._hit_mass, n), arena_hits_by_head=by_head(self._arena, self._attended),
            attended_by_head=by_head(self._attended, n), hot_by_head=by_head(self._hot, n),
            fetched_by_head=by_head(self._fetched, n), prefetched_by_head=by_head(self._prefetched, n),
            n_wanted=self._wanted * self._exists, n_visible=self._n_visible / n,
            coverage_over_time=np.array(self._coverage_over_time), attended_over_time=np.array(self._attended_over_time),
            seconds=seconds)


def _wanted(mass: np.ndarray, total: np.ndarray, access: Access) -> np.ndarray:
    """bool [row, head, page]; of equal ones the newer page."""
    if access.top:
        return budgets.divide(Split.UNIFORM, mass, np.False_, np.True_, access.top)
    return mass > np.float32(access.share) * total[:, :, None]
