"""Every policy against a plain loop, alone and composed."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support import fake_cupy
from support.tiers import observation

from edgekv.arrays import cupy_ops
from edgekv.arrays.ema import BLOCK, ema, scratch_elements, weights
from edgekv.cli.main import cli
from edgekv.errors import ConfigError
from edgekv.hierarchy.budgets import SPLITS
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, Policy, check_live, kinds, make, setting_kinds
from edgekv.prefetch import PREFETCHERS
from edgekv.vocab import Split

SHAPE = PageShape(2, 3, 10)
SMALL = PageShape(2, 3, 25, page_tokens=4)


def masses(rng: np.random.Generator, shape: PageShape = SHAPE) -> np.ndarray:
    mass = rng.gamma(0.3, 1.0, shape.axes).astype(np.float32)
    return mass / mass.sum(axis=2, keepdims=True)


def plain_ema(steps, alpha: float) -> np.ndarray:
    score = np.zeros(SHAPE.axes)
    for mass, n_tokens in steps:
        for at in np.ndindex(SHAPE.axes):
            for _ in range(n_tokens):
                score[at] = alpha * (mass[at] / n_tokens) + (1 - alpha) * score[at]
    return score


@pytest.mark.parametrize("alpha", [0.02, 0.1, 1.0])
def test_ema(alpha: float):
    rng = np.random.default_rng(0)
    policy = make("ema", SHAPE, dict(alpha=alpha))
    steps = [(n * masses(rng), n) for n in (1, 1, 3, 1, 2)]
    for mass, n in steps:
        policy.update(observation(SHAPE, 10, mass, n_tokens=n))
    np.testing.assert_allclose(policy.scores, plain_ema(steps, alpha), rtol=1e-5, atol=1e-8)
    assert policy.pins is None


def test_ema_in_blocks():
    """Rows in blocks are the rows at once."""
    rng = np.random.default_rng(0)
    shape = (5, 2, BLOCK // 4)
    scores, mass = rng.random(shape, np.float32), rng.random(shape, np.float32)
    expected = np.float32(0.1) * mass + np.float32(0.9) * scores
    ema(scores, mass, *weights(0.1, 1), np.empty(scratch_elements(shape), np.float32))
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_scores_never_become_denormal():
    policy = make("ema", SHAPE)
    policy.update(observation(SHAPE, 10, np.ones(SHAPE.axes)))
    nothing = observation(SHAPE, 10)
    for _ in range(1000):
        policy.update(nothing)
        assert ((policy.scores == 0) | (policy.scores > np.finfo(np.float32).tiny)).all()
    assert not policy.scores.any()


def test_lru():
    rng = np.random.default_rng(1)
    policy, threshold = make("lru", SHAPE, dict(access_mass=0.1)), 0.1
    age = np.full(SHAPE.axes, np.inf)
    for _ in range(30):
        mass = masses(rng)
        policy.update(observation(SHAPE, 10, mass))
        for at in np.ndindex(SHAPE.axes):
            age[at] = 0 if mass[at] > np.float32(threshold) else age[at] + 1
    np.testing.assert_allclose(policy.scores, threshold / (1 + age), rtol=1e-4)


@pytest.mark.parametrize("n_used, sinks, pinned", [
    (10, 16, [0]), (10, 17, [0, 1]), (10, 0, []), (10, 40, [0, 1, 2]), (1, 64, [0]), (0, 16, [])])
def test_anchor(n_used: int, sinks: int, pinned: list[int]):
    policy = make("anchor", SHAPE, dict(sink_tokens=sinks))
    policy.update(observation(SHAPE, 10))
    policy.update(observation(SHAPE, n_used))
    assert np.flatnonzero(policy.pins).tolist() == pinned and policy.scores is None


@pytest.mark.parametrize("n_used, recent, pinned", [
    (10, 64, [6, 7, 8, 9]), (10, 65, [5, 6, 7, 8, 9]), (10, 1, [9]), (10, 0, []), (2, 64, [0, 1]), (0, 64, [])])
def test_recent(n_used: int, recent: int, pinned: list[int]):
    policy = make("recent", SHAPE, dict(recent_tokens=recent))
    policy.update(observation(SHAPE, 10))
    policy.update(observation(SHAPE, n_used))
    assert np.flatnonzero(policy.pins).tolist() == pinned


def test_streams_are_separate():
    """Two streams of different lengths: each has its own newest and its own first pages."""
    shape = PageShape(1, 1, 10, pages_per_stream=5)
    positions = np.array([15, 31, 47, -1, -1, 15, 18, -1, -1, -1], np.int32)
    seen = dataclasses.replace(observation(shape, 7), page_positions=positions, position=47)
    policy = make("anchor+recent", shape, dict(sink_tokens=16, recent_tokens=3))
    policy.update(seen)
    assert np.flatnonzero(policy.members[0].pins).tolist() == [0, 5, 6], "page 6 may have begun before position 16"
    assert np.flatnonzero(policy.members[1].pins).tolist() == [2, 6]
    assert np.flatnonzero(policy.pins).tolist() == [0, 2, 5, 6]


def test_random_is_seeded_and_stays():
    one, same, other = (make("random", SHAPE, dict(seed=seed)) for seed in (1, 1, 2))
    for policy in (one, same, other):
        policy.update(observation(SHAPE, 10))
    before = one.scores.copy()
    np.testing.assert_array_equal(before, same.scores)
    assert (before != other.scores).any()
    assert 0 <= before.min() and before.max() <= 2 / 10 and before.mean() == pytest.approx(1 / 10, rel=0.3)
    one.forget(np.array([3]))
    one.update(observation(SHAPE, 10))
    assert (np.flatnonzero((one.scores != before).any(axis=(0, 1))) == [3]).all()


def test_composition():
    rng = np.random.default_rng(0)
    parts = [make(name, SHAPE) for name in ("ema", "lru")]
    both = make("ema + lru+anchor+recent", SHAPE)
    for _ in range(4):
        seen = observation(SHAPE, 9, masses(rng))
        for policy in (*parts, both):
            policy.update(seen)
    np.testing.assert_allclose(both.scores[:, :, :9], (parts[0].scores + parts[1].scores)[:, :, :9], rtol=1e-6)
    assert np.flatnonzero(both.pins).tolist() == [0, 5, 6, 7, 8]


@pytest.mark.parametrize("spec", [*POLICIES, "ema+anchor+recent", "ema+lru", "random+recent"])
def test_every_policy(spec: str):
    """The policy matrix: scores stay finite and not negative on the pages in use, and what is forgotten is forgotten."""
    rng = np.random.default_rng(0)
    policy = make(spec, SHAPE)
    norms = np.ones(SHAPE.axes, np.float32)
    for n_used in (0, 1, 4, 10, 6, 10):
        policy.update(dataclasses.replace(observation(SHAPE, n_used, masses(rng)), key_norms=norms, n_budget=n_used // 2))
        if policy.scores is not None:
            assert policy.scores.dtype == np.float32 and policy.scores.shape == SHAPE.axes
            assert np.isfinite(policy.scores).all() and (policy.scores >= 0).all()
        if policy.pins is not None:
            assert policy.pins.dtype == bool and not policy.pins[n_used:].any()
    policy.forget(np.array([2, 5]))
    if policy.scores is not None:
        assert not policy.scores[:, :, [2, 5]].any() and policy.scores.any()
    if spec == "none":
        assert policy.scores is None and policy.pins is None


@pytest.mark.parametrize("spec, said", [
    ("emma", "no policy 'emma'.*ema, ema-any, anchor"), ("ema+", "no policy ''"), ("ema+ema(alpha=0.2)", "twice"),
    ("ema(alpha=0.2", "brackets in the wrong place"), ("ema(alpha=0.2)lru", "brackets"), ("ema((alpha=0.2))", "brackets"),
    ("ema(alfa=0.2)", "'alfa=0.2' is not a setting.*one of alpha$"),
    ("hierarchical(alfa=0.2)", "'alfa=0.2' is not a setting.*one of access_mass, window_tokens"),
    ("none(a=1)", "there is no setting here"), ("ema(alpha)", "'alpha' is not a setting"),
    ("anchor()", "'' is not a setting"), ("ema(alpha=x)", "alpha is 'x'; it must be a number"),
    ("random(seed=0.5)", "seed is '0.5'; it must be a whole number"),
    ("ema(alpha=2)", "alpha is 2.0; it must be above 0")])
def test_mistakes(spec: str, said: str):
    with pytest.raises(ConfigError, match=said):
        make(spec, SHAPE)


@pytest.mark.parametrize("wrong", [
    {"alpha": 0.0}, {"alpha": 1.5}, {"sink_tokens": -1}, {"recent_tokens": -1}, {"n_window": 0}, {"kernel_tokens": 0},
    {"kernel_tokens": 4}, {"window_tokens": 0}, {"n_top": 0}, {"random_share": 1.1}, {"random_share": -0.1}])
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        make("ema+anchor+recent+lru+random+nacl+hierarchical", SHAPE, wrong)


# ---- each policy against a plain loop -------------------------------------------------------------------------------------------


def growing(shape: PageShape = SMALL, n_steps: int = 60, prompt: int = 40, seed: int = 3, n_budget: int = 4) -> Iterator[Observation]:
    """A prompt that is not observed, then a token in each step, each page of `page_tokens` filling up."""
    rng = np.random.default_rng(seed)
    norms = rng.gamma(9, 1, shape.axes).astype(np.float32)
    for n_tokens in (prompt, *range(prompt + 1, prompt + n_steps + 1)):
        end = -(-n_tokens // shape.page_tokens)
        positions = np.full(shape.n_pages, -1, np.int32)
        positions[:end] = np.minimum((np.arange(end) + 1) * shape.page_tokens, n_tokens) - 1
        mass = np.zeros(shape.axes, np.float32)
        observed = n_tokens > prompt
        if observed:
            mass[:, :, :end] = rng.gamma(0.2, 1, (*shape.axes[:2], end)) + 1e-6
            mass /= mass.sum(axis=2, keepdims=True)
        yield Observation(mass, mass / 2, 1 if observed else prompt, observed, np.array([end - 1]), positions, n_tokens - 1, end, n_budget,
                          np.where(positions >= 0, norms, np.float32(0)))


def check(name: str, expected: Callable[[Observation], np.ndarray], settings: dict | None = None, shape: PageShape = SMALL,
          **options: int) -> Policy:
    """`expected` is called with each observed step, and says what the scores then are: float [row, head, :n_used_end]."""
    policy = make(name, shape, settings)
    for seen in growing(shape, **options):
        policy.update(seen)
        if seen.observed:
            np.testing.assert_allclose(policy.scores[:, :, : seen.n_used_end], expected(seen), rtol=2e-5, atol=1e-9)
    return policy


def heads(shape: PageShape = SMALL) -> Iterator[tuple[int, int]]:
    return np.ndindex(shape.axes[:2])


def plain_age(seen: Observation, page: int) -> float:
    return (seen.page_positions.max() - seen.page_positions[page]) / SMALL.page_tokens


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
            for page in inside:
                in_queue = 1 if page in head.small else 2 + head.hits[page]
                assert scores[page] == pytest.approx(in_queue + 1 / (1 + now - head.entered[page]), rel=1e-4), (now, at, page)


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


def test_streaming():
    def expected(seen):
        worth = [1 / (1 + plain_age(seen, page)) if page >= 2 else 1024.0 for page in range(seen.n_used_end)]
        return np.broadcast_to(worth, (2, 3, seen.n_used_end))

    policy = check("streaming", expected, dict(sink_tokens=5))
    assert policy.split is Split.UNIFORM and policy.most(7) == 7
    kept = np.argsort(-policy.scores[0, 0])[:6]
    assert sorted(kept) == [0, 1, 21, 22, 23, 24], "the sinks, and the window is what the budget leaves"


def test_streaming_288():
    policy = make("streaming-288+anchor+recent", PageShape(1, 1, 40))
    assert policy.most(100) == 18 and policy.most(12) == 12
    policy.update(observation(policy.shape, 40))
    assert sorted(np.argsort(-policy.scores[0, 0])[:18]) == [0, 1, *range(24, 40)]
    assert make("streaming-288", PageShape(1, 1, 40, page_tokens=64)).most(100) == 1 + 4
    assert make("ema+streaming-288", PageShape(1, 1, 40)).most(100) == 100 and make("anchor", PageShape(1, 1, 40)).most(100) == 100


def test_h2o():
    total, n = np.zeros(SMALL.axes), 0

    def expected(seen):
        nonlocal n, total
        n, total = n + 1, total + seen.mass_sum
        return total[:, :, : seen.n_used_end] / n

    policy = check("h2o", expected, n_budget=6)
    assert np.flatnonzero(policy.pins).tolist() == [22, 23, 24], "half of the budget for the newest"
    policy = check("h2o", lambda seen: policy.scores[:, :, : seen.n_used_end], dict(recent_tokens=5), n_budget=0, n_steps=0)
    assert np.flatnonzero(policy.pins).tolist() == [8, 9], "no budget is known"


def test_tova():
    shape = PageShape(2, 3, 25, page_tokens=4, exists=np.array([[True, True, True], [True, True, False]]))

    def expected(seen):
        mean = np.zeros((2, 3, seen.n_used_end))
        for row, head in np.argwhere(shape.exists):
            others = np.flatnonzero(shape.exists[row])
            mean[row, head] = seen.mass_sum[row, others, : seen.n_used_end].sum(axis=0) / len(others)
        return mean

    policy = make("tova", shape)
    for seen in growing(shape):
        seen.mass_sum[~shape.exists] = 0
        policy.update(seen)
        if seen.observed:
            np.testing.assert_allclose(policy.scores[:, :, : seen.n_used_end], expected(seen), rtol=1e-5)


def plain_snapkv(n_window: int, kernel: int):
    """Token by token: each page's mass spread evenly over its tokens, and averaged by the kernel."""
    window, n, reach, size = np.zeros(SMALL.axes), 0, kernel // 2, SMALL.page_tokens
    frozen = np.zeros(SMALL.axes)

    def expected(seen):
        nonlocal n, window
        if n < n_window:
            n, window = n + 1, window + seen.mass_sum
            judge(seen.n_used_end)
        worth = frozen[:, :, : seen.n_used_end].copy()
        for page in range(seen.n_used_end):
            if seen.page_positions[page] >= 40:  # the prompt's length
                worth[:, :, page] += 1024 * (1 + 1 / (1 + plain_age(seen, page)))
        return worth

    def judge(end):
        tokens = np.repeat(window[:, :, :end] / n / size, size, axis=2)
        padded = np.pad(tokens, ((0, 0), (0, 0), (reach, reach)))
        pooled = sum(padded[:, :, k : k + tokens.shape[2]] for k in range(kernel)) / kernel
        frozen[:, :, :end] = pooled.reshape(2, 3, end, size).sum(axis=3)

    return expected


