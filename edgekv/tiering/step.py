"""The memory hierarchy of one context: its parts, and the phases of a run in their order."""

import time
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv import policies
from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Later, both
from edgekv.arrays.rank import Ranking
from edgekv.common.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.tiering import eviction, planner, prefetch
from edgekv.tiering.eviction import Demand, Evictor
from edgekv.tiering.migrator import Migrator
from edgekv.tiering.planner import MoveLimits
from edgekv.tiering.prefetch import Rope
from edgekv.tiering.stats import Stats
from edgekv.tiering.table import PageTable
from edgekv.tiering.transport import Transport


class HierarchySettings(Struct, frozen=True):
    """Settings of a hierarchy's decisions and moves. Raises ConfigError for impossible numbers."""

    page_bytes: int
    """Of a page in the arena."""
    policy: str = "ema+anchor+recent"
    prefetch: str = "none"
    policy_settings: Mapping[str, int | float] | None = None
    """None: each policy's own."""
    rope: Rope | None = None
    """None: the model has no rotary positions."""
    limits: MoveLimits = MoveLimits()
    plan_every: int = 16
    """Steps from plan to plan."""
    bytes_per_run: int = 1 << 20
    """Bytes of the copies that one step may begin."""
    by_stream: bool = False
    """Each stream has a policy of its own (`policies.ByStream`)."""

    def __post_init__(self) -> None:
        if self.plan_every < 1 or self.page_bytes < 1 or self.bytes_per_run < 1:
            raise ConfigError(f"plan_every is {self.plan_every}, page_bytes {self.page_bytes} and bytes_per_run {self.bytes_per_run}; "
                              "each must be at least 1")


