"""What holds for every policy: unobserved steps, the same scores again, empty pages, composition, a device."""

import numpy as np
import pytest
from msgspec import structs
from support.scores import SMALL, growing, masses

from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, make

BY_POSITION = {"streaming", "streaming-288"}
"""These policies look at no attention: every stored token teaches them, observed or not."""


@pytest.mark.parametrize("name", POLICIES)
def test_unobserved_steps(name: str):
    """An unobserved step teaches nothing but to policies that look at no attention."""
    policy = make(name, SMALL)
    for seen in growing(n_steps=20):
        policy.update(seen)
    if policy.scores is None:
        return
    before = policy.scores.copy()
    unobserved = structs.replace(seen, observed=False, n_tokens=100, mass_sum=seen.mass_sum + 1, mass_max=seen.mass_max + 1)
    policy.update(unobserved)
    np.testing.assert_array_equal(policy.scores, before)
    policy.update(structs.replace(unobserved, page_positions=np.arange(3, 103, 4, dtype=np.int32), n_used_end=25))
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
        policy.update(Observation(mass, mass, 1 if step else 30, step > 0, np.array([end - 1]), positions, int(lengths.max()) - 1, end,
                                  4))
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