@pytest.mark.parametrize("kernel", [1, 5, 9])
@pytest.mark.parametrize("name, split", [("snapkv", Split.UNIFORM), ("pyramidkv", Split.PYRAMID), ("adakv", Split.LAYER)])
def test_snapkv(name: str, split: Split, kernel: int):
    policy = check(name, plain_snapkv(8, kernel), dict(n_window=8, kernel_tokens=kernel))
    assert policy.split is split and make(f"{name}+anchor+recent", SMALL).split is split


def test_snapkv_begins_anew_with_a_prompt():
    policy = make("snapkv", SMALL, dict(n_window=2, kernel_tokens=1))
    mass = masses(np.random.default_rng(0), SMALL)

    def step(n_used: int, mass: np.ndarray, **changes: object) -> np.ndarray:
        policy.update(dataclasses.replace(observation(SMALL, n_used, mass), **changes))
        return policy.scores[0, 0].copy()

    step(10, mass)
    step(10, mass)
    frozen = step(11, 0 * mass)
    np.testing.assert_allclose(frozen[:9], mass[0, 0, :9], rtol=1e-6)
    assert (step(11, np.ones(SMALL.axes), observed=False, n_tokens=16) == frozen).all(), "no prompt: few tokens"
    assert (step(11, np.ones(SMALL.axes), n_tokens=20) == frozen).all(), "several queries at once are no prompt"
    assert (step(20, mass, observed=False, n_tokens=36) == frozen).all(), "a prompt teaches nothing itself"
    anew = step(20, 5 * mass, n_tokens=5)
    np.testing.assert_allclose(anew[:18], mass[0, 0, :18], rtol=1e-6)
    assert (anew[18:20] > 1024).all(), "5 tokens are newer: they begin in page 18"
    assert (step(20, 0 * mass) == anew).all(), "the window had 2 tokens, and has seen 5"


