"""A sequence without a model, and the hierarchy over its attention."""

import numpy as np
from support.tiers import FakeArena, FakeDevice

from edgekv.arrays.ops import Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch import Rope
from edgekv.tiering.step import Hierarchy, HierarchySettings

SHAPE = PageShape(3, 2, 16, page_tokens=4)


class World:
    """One sequence that grows and is cut, its attention, and the hierarchy over it."""

    def __init__(self, shape: PageShape = SHAPE, n_slots: int = 20, seed: int = 0, hot: list[int] | None = None, ops: Ops | None = None,
                 device: bool = False, prompt: int = 0, **options):
        """`ops`: where scores and mass live. `device`: copies go over a fake device's streams. `prompt`: so many tokens come first, unobserved."""
        faults = {name: options.pop(name) for name in ("delay", "fail", "refuse", "prompts") if name in options}
        self.shape = shape
        self.ops = ops or Ops()
        self.arena = (FakeDevice if device else FakeArena)(shape, seed, **faults)
        options = {"page_bytes": 100, "bytes_per_run": 1200, "plan_every": 4, "rope": Rope(8, 8),
                   "policy_settings": dict(sink_tokens=4, recent_tokens=8)} | options
        self.hierarchy = Hierarchy(shape, self.arena.transport if device else self.arena, HierarchySettings(**options), ops=self.ops)
        self.hierarchy.resize(n_slots)
        self.rng = np.random.default_rng(seed)
        self.positions = np.full(shape.n_pages, -1, np.int32)
        self.n_tokens = 0
        self.changed: set[int] = set()
        self.hot = hot
        if prompt:
            self.step(prompt, observed=False)

    @property
    def scores(self) -> np.ndarray:
        scores = self.hierarchy.policy.scores
        return np.zeros(self.shape.axes, np.float32) if scores is None else self.ops.download(scores)

    @property
    def pinned(self) -> np.ndarray:
        """bool [row, head, page]"""
        return np.broadcast_to(self.hierarchy.pins, self.shape.axes)

    def cut(self, n_tokens: int) -> None:
        """seq_rm from a position on."""
        self.changed |= {page for page in range(self.shape.n_pages) if (page + 1) * self.shape.page_tokens > n_tokens
                         and self.positions[page] >= n_tokens}
        self.n_tokens = min(self.n_tokens, n_tokens)

    def mass(self) -> np.ndarray:
        mass = self.rng.gamma(0.3, 0.1, self.shape.axes) + 1e-6
        if self.hot is not None:
            mass.reshape(-1)[self.hot] += 5
        used = -(-self.n_tokens // self.shape.page_tokens)
        mass[:, :, used:] = 0
        return (mass / mass.sum(axis=2, keepdims=True)).astype(np.float32)

    def step(self, n: int = 1, observed: bool = True) -> None:
        size = self.shape.page_tokens
        self.changed |= set(range(self.n_tokens // size, -(-(self.n_tokens + n) // size)))
        self.n_tokens += n
        end = -(-self.n_tokens // size)
        self.positions[:end] = np.minimum((np.arange(end) + 1) * size, self.n_tokens) - 1
        self.positions[end:] = -1
        changed = np.array(sorted(self.changed), np.int64)
        self.changed.clear()
        self.arena.change(changed)
        mass = self.mass() if observed else np.zeros(self.shape.axes, np.float32)
        with self.ops:
            mass = self.ops.upload(mass)
        self.hierarchy.step(Observation(mass, mass, n, observed, changed, self.positions, self.n_tokens - 1, end))
        if isinstance(self.arena, FakeDevice):
            self.arena.step()
        self.check()

    def steps(self, n: int, cut: int | None = None, observed: bool = True) -> None:
        """Take n steps of a token each. With `cut` each one begins behind so many tokens."""
        for _ in range(n):
            if cut is not None:
                self.cut(cut)
            self.step(observed=observed)

    def check(self) -> None:
        hierarchy = self.hierarchy
        hierarchy.check()
        self.arena.check(hierarchy.table)
        assert len(self.arena.table) <= hierarchy.table.n_slots, "more pages than slots"
        if self.ops.on_device:  # a look would wait for the device
            return
        end = -(-self.n_tokens // self.shape.page_tokens)
        assert not self.scores[:, :, end:].any(), "a page without tokens has a score"
        assert not self.pinned[:, :, end:].any(), "a page without tokens is pinned"
        assert np.isfinite(self.scores).all(), "a score is no number"

    def resident(self) -> list[int]:
        return self.hierarchy.table.residency.resident.tolist()


def act(rng: np.random.Generator, world: World, *more: str) -> None:
    """One random event, or one of `more`, and a step."""
    n_tokens = world.shape.n_pages * world.shape.page_tokens
    event = rng.choice(["step", "step", "step", "step", "many", "cut", "pin", "unpin", "resize", *more])
    room = n_tokens - world.n_tokens
    first, last = sorted(rng.integers(0, world.shape.n_pages, 2).tolist())
    if event == "cut" or room < 1:
        world.cut(int(rng.integers(0, max(1, world.n_tokens))))
        room = n_tokens - world.n_tokens
    elif event == "pin":
        world.hierarchy.pin(first, last)
    elif event == "unpin":
        world.hierarchy.unpin(first, last)
    elif event == "resize":
        world.hierarchy.resize(int(rng.integers(0, 40)))
    elif event == "pace":
        world.hierarchy.pace(int(rng.choice([1, 300, 9000])))
    world.step(int(rng.integers(1, min(room, 20) + 1)) if event == "many" else 1, observed=event != "many")
