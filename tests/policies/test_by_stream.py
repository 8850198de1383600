"""Each stream has a policy of its own: it is as if the stream were alone."""

from itertools import zip_longest

import numpy as np
import pytest
from msgspec import structs
from support.scores import SMALL, growing

from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, make

SHAPE = PageShape(SMALL.n_layers, SMALL.n_heads, 2 * SMALL.n_pages, SMALL.page_tokens, SMALL.n_pages)


def together(runs: list[Observation | None], before: np.ndarray) -> Observation:
    """One run with the tokens of these of each stream. before: the positions so far, for streams without tokens."""
    n, none = SMALL.n_pages, np.zeros(SMALL.axes, np.float32)
    positions = np.concatenate([before[i * n : (i + 1) * n] if run is None else run.page_positions for i, run in enumerate(runs)])
    there = [(i, run) for i, run in enumerate(runs) if run is not None]
    tokens = np.array([[0, 0, 0] if run is None else [run.n_tokens, run.n_tokens if run.observed else 0, 0] for run in runs], np.int32)
    mass = np.concatenate([none if run is None else run.mass_sum for run in runs], axis=2)
    return Observation(mass, mass / 2, int(tokens[:, 0].sum()), any(run.observed for _, run in there),
                       np.concatenate([run.changed + i * n for i, run in there]), positions, max(run.position for _, run in there),
                       int(np.flatnonzero(positions >= 0)[-1]) + 1, 4, streams=tokens)


@pytest.mark.parametrize("name", [*POLICIES, "ema+anchor+recent", "snapkv+lru+recent"])
def test_streams_are_as_each_alone(name: str):
    """One of them has tokens in every other run only, and pages of the other are forgotten."""
    scores = np.zeros(SHAPE.axes, np.float32)
    both, alone = make(name, SHAPE, {"recent_tokens": 9}, scores=scores, by_stream=True), [make(name, SMALL, {"recent_tokens": 9}) for _ in range(2)]
    first, second = growing(n_steps=30, seed=1), growing(n_steps=15, prompt=20, seed=2)
    late = (run for pair in zip(second, iter(lambda: None, 0)) for run in pair)
    positions = np.full(SHAPE.n_pages, -1, np.int32)
    for step, runs in enumerate(zip_longest(first, late)):
        if not any(runs):
            break
        run = together(list(runs), positions)
        positions = run.page_positions
        both.update(run)
        for policy, mine in zip(alone, runs):
            if mine is not None:
                policy.update(mine)
        if step == 20:
            both.forget(np.array([1, SMALL.n_pages + 2])), alone[0].forget(np.array([1])), alone[1].forget(np.array([2]))
        for stream, policy in enumerate(alone):
            part = slice(stream * SMALL.n_pages, (stream + 1) * SMALL.n_pages)
            if policy.scores is None:
                assert both.scores is None
            else:
                assert both.scores is scores
                np.testing.assert_array_equal(scores[:, :, part], policy.scores)
            if policy.pins is None:
                assert both.pins is None or not both.pins[..., part].any()
            else:
                np.testing.assert_array_equal(np.broadcast_to(both.pins, SHAPE.axes)[:, :, part], np.broadcast_to(policy.pins, SMALL.axes))
    assert (both.split, both.adds_up, both.sinks, both.most(7)) == (alone[0].split, alone[0].adds_up, alone[0].sinks, alone[0].most(7))


@pytest.mark.parametrize("name", [*POLICIES, "ema+anchor+recent", "snapkv+lru+recent"])
def test_a_copy_decides_as_its_source(name: str):
    """A stream takes over another's state in place of its own; then both have the same tokens, and the same pages are forgotten. At last the source goes
    on alone: what it learns is its own."""
    scores = np.zeros(SHAPE.axes, np.float32)
    both = make(name, SHAPE, {"recent_tokens": 9}, scores=scores, by_stream=True)
    parts = [slice(0, SMALL.n_pages), slice(SMALL.n_pages, SHAPE.n_pages)]
    positions = np.full(SHAPE.n_pages, -1, np.int32)

    def step(*runs: Observation | None) -> None:
        nonlocal positions
        run = together(list(runs), positions)
        positions = run.page_positions
        both.update(run)

    def forget(*pages: int) -> None:
        both.forget(np.array(pages))

    def pins(stream: int) -> np.ndarray:
        return np.broadcast_to(False if both.pins is None else both.pins, SHAPE.axes)[:, :, parts[stream]]

    source, other = growing(n_steps=40, seed=1), growing(n_steps=8, prompt=52, seed=2)
    for mine, theirs in zip(source, other):
        step(mine, theirs)
    forget(2, SMALL.n_pages + 1)
    before = scores[:, :, parts[0]].copy()
    both.take_over(1, 0)
    for run in (next(source), next(source), next(source)):
        step(run, run)
        np.testing.assert_array_equal(scores[:, :, parts[1]], scores[:, :, parts[0]])
        np.testing.assert_array_equal(pins(1), pins(0))
        forget(3, SMALL.n_pages + 3)
    assert both.scores is None or both.scores is scores
    assert before.any() or name in ("anchor", "recent", "none")

    then, pinned = scores[:, :, parts[1]].copy(), pins(1).copy()
    for run in source:
        step(run, None)
        forget(4)
    np.testing.assert_array_equal(scores[:, :, parts[1]], then)
    np.testing.assert_array_equal(pins(1), pinned)


def test_a_policy_for_all_streams_knows_nothing_of_a_copy():
    policy = make("ema", SHAPE)
    run = together([list(growing())[-1]] * 2, np.full(SHAPE.n_pages, -1, np.int32))
    policy.update(run)
    mine = policy.scores[:, :, : SMALL.n_pages].copy()
    policy.take_over(1, 0)
    assert mine.any() and not policy.scores[:, :, SMALL.n_pages :].any()
    np.testing.assert_array_equal(policy.scores[:, :, : SMALL.n_pages], mine)


def test_a_stream_sees_its_tokens_alone():
    """Two tokens of one stream and a prompt of 40 of the other, of which the last 16 were observed."""
    run, other = list(growing())[1], next(growing())
    seen = together([run, other], np.full(SHAPE.n_pages, -1, np.int32))
    seen = structs.replace(seen, streams=np.array([[2, 2, 0], [40, 16, 40]], np.int32), observed=True, n_unobserved=24, in_prompt=True)
    mine, prompt = seen.of_stream(0, slice(0, 25)), seen.of_stream(1, slice(25, 50))
    assert (mine.n_tokens, mine.n_unobserved, mine.in_prompt, mine.position) == (2, 0, False, run.position)
    assert (prompt.n_tokens, prompt.n_unobserved, prompt.in_prompt, prompt.position) == (16, 24, True, other.position)
    assert (mine.n_used_end, prompt.n_used_end) == (run.n_used_end, other.n_used_end)
    np.testing.assert_array_equal(mine.mass_sum, run.mass_sum)
    np.testing.assert_array_equal(prompt.page_positions, other.page_positions)
    unseen = structs.replace(seen, streams=np.array([[2, 0, 0], [40, 16, 40]], np.int32)).of_stream(0, slice(0, 25))
    assert (unseen.observed, unseen.n_tokens) == (False, 2)