def test_snapkv_pools_within_a_stream():
    shape = PageShape(1, 1, 8, page_tokens=4, pages_per_stream=4)
    positions = np.array([3, 7, 11, -1, 3, 7, -1, -1], np.int32)
    mass = np.zeros(shape.axes, np.float32)
    mass[0, 0, [2, 4]] = 1
    policy = make("snapkv", shape, dict(n_window=1))
    policy.update(dataclasses.replace(observation(shape, 6, mass), page_positions=positions, position=11, n_tokens=20, observed=False))
    policy.update(dataclasses.replace(observation(shape, 6, mass), page_positions=positions, position=11))
    edge = 3 / (5 * 4)
    newer = [1024 * 2 if page in (2, 5) else 0 for page in range(8)]
    np.testing.assert_allclose(policy.scores[0, 0], np.add(newer, [0, edge, 1 - 2 * edge, 0, 1 - 2 * edge, edge, 0, 0]), rtol=1e-6)


def test_a_kernel_wider_than_pages():
    with pytest.raises(ConfigError, match="kernel_tokens is 11; it may be at most 9"):
        make("snapkv", SMALL, dict(kernel_tokens=11))


def test_nacl():
    settings = dict(n_window=8, random_share=0.5, seed=7)
    window, n = np.zeros(SMALL.axes), 0
    drawn = np.random.default_rng(7).standard_exponential(SMALL.axes, np.float32)

    def expected(seen):
        nonlocal n, window
        end, first = seen.n_used_end, n == 0
        if n < 8:
            n, window = n + 1, window + seen.mass_sum
            expected.end = end
        p = window / n
        worth = np.zeros((2, 3, end))
        for at in heads():
            best = sorted(range(expected.end), key=lambda page: -p[at][page])[:2]
            for page in range(expected.end):
                q = math.exp(p[at][page]) / drawn[at][page]
                worth[at][page] = 1 + p[at][page] if page in best else q / (1 + q)
        for page in range(end):
            if seen.page_positions[page] >= 40:
                worth[:, :, page] += 1024 * (1 + 1 / (1 + plain_age(seen, page)))
        assert first or n > 1
        return worth

    check("nacl", expected, settings)
    other, same, one = (make("nacl", SMALL, dict(n_window=8, random_share=0.5, seed=seed)) for seen, seed in zip(range(3), (8, 7, 7)))
    for seen in growing():
        for policy in (other, same, one):
            policy.update(seen)
    assert (one.scores == same.scores).all() and (one.scores != other.scores).any()


