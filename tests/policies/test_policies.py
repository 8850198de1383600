"""The policies of the default and their parts, their names and settings, and the list of them."""

import dataclasses
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs
from support.scores import SHAPE, masses
from support.tiers import observation

from edgekv.arrays.moving_average import BLOCK, ema, scratch_elements, weights
from edgekv.cli.main import cli
from edgekv.common.errors import ConfigError
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, kinds, make, setting_kinds
from edgekv.tiering.budgets import SPLITS
from edgekv.tiering.prefetch import PREFETCHERS


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
    seen = structs.replace(observation(shape, 7), page_positions=positions, position=47)
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
