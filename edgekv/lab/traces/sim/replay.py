"""Replays a trace against a policy, as `edgekv.lab.traces.sim` describes it."""

import time
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from edgekv import policies
from edgekv.common.enums import Split
from edgekv.lab.traces.sim.result import Result
from edgekv.lab.traces.sim.scenario import Scenario
from edgekv.lab.traces.trace import Trace, TraceHeader, TraceStep
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape
from edgekv.policies import Policy
from edgekv.tiering import budgets, prefetch
from edgekv.tiering.prefetch import Prefetcher, Rope

Progress = Callable[[int, int], None]
"""Called with the steps done and their total."""

REPORT_STEPS = 16


def simulate(trace: Trace, scenario: Scenario, progress: Progress | None = None) -> Result:
    """Simulate a scenario. Raises ConfigError for a policy or prefetcher that does not exist, or that the trace's model cannot use."""
    began = time.perf_counter()
    replay = Replay(trace, scenario)
    for i, step in enumerate(trace):
        replay.step(step)
        if progress is not None and i % REPORT_STEPS == 0:
            progress(i, len(trace))
    return replay.result(time.perf_counter() - began)


class HotTier:
    """bool `hot` [layer, head, page]. The policy's choice becomes hot, and no other page stays. The page being filled is written in place: it
    is always hot and never fetched. Prefetched pages come on top, and are hot in the next step."""

    def __init__(self, shape: PageShape):
        self.shape = shape
        self.hot = np.zeros(shape.axes, bool)
        self.brought = np.zeros(shape.axes, bool)
        """bool [layer, head, page]: the pages that the last prefetch made hot."""

    def admit(self, chosen: np.ndarray) -> np.ndarray:
        """Make the pages of a step hot: bool [layer, head, :end]. Returns int [layer, head]: the number of newly hot pages."""
        end = chosen.shape[2]
        part = self.hot[:, :, :end]
        fetched = (chosen & ~part)[:, :, : end - 1].sum(axis=2)
        part[...] = chosen
        return fetched

    def prefetch(self, prefetcher: Prefetcher, observation: Observation, limit: int) -> None:
        """Make the pages that a prefetcher wants hot, at most `limit`."""
        ids = prefetcher.wanted(observation, self.residency(observation.n_used_end), limit).get()
        self.brought = np.zeros(self.shape.axes, bool)
        self.brought.reshape(-1)[ids] = True
        self.hot |= self.brought

    def residency(self, end: int) -> Residency:
        """The states of a page table: hot pages RESIDENT, the others before `end` HOME, the last of them FILLING."""
        state = np.full(self.shape.axes, State.FREE, np.uint8)
        state[:, :, : end - 1] = np.where(self.hot[:, :, : end - 1], State.RESIDENT, State.HOME)
        state[:, :, end - 1] = State.FILLING
        state[~self.shape.exists] = State.FREE
        return Residency(self.shape, state, np.full(self.shape.axes, -1, np.int32), np.empty(0, np.int64), 0, end)