def test_nacl_draws_by_weight():
    """The best half of the budget is sure; of the others each is drawn about as often as e^p says: almost evenly."""
    shape, mass = PageShape(40, 50, 20), np.zeros((40, 50, 20), np.float32)
    mass[:, :, :4] = [0.4, 0.3, 0.2, 0.1]
    policy = make("nacl", shape, dict(n_window=1, random_share=0.5))
    policy.update(dataclasses.replace(observation(shape, 19, mass), n_budget=6))
    taken = np.argsort(-policy.scores[:, :, :18], axis=2)[:, :, :6]
    often = np.bincount(taken.reshape(-1), minlength=18) / 2000
    assert (often[:3] == 1).all()
    assert often[4:].std() < 0.02 and often[4:].mean() == pytest.approx(3 / 15, abs=0.01)


def test_hierarchical():
    level, last, count = np.zeros(SMALL.axes, int), np.zeros(SMALL.axes, int), np.zeros(SMALL.axes, int)
    n = 0

    def expected(seen):
        nonlocal n
        n += 1
        for at in heads():
            best = sorted(range(seen.n_used_end), key=lambda page: -seen.mass_sum[at][page])[:8]
            count[at][best] += 1
        if n % 20 == 0:
            for at in np.ndindex(SMALL.axes):
                wanted = 3 if count[at] >= 10 else 2 if count[at] >= 5 else 1 if count[at] >= 1 else 0
                level[at] += np.sign(wanted - level[at])
                last[at], count[at] = count[at], 0
        most = np.maximum(last, count)
        return (0.01 / 4 * (level + most / (most + 20)))[:, :, : seen.n_used_end]

    policy = check("hierarchical", expected, dict(window_tokens=20, n_top=8), n_steps=80, prompt=6)
    assert len(np.unique(policy.scores * 400 // 1)) == 4, "all levels occur"


def test_morphkv():
    recent: list[np.ndarray] = []

    def expected(seen):
        recent.append(seen.mass_sum)
        # chunks of 2 tokens: the window of 16 has 15 tokens while a chunk begins
        n = len(recent)
        window = recent[max(0, n - (16 if n % 2 == 0 else 15)) :]
        return np.mean(window, axis=0)[:, :, : seen.n_used_end]

    policy = check("morphkv", expected, dict(n_window=16))
    assert np.flatnonzero(policy.pins).tolist() == [21, 22, 23, 24]


def test_morphkv_with_steps_of_many_tokens():
    """Live, where 16 tokens come at once, the window of 32 has two steps."""
    rng = np.random.default_rng(0)
    policy = make("morphkv", SMALL)
    steps = [16 * masses(rng, SMALL) for _ in range(5)]
    for n, mass in enumerate(steps):
        policy.update(observation(SMALL, 25, mass, n_tokens=16))
        window = steps[max(0, n - 1) : n + 1]
        np.testing.assert_allclose(policy.scores, sum(window) / (16 * len(window)), rtol=1e-5)


class PlainTreeKv:
    """One head, one comparison at a time."""

    def __init__(self):
        self.kept: list[int] = []
        self.hand = 0

    def add(self, page: int) -> None:
        self.kept.append(page)

    def shrink(self, capacity: int, worth: np.ndarray) -> None:
        while len(self.kept) > capacity:
            if self.hand + 1 >= len(self.kept):
                self.hand = 0
            left, right = self.kept[self.hand : self.hand + 2]
            self.kept.remove(left if worth[left] <= worth[right] else right)
            self.hand += 1


@pytest.mark.parametrize("n_budget, prompt", [(5, 4), (9, 4), (3, 40), (2, 40), (1, 10), (8, 61)])
def test_treekv(n_budget: int, prompt: int):
    shape = PageShape(2, 3, 40, page_tokens=4)
    plain = {at: PlainTreeKv() for at in heads(shape)}
    total, n_tokens, known = np.zeros(shape.axes), np.zeros(40), 0

    def expected(seen):
        nonlocal total, known
        end = seen.n_used_end
        total = total + seen.mass_sum
        n_tokens[:end] += 1
        means = (total[:, :, :end].astype(np.float32) * (1 / n_tokens[:end]).astype(np.float32))
        worth = np.zeros((2, 3, end))
        for at in heads(shape):
            for page in range(known, end - 1):
                plain[at].add(page)
            plain[at].shrink(max(1, n_budget - 1), means[at])
            worth[at][plain[at].kept] = means[at][plain[at].kept] + 1e-12
            worth[at][end - 1] = 1024
        known = end - 1
        return worth

    policy = check("treekv", expected, shape=shape, n_budget=n_budget, prompt=prompt, n_steps=90)
    assert (np.count_nonzero(policy.scores, axis=2) == max(2, n_budget)).all()


def test_treekv_is_sparse_at_the_beginning():
    """With even attention the kept pages get denser towards the end."""
    shape = PageShape(1, 1, 400)
    policy = make("treekv", shape)
    rng = np.random.default_rng(0)
    for n_used in range(1, 401):
        policy.update(dataclasses.replace(observation(shape, n_used, rng.random(shape.axes)), n_budget=48))
    kept = np.flatnonzero(policy.scores[0, 0])
    assert len(kept) == 48
    quarters = np.histogram(kept, bins=4, range=(0, 400))[0]
    assert quarters[0] < quarters[3] / 2 and quarters[0] >= 1


def test_treekv_forgets():
    policy = make("treekv", SMALL)
    for n, seen in enumerate(growing()):
        if n == 30:
            policy.forget(np.array([3, 4, 9]))
            assert not policy.scores[:, :, [3, 4, 9]].any()
        policy.update(seen)
        assert (np.count_nonzero(policy.scores, axis=2) <= 4).all()


def test_ema_any():
    score = np.zeros((2, 1, 25))

    def expected(seen):
        nonlocal score
        score = 0.1 * seen.mass_sum.max(axis=1, keepdims=True) + 0.9 * score
        return np.broadcast_to(score, SMALL.axes)[:, :, : seen.n_used_end]

    check("ema-any", expected)


def test_knorm():
    policy = check("knorm", lambda seen: 1 / seen.key_norms[:, :, : seen.n_used_end])
    assert policy.needs_keys and make("knorm+recent", SMALL).needs_keys and not make("ema", SMALL).needs_keys
    with pytest.raises(ConfigError, match="knorm needs the norms"):
        policy.update(dataclasses.replace(observation(SMALL, 10), key_norms=None))


def test_oracle():
    policy = check("oracle", lambda seen: seen.mass_sum[:, :, : seen.n_used_end])
    assert policy.clairvoyant and make("oracle+anchor", SMALL).clairvoyant
    for spec in ("oracle", "ema+oracle", "anchor+ oracle"):
        with pytest.raises(ConfigError, match="only `edgekv sim` can run it"):
            check_live(spec)
    for name in set(POLICIES) - {"oracle"}:
        check_live(name)
    with pytest.raises(ConfigError, match="no policy 'oracles'"):
        check_live("oracles")


# ---- the matrix -----------------------------------------------------------------------------------------------------------------


BY_POSITION = {"streaming", "streaming-288", "knorm"}
"""They look at no attention: what is stored teaches them, observed or not."""


@pytest.mark.parametrize("name", POLICIES)
def test_unobserved_steps(name: str):
    """They teach nothing, but to policies that look at no attention."""
    policy = make(name, SMALL)
    for seen in growing(n_steps=20):
        policy.update(seen)
    if policy.scores is None:
        return
    before = policy.scores.copy()
    unobserved = dataclasses.replace(seen, observed=False, n_tokens=100, mass_sum=seen.mass_sum + 1, mass_max=seen.mass_max + 1)
    policy.update(unobserved)
    np.testing.assert_array_equal(policy.scores, before)
    policy.update(dataclasses.replace(unobserved, page_positions=np.arange(3, 103, 4, dtype=np.int32), n_used_end=25,
                                      key_norms=np.ones(SMALL.axes, np.float32)))
    assert (policy.scores != before).any() == (name in BY_POSITION | {"random"})


@pytest.mark.parametrize("name", POLICIES)
def test_same_steps_same_scores(name: str):
    policies = [make(name, SMALL) for _ in range(2)]
    for seen in growing():
        for policy in policies:
            policy.update(seen)
    one, other = policies
    if one.scores is not None:
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.scores.any()
    np.testing.assert_array_equal(one.pins, other.pins)


@pytest.mark.parametrize("name", POLICIES)
def test_empty_pages_are_worth_nothing(name: str):
    """Two streams, of which the first is shorter: its empty pages lie before those in use. Then it is cut."""
    shape = PageShape(2, 3, 20, page_tokens=4, pages_per_stream=10)
    rng = np.random.default_rng(0)
    policy = make(name, shape)
    lengths = np.array([13, 30])
    for step in range(30):
        if step == 20:
            lengths[0] = 5
            policy.forget(np.arange(1, 10))
        positions = np.full((2, 10), -1, np.int32)
        for stream, n_tokens in enumerate(lengths):
            end = -(-n_tokens // 4)
            positions[stream, :end] = np.minimum((np.arange(end) + 1) * 4, n_tokens) - 1
        positions = positions.reshape(-1)
        end = int(np.flatnonzero(positions >= 0)[-1]) + 1
        mass = np.where(positions >= 0, masses(rng, shape), 0).astype(np.float32)
        norms = np.where(positions >= 0, np.float32(3), np.float32(0)) + np.zeros(shape.axes, np.float32)
        policy.update(Observation(mass, mass, 1 if step else 30, step > 0, np.array([end - 1]), positions, int(lengths.max()) - 1, end,
                                  4, norms))
        lengths[step % 2] += step % 3 == 0
        if policy.scores is not None:
            assert not policy.scores[:, :, positions < 0].any() and np.isfinite(policy.scores).all() and (policy.scores >= 0).all()
        if policy.pins is not None:
            assert not np.broadcast_to(policy.pins, shape.axes)[:, :, positions < 0].any()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_composes(name: str):
    other = "lru" if name != "lru" else "ema"
    pins = "recent" if name != "recent" else "anchor"
    alone, beside, both = make(name, SMALL), make(other, SMALL), make(f"{name}+{other}+{pins}", SMALL)
    given = np.zeros(SMALL.axes, np.float32)
    into = make(f"{name}+{pins}", SMALL, scores=given)
    for seen in growing(n_steps=30):
        for policy in (alone, beside, both, into):
            policy.update(seen)
    scores = 0 if alone.scores is None else alone.scores
    end = seen.n_used_end
    np.testing.assert_allclose(both.scores[:, :, :end], (scores + beside.scores)[:, :, :end], rtol=1e-6)
    if alone.scores is not None:
        assert into.scores is given
        np.testing.assert_array_equal(given, alone.scores)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_on_a_device(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """The same scores and pins, by strict arrays, and nothing waits for the device."""
    device = fake_cupy.Device()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(emulated_kernels, device))
    ops = cupy_ops.CupyOps(0, 0, 13000)
    here, there = make(name, SMALL), make(name, SMALL, ops=ops)
    for n, seen in enumerate(growing()):
        here.update(seen)
        with ops:
            arrays = {field: ops.upload(getattr(seen, field)) for field in ("mass_sum", "mass_max", "key_norms")}
            there.update(dataclasses.replace(seen, **arrays))
        assert device.n_downloads == 0
        if n == 40:
            here.forget(np.array([2, 5]))
            with ops:
                there.forget(np.array([2, 5]))
    np.testing.assert_array_equal(here.pins, there.pins)
    if here.scores is not None:
        np.testing.assert_allclose(ops.download(there.scores), here.scores, rtol=1e-6)


# ---- names, settings and the list -----------------------------------------------------------------------------------------------


def test_parts_have_settings_of_their_own():
    shape = PageShape(1, 1, 4)
    policy = make("ema(alpha=0.5) + hierarchical( access_mass = 2e-1, n_top=3 )+anchor+recent", shape,
                  dict(alpha=0.25, recent_tokens=16, n_top=9))
    assert [dataclasses.asdict(member.settings) for member in policy.members] == [
        {"alpha": 0.5}, {"access_mass": 0.2, "window_tokens": 40, "n_top": 3}, {"sink_tokens": 16}, {"recent_tokens": 16}]
    assert make("ema", shape, {"alpha": 0.25, "n_top": 9}).members[0].settings.alpha == 0.25
    assert setting_kinds(POLICIES.get("lru")) == {"access_mass": float} and setting_kinds()["seed"] is int
    assert [kind.__name__ for kind in kinds("ema(alpha=1e+0)+recent(recent_tokens=+3)")] == ["Ema", "Recent"]
    policy.update(observation(shape, 4, np.full(shape.axes, 0.25)))
    assert policy.members[0].scores[0, 0, 0] == pytest.approx(0.125) and np.flatnonzero(policy.pins).tolist() == [0, 3]


def test_every_entry_has_a_description_and_a_source():
    for registry in (POLICIES, PREFETCHERS, SPLITS):
        for name in registry:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
            assert registry.describe(name) and registry.source(name), name


@pytest.mark.parametrize("output", ["table", "json", "csv", "md"])
def test_the_list_has_them_all(output: str):
    result = CliRunner().invoke(cli, ["policies", "-o", output])
    assert result.exit_code == 0, result.output
    for kind, registry in (("policy", POLICIES), ("prefetch", PREFETCHERS), ("budget", SPLITS)):
        for name in registry:
            assert any(kind in line and re.search(rf"(?<![\w-]){name}(?![\w-])", line) for line in _records(result.output, output)), name
            assert registry.source(name) in result.output


def _records(text: str, output: str) -> list[str]:
    return [str(row) for row in json.loads(text)] if output == "json" else text.splitlines()


def test_the_list_of_one_kind():
    rows = json.loads(CliRunner().invoke(cli, ["policies", "--kind", "budget", "-o", "json"]).output)
    assert [row["name"] for row in rows] == list(SPLITS) and {row["kind"] for row in rows} == {"budget"}
    assert all(row["description"] and row["source"] for row in rows)