class Hierarchy:
    """Page table, policy, prefetch, planner and migrator of one context. `step` is its phases; nothing here is thread-safe.

    The policy's scores and the mass live where `ops` works; residency and pins by page are NumPy arrays. Pins keep pages in the arena, and in
    mode evict attended; what mode sparse always reads does not follow from them.
    A plan has two halves: a question about the scores, and a decision. On the host the decision follows at once. A device answers
    while it computes the next tokens; nothing waits for it, and the first run that finds the answer decides. The arena begins
    without slots; `resize` gives it some.
    """

    def __init__(self, shape: PageShape, transport: Transport, settings: HierarchySettings, *,
                 ops: Ops | None = None, stats: Stats | None = None, evictor: Evictor | None = None):
        self.shape = shape
        self.ops = ops or Ops()
        self.stats = stats or Stats()
        self.table = PageTable(shape)
        with self.ops:
            self.policy = policies.make(settings.policy, shape, settings.policy_settings, self.ops, by_stream=settings.by_stream)
        self.prefetcher = prefetch.make(settings.prefetch, shape, settings.rope, self.ops)
        self.migrator = Migrator(self.table, transport, settings.bytes_per_run // settings.page_bytes, settings.page_bytes, self.stats)
        self.limits = settings.limits
        self.plan_every = settings.plan_every
        self.transport = transport
        self.evictor = evictor
        self.last_plan: planner.MigrationPlan | None = None
        self._user_pins = np.zeros(shape.n_pages, bool)
        self._pins: np.ndarray | None = None  # of the policy and the user
        self._observation: Observation | None = None
        self._question: Later[tuple[np.ndarray, Ranking]] | None = None  # of the plan that is due
        self._wanted_slots = self._arena_slots = 0  # slots that were asked for, and slots that the arena has
        self._until_plan = self.plan_every
        self._new = True

    # ---- a step --------------------------------------------------------------------------------------------------------------

    def step(self, observation: Observation) -> None:
        """One run of the policy: all phases, over the tokens since the last one."""
        began = time.perf_counter()
        with self.ops:
            self.collect()
            self.observe(observation)
            self.score()
            self.plan()
            self.migrate()
            self.evict()
            self.record()
        self.stats.hierarchy_seconds += time.perf_counter() - began

    def collect(self) -> None:
        """Finished copies become resident."""
        self.migrator.collect()
        if self._arena_slots != self._wanted_slots:
            self._resize_arena()

    def observe(self, observation: Observation) -> None:
        """Changed pages leave their slots and are forgotten; the policy learns the attention."""
        self._observation = observation
        changed = observation.changed
        if self._new:  # the context may have been in use before
            changed = np.flatnonzero(observation.page_positions >= 0)
            self._new = False
        empty = observation.page_positions[changed] < 0
        forgotten = self.table.change(changed, empty)
        forgotten = self._take_over(observation, forgotten)
        if len(forgotten):
            self.policy.forget(forgotten)
        self._user_pins[changed[empty]] = False
        self.policy.update(observation)

    def _take_over(self, observation: Observation, forgotten: np.ndarray) -> np.ndarray:
        """Streams that were copied begin with what is known of their sources' pages; the pages (int [n]) that are forgotten all the same."""
        for stream, source in observation.copies:
            pages, theirs = (np.arange(one * self.shape.pages_per_stream, (one + 1) * self.shape.pages_per_stream) for one in (stream, source))
            self.policy.take_over(stream, source)
            self._user_pins[pages] = self._user_pins[theirs]
            empty = pages[observation.page_positions[pages] < 0]  # not all that the source had came along
            self._user_pins[empty] = False
            forgotten = np.union1d(np.setdiff1d(forgotten, pages), empty)
        return forgotten

    def score(self) -> None:
        """Take in the policy's pins; its scores follow from what it observed."""
        pins = self.policy.pins
        self._pins = self._user_pins.copy() if pins is None else np.logical_or(self._user_pins, pins)

    def plan(self) -> None:
        """Plan moves, every `plan_every` runs."""
        self._until_plan -= 1
        began = time.perf_counter()
        if self._question is None and self._until_plan <= 0:
            self._until_plan = self.plan_every
            self._question = self._ask()
        if self._question is None:
            return
        if self._question.done():
            wanted, ranking = self._question.get()
            self._question = None
            self.last_plan = planner.decide(ranking, self._pins, wanted, self.table.residency, self.limits)
            self.migrator.submit(self.last_plan)
            self.stats.n_plans += 1
            self.stats.n_unplaced = self.last_plan.n_unplaced
        elif self._until_plan <= 0:
            self.stats.n_late_answers += 1
        self.stats.plan_seconds += time.perf_counter() - began

    def _ask(self) -> Later[tuple[np.ndarray, Ranking]] | None:
        """Ask for the scores and the mass that a plan needs; None if there is nothing to plan."""
        seen = self._observation
        if seen is None or not self._wanted_slots or self._arena_slots != self._wanted_slots:
            return None
        residency = self.table.residency
        wanted = self.prefetcher.wanted(seen, residency, self.limits.max_wanted)
        # if no page replaces another, no scores are needed
        scores = self.policy.scores if self.limits.swap else None
        return both(wanted, self.ops.rank(scores, self._pins, residency, self.limits.n_ranked))

    def migrate(self) -> None:
        """Begin the copies this run may begin."""
        self.migrator.advance(self._pins)

    def evict(self) -> None:
        """Heads drop the pages that they do not keep, and pages without room are freed; or single cells, if the policy keeps tokens by age."""
        if self.evictor is not None:
            for demand in self.evictor.demands():
                self._evict_from(demand, self.evictor)

    def _evict_from(self, demand: Demand, evictor: Evictor) -> None:
        n_keep = None if demand.n_keep is None else self.policy.most(demand.n_keep)
        if self.policy.sinks is not None:
            if n_keep is not None and n_keep != demand.n_keep:
                demand = replace(demand, keep_tokens=n_keep * self.shape.page_tokens)
            cells = eviction.by_cell(demand, self.policy.sinks, self._user_pins)
            self.stats.n_freed += evictor.free_cells(cells) if len(cells) else 0
            return
        demand = replace(demand, split=self.policy.split or demand.split, n_keep=n_keep)
        losses = eviction.decide(self.shape, self.policy.scores, self._pins, demand, self.policy.adds_up)
        if len(losses.dropped):
            evictor.drop(losses.dropped)
            self.stats.n_dropped += len(losses.dropped)
        if len(losses.freed):
            self.stats.n_freed += evictor.free(losses.freed)
            self.forget(losses.freed)

    def record(self) -> None:
        """Counters that the table keeps."""
        self.stats.n_invalidated = self.table.n_invalidated
        self._observation = None  # its arrays are valid during the run only

    def pace(self, bytes_per_run: int) -> None:
        """Limit the copies that a run begins to so many bytes, or to one page if that is more."""
        self.migrator.pages_per_run = max(1, bytes_per_run // self.migrator.page_bytes)

    def plan_next(self) -> None:
        """Plan in the next step, however recent the last plan is."""
        self._until_plan = min(self._until_plan, 1)

    # ---- requests of a person ------------------------------------------------------------------------------------------------

    def resize(self, n_slots: int) -> None:
        """Change the number of slots: at once, or, where copies are still under way into slots that go, as soon as they end. The
        coldest pages leave first. Raises ConfigError, or TierError if the arena cannot have so many; it then stays as it
        is."""
        if n_slots < 0:
            raise ConfigError(f"the arena cannot have {n_slots} slots; give 0 for none, or more")
        if n_slots > self._arena_slots:
            self.transport.pages.resize(n_slots)  # may not have the memory
            self._arena_slots = n_slots
        self._wanted_slots = n_slots
        self._question = None
        self.migrator.drop()
        self.migrator.collect()  # finished copies need no wait
        self._resize_arena()
        self._until_plan = 1

    def _resize_arena(self) -> None:
        scores = self.policy.scores
        if scores is not None and self._wanted_slots < self.table.n_slots:
            scores = self.ops.download(scores)  # waits for the device: budgets change rarely
        demoted, done = self.table.resize(self._wanted_slots, scores, self._pins)
        if len(demoted):
            self.transport.pages.release(demoted)
            self.stats.n_demoted += len(demoted)
        if done and self._arena_slots != self._wanted_slots:
            self.transport.pages.resize(self._wanted_slots)
            self._arena_slots = self._wanted_slots
            self._until_plan = 1

    def pin(self, first_page: int, last_page: int) -> int:
        """Keep these pages (both included) in the arena, and in mode evict, for all rows and heads, until they are unpinned or emptied.
        Returns how many of them hold tokens: only these are pinned. Raises ConfigError."""
        pages = self._range(first_page, last_page)
        in_use = self.table.in_use(pages)
        self._user_pins[pages[in_use]] = True
        self._until_plan = 1
        return int(np.count_nonzero(in_use))

    def unpin(self, first_page: int, last_page: int) -> int:
        """Take back `pin` for these pages; returns how many were pinned by it. Raises ConfigError."""
        pages = self._range(first_page, last_page)
        n = int(np.count_nonzero(self._user_pins[pages]))
        self._user_pins[pages] = False
        return n

    def forget(self, pages: np.ndarray) -> None:
        """The cells of these pages (int [n]) have been emptied, and may hold other tokens before the next run."""
        self.policy.forget(pages)
        self._user_pins[pages] = False

    @property
    def pins(self) -> np.ndarray | None:
        """bool [page] or [layer, head, page]: the pins of the policy and the user, as of the last run; None before the first."""
        return self._pins

    def _range(self, first_page: int, last_page: int) -> np.ndarray:
        if not 0 <= first_page <= last_page < self.shape.n_pages:
            raise ConfigError(f"there are no pages {first_page} to {last_page}; the context has pages 0 to "
                              f"{self.shape.n_pages - 1}")
        return np.arange(first_page, last_page + 1)

    # ---- reports --------------------------------------------------------------------------------------------------------

    def tiers(self) -> dict[State, int]:
        """Pages in each state, over all rows and heads."""
        return self.table.counts()

    def why(self) -> list[tuple[State, Reason, int]]:
        """The pages' places and reasons: (state, reason, pages), the most pages first within a state. FREE pages are left out."""
        table = self.table.why()
        return [(state, Reason(reason), int(table[state, reason])) for state in State if state != State.FREE
                for reason in np.argsort(-table[state], kind="stable") if table[state, reason]]

    def close(self) -> None:
        """Wait for the copies under way. Only its counts may be read afterwards."""
        self._question = None
        self.migrator.drop()
        self.transport.close()

    def check(self) -> None:
        """The page table's invariants. Raises TierError with the first that is broken."""
        self.table.check()