class Replay:
    """The state of a simulation between two steps. Steps have mode sparse's observation."""

    def __init__(self, trace: Trace, scenario: Scenario):
        header = trace.header
        self.header, self.scenario, self.shape = header, scenario, header.shape
        self.policy: Policy = policies.make(scenario.policy, self.shape, scenario.settings)
        self.split = _split(scenario, self.policy)
        self.prefetcher = prefetch.make(scenario.prefetch, self.shape, Rope(*header.rope) if header.rope else None)
        self.hot = HotTier(self.shape)
        self.chosen: np.ndarray | None = None
        """bool [layer, head, :n_used_end]: the policy's choice for the last step. In the warm-up it is None until the last step, where it is
        the choice that the policy would have made."""
        self._n_prefetch = 0 if scenario.prefetch == "none" else round(scenario.prefetch_pages * self.shape.n_existing_heads)
        self._sums = _Sums(header)
        self._n_done = 0
        if header.n_prompt:
            self._read_prompt()

    def _read_prompt(self) -> None:
        """Show the policy the tokens read in batches, as live: stored, not observed."""
        nothing = np.zeros(self.shape.axes, np.float32)
        end = self.header.n_used_end(-1)
        n = self.header.n_prompt
        self.policy.update(self._observation(nothing, nothing, n - 1, end, n, np.arange(end), False))

    def _observation(self, mass_sum: np.ndarray, mass_max: np.ndarray, position: int, end: int, n_tokens: int = 1,
                     changed: np.ndarray | None = None, observed: bool = True) -> Observation:
        return Observation(mass_sum, mass_max, n_tokens, observed, np.array([end - 1]) if changed is None else changed,
                           self.header.page_positions(position), position, end,
                           self.scenario.n_budget(end, self.shape.page_tokens))

    def step(self, step: TraceStep) -> None:
        """Choose, measure, observe; in the warm-up nothing is missed."""
        self._n_done += 1
        true = self._observation(step.mass_sum, step.mass_max, step.position, step.n_used_end)
        if self.policy.clairvoyant:
            self.policy.update(true)
        # the policy's choice for the warm-up's last step is hot when the first measured step begins
        chooses = not step.warmup or self._n_done == self.header.n_warmup
        chosen = self._choose(step) if chooses else None
        seen = true
        if self.scenario.observe == "sampled":
            seen = replace(true, mass_sum=step.sampled_sum, mass_max=step.sampled_max)
        elif self.scenario.observe == "honest" and not step.warmup and chosen is not None:
            seen = self._honest(step, true, chosen)
        if not self.policy.clairvoyant:
            self.policy.update(seen)
        if chooses and self._n_prefetch:
            self.hot.prefetch(self.prefetcher, seen, self._n_prefetch)

    def _choose(self, step: TraceStep) -> np.ndarray:
        """bool [layer, head, :n_used_end]: the policy's pins and the page being filled, then the pages of highest score up to the
        budget."""
        end, scores, pins = step.n_used_end, self.policy.scores, self.policy.pins
        always = np.zeros(end, bool) if pins is None else pins[..., :end].copy()
        always[..., end - 1] = True
        values = np.zeros((*self.shape.axes[:2], end), np.float32) if scores is None else scores[:, :, :end]
        n = min(self.policy.most(self.scenario.n_budget(end, self.shape.page_tokens)), end)
        chosen = self.chosen = budgets.divide(self.split, values, always, np.True_, n, self.shape.exists)
        fetched = self.hot.admit(chosen)
        if not step.warmup:
            brought = self.hot.brought[:, :, :end]
            self._sums.add(step, chosen | brought, fetched, brought)
        return chosen

    def _honest(self, step: TraceStep, true: Observation, chosen: np.ndarray) -> Observation:
        """The observation if only the chosen pages are attended: the softmax over them."""
        end = step.n_used_end
        mass = true.mass_sum[:, :, :end]
        seen = chosen * _ratio(mass.sum(axis=2), np.sum(mass, axis=2, where=chosen))[:, :, None]
        mass_sum, mass_max = np.zeros(self.shape.axes, np.float32), np.zeros(self.shape.axes, np.float32)
        np.multiply(mass, seen, out=mass_sum[:, :, :end])
        np.multiply(true.mass_max[:, :, :end], seen, out=mass_max[:, :, :end])
        return replace(true, mass_sum=mass_sum, mass_max=mass_max)

    def result(self, seconds: float) -> Result:
        observe = "ahead" if self.policy.clairvoyant else self.scenario.observe
        return self._sums.result(self.scenario, self.header, self.split, observe, seconds)


def _split(scenario: Scenario, policy: Policy) -> Split:
    """The division of the budget: the requested one, otherwise that of the policy's source, otherwise the live one."""
    if scenario.split is not None:
        return scenario.split
    if policy.split is not None:
        return policy.split
    return Split.UNIFORM if scenario.observe == "honest" else Split.POOLED


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The quotient as float32; 1 where the divisor is 0."""
    return np.divide(above, below, out=np.ones(above.shape, np.float32), where=below > 0)


class _Sums:
    """Sums over the measured steps; arrays are float64 [layer, head]."""

    def __init__(self, header: TraceHeader):
        self._exists = np.array(header.exists)
        self._n_steps = 0
        self._n_visible = 0
        self._hit_mass, self._hits, self._wanted, self._hot, self._fetched, self._prefetched = np.zeros((6, *self._exists.shape))

    def add(self, step: TraceStep, hot: np.ndarray, fetched: np.ndarray, brought: np.ndarray) -> None:
        """Add a step. hot, brought (its prefetched pages): bool [layer, head, :n_used_end]; fetched: int [layer, head]."""
        end = step.n_used_end
        self._n_steps += 1
        self._n_visible += end
        mass = step.mass_sum[:, :, :end]
        total = mass.sum(axis=2)
        self._hit_mass += _ratio(np.sum(mass, axis=2, where=hot), total)
        self._hot += hot.sum(axis=2)
        wanted = step.n_read[:, :, :end]
        self._hits += np.sum(wanted, axis=2, where=hot)
        self._wanted += wanted.sum(axis=2)
        prefetched = brought.sum(axis=2)
        self._fetched += fetched + prefetched
        self._prefetched += prefetched

    def result(self, scenario: Scenario, header: TraceHeader, split: Split, observe: str, seconds: float) -> Result:
        def by_head(sums: np.ndarray, over: np.ndarray | int) -> np.ndarray:
            over = np.broadcast_to(over, sums.shape)
            return np.divide(sums, over, out=np.full(sums.shape, np.nan), where=self._exists & (over > 0))

        n = self._n_steps
        return Result(
            scenario, header, split, observe, hit_rate_by_head=by_head(self._hits, self._wanted),
            hit_rate_mass_by_head=by_head(self._hit_mass, n), hot_by_head=by_head(self._hot, n),
            fetched_by_head=by_head(self._fetched, n), prefetched_by_head=by_head(self._prefetched, n),
            n_wanted=self._wanted * self._exists, n_visible=self._n_visible / n, seconds=seconds)
