"""Policies that look at what the end of a prompt attends, each against a plain loop."""

import math

import numpy as np
import pytest
from msgspec import structs
from support.scores import SMALL, check, growing, heads, masses, plain_age
from support.tiers import observation

from edgekv.arrays.ops import Ops
from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.shape import PageShape
from edgekv.policies import make
from edgekv.policies.window import PromptWindow


def plain_snapkv(n_window: int, kernel: int):
    """Each page's mass spreads evenly over its tokens, and the kernel averages token by token."""
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
        policy.update(structs.replace(observation(SMALL, n_used, mass), **changes))
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


@pytest.mark.parametrize(("runs", "window"), [
    ([(128, 16, True)] * 4, [3]),  # of each long part the last 16 tokens
    ([(128, 16, True)] * 4 + [(1, 1, False)] * 40, [3, *range(4, 20)]),  # and the answer's first, until there are 32
    ([(128, 16, True), (10, 10, True), (1, 1, False)], [0, 1, 2]),  # a short part counts as a whole, behind the tokens before it
    ([(128, 16, True)] + [(16, 16, True)] * 3 + [(1, 1, False)] * 40, [2, 3]),
    ([(128, 16, True)] + [(1, 1, False)] * 40 + [(10, 10, True)] + [(1, 1, False)] * 40, [*range(41, 64)]),  # the next prompt, a short one
    ([(128, 16, True)] + [(1, 1, False)] * 3 + [(10, 10, True)], [4]),  # before the window was full
    ([(128, 0, True), (128, 0, True), (8, 8, False), (1, 1, False)], [2, 3]),  # an unobserved one
    ([(128, 16, True), (10, 0, True), (1, 1, False)], [2]),
])
def test_the_window_is_the_end_of_the_newest_prompt(runs: list[tuple[int, int, bool]], window: list[int]):
    """`runs`: tokens of each run, how many of them were observed, whether they are a prompt's. `window`: the runs that add up. Each run has
    its own page."""
    shape = PageShape(1, 1, 128, page_tokens=4)
    of, position = PromptWindow(shape, 32, Ops()), -1
    for at, (n, n_observed, in_prompt) in enumerate(runs):
        position += n
        mass = np.zeros(shape.axes, np.float32)
        mass[0, 0, at] = 1 if n_observed else 0
        seen = observation(shape, 127, mass, n_tokens=n_observed or n, observed=n_observed > 0)
        of.take(structs.replace(seen, in_prompt=in_prompt, n_unobserved=n - n_observed if n_observed else 0))
    assert np.flatnonzero(of.mass[0, 0]).tolist() == window


def test_snapkv_pools_within_a_stream():
    shape = PageShape(1, 1, 8, page_tokens=4, pages_per_stream=4)
    positions = np.array([3, 7, 11, -1, 3, 7, -1, -1], np.int32)
    mass = np.zeros(shape.axes, np.float32)
    mass[0, 0, [2, 4]] = 1
    policy = make("snapkv", shape, dict(n_window=1))
    policy.update(structs.replace(observation(shape, 6, mass), page_positions=positions, position=11, n_tokens=20, observed=False))
    policy.update(structs.replace(observation(shape, 6, mass), page_positions=positions, position=11))
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
    policy.update(structs.replace(observation(shape, 19, mass), n_budget=6))
    taken = np.argsort(-policy.scores[:, :, :18], axis=2)[:, :, :6]
    often = np.bincount(taken.reshape(-1), minlength=18) / 2000
    assert (often[:3] == 1).all()
    assert often[4:].std() < 0.02 and often[4:].mean() == pytest.approx(3 / 15, abs=0.01)
