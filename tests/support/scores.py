"""A context that grows token by token, as a policy sees it, and a check of a policy against a plain loop."""

from collections.abc import Callable, Iterator

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies import Policy, make

SHAPE = PageShape(2, 3, 10)
SMALL = PageShape(2, 3, 25, page_tokens=4)


def masses(rng: np.random.Generator, shape: PageShape = SHAPE) -> np.ndarray:
    mass = rng.gamma(0.3, 1.0, shape.axes).astype(np.float32)
    return mass / mass.sum(axis=2, keepdims=True)


def growing(shape: PageShape = SMALL, n_steps: int = 60, prompt: int = 40, seed: int = 3, n_budget: int = 4) -> Iterator[Observation]:
    """A prompt without observation, then an observed token in each step. Pages of `page_tokens` fill up."""
    rng = np.random.default_rng(seed)
    for n_tokens in (prompt, *range(prompt + 1, prompt + n_steps + 1)):
        end = -(-n_tokens // shape.page_tokens)
        positions = np.full(shape.n_pages, -1, np.int32)
        positions[:end] = np.minimum((np.arange(end) + 1) * shape.page_tokens, n_tokens) - 1
        mass = np.zeros(shape.axes, np.float32)
        observed = n_tokens > prompt
        if observed:
            mass[:, :, :end] = rng.gamma(0.2, 1, (*shape.axes[:2], end)) + 1e-6
            mass /= mass.sum(axis=2, keepdims=True)
        yield Observation(mass, mass / 2, 1 if observed else prompt, observed, np.array([end - 1]), positions, n_tokens - 1, end, n_budget)


def check(name: str, expected: Callable[[Observation], np.ndarray], settings: dict | None = None, shape: PageShape = SMALL,
          **options: int) -> Policy:
    """`expected(step)` gives the scores after each observed step: float [row, head, :n_used_end]."""
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
