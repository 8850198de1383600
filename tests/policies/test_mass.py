"""Policies by attention mass and by position, each against a plain loop."""

import numpy as np
import pytest
from msgspec import structs
from support.scores import SMALL, check, growing, heads, masses, plain_age
from support.tiers import observation

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, check_live, make


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


def test_streams_share_the_newest_half_of_h2o():
    """Evenly, those that have tokens; a page is 4 of them."""
    shape = PageShape(1, 1, 20, page_tokens=4, pages_per_stream=10)
    for n_second, pinned in ((0, [6, 7, 8, 9]), (10, [8, 9, 18, 19])):
        policy = make("h2o", shape)
        one = np.arange(3, 43, 4)
        positions = np.concatenate([one, np.where(np.arange(10) < n_second, one, -1)]).astype(np.int32)
        policy.update(structs.replace(observation(shape, 20), page_positions=positions, n_budget=8))
        assert np.flatnonzero(policy.pins).tolist() == pinned


def test_lfu():
    counts, n = np.zeros(SMALL.axes), 0

    def expected(seen):
        nonlocal n
        n += 1
        for at in np.ndindex(SMALL.axes):
            counts[at] += seen.mass_sum[at] > np.float32(0.1)
        return 0.1 * counts[:, :, : seen.n_used_end] / n

    check("lfu", expected, dict(access_mass=0.1))


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


def test_ema_any():
    score = np.zeros((2, 1, 25))

    def expected(seen):
        nonlocal score
        score = 0.1 * seen.mass_sum.max(axis=1, keepdims=True) + 0.9 * score
        return np.broadcast_to(score, SMALL.axes)[:, :, : seen.n_used_end]

    check("ema-any", expected)


def test_oracle():
    policy = check("oracle", lambda seen: seen.mass_sum[:, :, : seen.n_used_end])
    assert policy.clairvoyant and make("oracle+anchor", SMALL).clairvoyant
    for spec in ("oracle", "ema+oracle", "anchor+ oracle"):
        with pytest.raises(ConfigError, match="only `edgekv lab sim` can run it"):
            check_live(spec)
    for name in set(POLICIES) - {"oracle"}:
        check_live(name)
    with pytest.raises(ConfigError, match="no policy 'oracles'"):
        check_live("oracles")
