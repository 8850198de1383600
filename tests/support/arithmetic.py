"""What arithmetic may change: each instruction set rounds otherwise, and where a prompt is cut decides which kernel reads what, and which
numbers are rounded up. So what depends on arithmetic runs on every instruction set of the machine, and its bounds are measured there and
then: no test has numbers of the processor that it was written on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from edgekv._native import core, testing

ROUNDING = ("avx512bf16", "amx")
"""Instruction sets whose kernels for prompts round operands to bf16."""
ISAS = tuple(core.isa_available())
SINGLE = tuple(isa for isa in ISAS if isa not in ROUNDING)

_TIMES = 4
"""Times the largest of a few differences: of thousands of numbers behind hundreds of tokens another is farther now and then."""
_LEAST = 1e-6
"""Where all of the few came out alike, another order of sums need not."""


def _with(isa: str) -> Iterator[str]:
    import edgekv.live.runtime  # noqa: F401 (the first import chooses one)

    before = core.isa()
    testing.set_isa(isa)
    yield isa
    testing.set_isa(before)


@pytest.fixture(params=ISAS)
def every_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Once with each instruction set, in this process."""
    yield from _with(request.param)


@pytest.fixture(params=SINGLE)
def every_single_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, less those whose prompts round to bf16: for bounds tighter than that."""
    yield from _with(request.param)


@pytest.fixture
def single_precision() -> Iterator[str]:
    """One of those, the best: where something else than the processor's own kernels is tested."""
    yield from _with(core.isa() if core.isa() in SINGLE else SINGLE[-1])


@dataclass(frozen=True)
class Said:
    """What a model answered: tokens, and for each of them logarithms of probability, float [token, n], the likeliest first."""

    tokens: Sequence[int]
    logprobs: np.ndarray

    def same_until(self, other: Said) -> int:
        """The first token that is another; what follows depends on it. As many as there are: none is."""
        return next((i for i, (a, b) in enumerate(zip(self.tokens, other.tokens)) if a != b), len(self.tokens))


def apart(one: Said, other: Said) -> float:
    """The largest difference of two numbers in the same place, as far as both say the same."""
    n = one.same_until(other) + 1
    return float(np.abs(one.logprobs[:n] - other.logprobs[:n]).max())


def check_near(one: Said, other: Said, bound: float) -> None:
    """Nothing is farther apart, and where another token was taken the two likeliest were as good as each other."""
    assert apart(one, other) <= bound, "a log-probability is too far from the other's"
    if (n := one.same_until(other)) < len(one.tokens):
        assert one.logprobs[n][0] - one.logprobs[n][1] <= bound, f"token {n} is another, and it was no close call"


def spread_of_cuts(answer: Callable[..., Said], n: int) -> float:
    """The bound for what a model says behind one prompt of `n` tokens, wherever it is cut: four times what any two of some cuts are apart.
    `answer(*cuts)` reads the prompt cold, in pieces that end there: the last one of many tokens, of a few and of one, which different kernels
    read."""
    found = [answer(*cuts) for cuts in ((), (n // 2,), (n - 40,), (n - 10,), (n - 1,))]
    return max(_LEAST, _TIMES * max(apart(one, other) for one, other in combinations(found, 2)))


def of_stock(isa: str, stock: float) -> float:
    """The bound for modes that compute what stock does, where stock's own two kernels are `stock` apart, one of which sums in half
    precision: half of that, and a fifth where ours are in single precision."""
    return stock / (2 if isa in ROUNDING else 5)
