"""Policies of the literature on caches, each against a plain loop."""

import dataclasses
import math

import numpy as np
import pytest
from support.scores import SMALL, check, heads
from support.tiers import observation

from edgekv.pages.shape import PageShape
from edgekv.policies import make


def test_lfu():
    counts, n = np.zeros(SMALL.axes), 0

    def expected(seen):
        nonlocal n
        n += 1
        for at in np.ndindex(SMALL.axes):
            counts[at] += seen.mass_sum[at] > np.float32(0.1)
        return 0.1 * counts[:, :, : seen.n_used_end] / n

    check("lfu", expected, dict(access_mass=0.1))


def test_mlfq():
    count, level, idle = np.zeros(SMALL.axes), np.zeros(SMALL.axes), np.zeros(SMALL.axes)

    def expected(seen):
        for at in np.ndindex(SMALL.axes):
            idle[at] += 1
            if seen.mass_sum[at] > np.float32(0.05):
                count[at] += 1
                level[at], idle[at] = min(int(math.log2(count[at])), 7), 0
            elif idle[at] >= 6:
                level[at], idle[at] = max(level[at] - 1, 0), 0
        return np.where(count > 0, 0.05 / 8 * (level + 1 / (1 + idle)), 0)[:, :, : seen.n_used_end]

    check("mlfq", expected, dict(access_mass=0.05, window_tokens=6))


class PlainS3Fifo:
    """One head; queues are lists, the oldest first."""

    def __init__(self, capacity: int, small_capacity: int):
        self.capacity, self.small_capacity = capacity, small_capacity
        self.small, self.main = [], []
        self.ghosts, self.n_ghosts = {}, 0
        self.hits, self.entered = {}, {}

    def step(self, now: int, accessed: list[int]) -> None:
        cached = {*self.small, *self.main}
        before = self.n_ghosts
        for page in accessed:
            if page in cached:
                self.hits[page] = min(self.hits[page] + 1, 3)
                continue
            # as many others as the main queue holds may have gone after it or with it
            remembered = page in self.ghosts and before - self.ghosts.pop(page) <= self.capacity - self.small_capacity
            (self.main if remembered else self.small).append(page)
            self.hits[page], self.entered[page] = 0, now
        while len(self.small) + len(self.main) > self.capacity:
            if len(self.small) > self.small_capacity:
                page = self.small.pop(0)
                if self.hits[page] > 1:
                    self.main.append(page)
                    self.hits[page], self.entered[page] = 0, now
                else:
                    self.ghosts[page] = before
                    self.n_ghosts += 1
            else:
                page = self.main.pop(0)
                if self.hits[page]:
                    self.main.append(page)
                    self.hits[page], self.entered[page] = self.hits[page] - 1, now
        # those that entered in one step are in the order of pages
        self.main.sort(key=lambda page: (self.entered[page], page))


@pytest.mark.parametrize("n_budget, access_mass", [(10, 0.02), (4, 0.02), (1, 0.02), (20, 0.005), (10, 0.3)])
def test_s3fifo(n_budget: int, access_mass: float):
    """One access at a time: batches that evict many at once have a test of their own."""
    shape = PageShape(2, 3, 30, page_tokens=4)
    rng = np.random.default_rng(0)
    policy = make("s3fifo", shape, dict(access_mass=access_mass))
    plain = {at: PlainS3Fifo(n_budget, max(1, n_budget // 10)) for at in heads(shape)}
    popular = rng.permutation(30)
    for now in range(400):
        mass = np.zeros(shape.axes, np.float32)
        for at in heads(shape):
            accessed = popular[min(int(rng.exponential(8)), 29)]
            mass[at][accessed] = 0.5
            plain[at].step(now, [accessed])
        policy.update(dataclasses.replace(observation(shape, 30, mass), n_budget=n_budget))
        for at in heads(shape):
            scores, head = policy.scores[at] * 6 / access_mass, plain[at]
            inside = [*head.small, *head.main]
            assert set(np.flatnonzero(scores > 1)) == set(inside) and len(inside) <= n_budget
            expected = [(1 if page in head.small else 2 + head.hits[page]) + 1 / (1 + now - head.entered[page]) for page in inside]
            np.testing.assert_allclose(scores[inside], expected, rtol=1e-4, err_msg=f"{now}, {at}")


def test_s3fifo_in_batches():
    """Many accesses in a step: the main queue's survivors, their hits and their order are those of the loop."""
    shape = PageShape(1, 4, 40, page_tokens=4)
    rng = np.random.default_rng(1)
    policy = make("s3fifo", shape, dict(access_mass=0.1))
    plain = {at: PlainS3Fifo(12, 1) for at in heads(shape)}
    for now in range(300):
        mass = np.where(rng.random(shape.axes) < rng.choice([0.02, 0.1, 0.5]) / (1 + np.arange(40) / 10), 0.5, 0.0)
        policy.update(dataclasses.replace(observation(shape, 40, mass), n_budget=12))
        for at in heads(shape):
            head = plain[at]
            head.step(now, np.flatnonzero(mass[at]).tolist())
            scores = policy.scores[at] * 60
            assert set(np.flatnonzero(scores > 1)) == {*head.small, *head.main}
            assert {page: int(scores[page] + 1e-4) - 2 for page in head.main if head.entered[page] < now} == {
                page: head.hits[page] for page in head.main if head.entered[page] < now}
