"""The bounds of arithmetic. Each instruction set rounds otherwise, and the cut of a prompt decides which kernel reads which tokens. So
tests that depend on arithmetic measure their bounds there and then: no test has numbers of one processor. The kernels' own programs
(tests/native/test_kernels.py) run on every instruction set of the machine; what is asked of a server runs on its best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from edgekv import _native
from edgekv._native import core, instructions
from edgekv.proof.run import ROUNDING

SINGLE = tuple(isa for isa in core.isa_available() if isa not in ROUNDING)

_TIMES = 4
"""The bound is so many times the largest of a few differences: of thousands of numbers behind hundreds of tokens one is farther now and
then."""
_LEAST = 1e-6
"""The least bound: a few samples may agree where another order of sums does not."""


def _with(isa: str) -> Iterator[str]:
    before = _native.isa()
    instructions.use_isa(isa)
    yield isa
    instructions.use_isa(before)


@pytest.fixture(params=SINGLE)
def every_single_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """A test runs once with each instruction set, in this process, but for those whose prompts round to bf16: its bounds are tighter."""
    yield from _with(request.param)


@pytest.fixture
def single_precision() -> Iterator[str]:
    """The best of these, for tests of something else than the processor's own kernels."""
    own = _native.isa()
    yield from _with(own if own in SINGLE else SINGLE[-1])


@dataclass(frozen=True)
class Said:
    """A model's answer: tokens, and for each of them log-probabilities, float [token, n], the likeliest first."""

    tokens: Sequence[int]
    logprobs: np.ndarray

    def same_until(self, other: Said) -> int:
        """The first token that differs; the following ones depend on it. The number of tokens where none differs."""
        return next((i for i, (a, b) in enumerate(zip(self.tokens, other.tokens)) if a != b), len(self.tokens))


def apart(one: Said, other: Said) -> float:
    """The largest difference of two log-probabilities in the same place, as far as both answers agree."""
    n = one.same_until(other) + 1
    return float(np.abs(one.logprobs[:n] - other.logprobs[:n]).max())


def check_near(one: Said, other: Said, bound: float) -> None:
    """Log-probabilities are within the bound, and where the tokens differ the two likeliest were within it too."""
    assert apart(one, other) <= bound, "a log-probability is too far from the other's"
    if (n := one.same_until(other)) < len(one.tokens):
        assert one.logprobs[n][0] - one.logprobs[n][1] <= bound, f"token {n} is another, and it was no close call"


def bound_beside_others(answer: Callable[..., Said], prompt: Sequence[int], n: int) -> float:
    """The bound for an answer of `n` tokens beside those of others: four times the largest distance that other batches make.
    `answer(tokens, n, *cuts)` reads tokens cold in pieces that end there, and answers with `n`. Others' tokens cut a prompt elsewhere: its
    last piece has many tokens, a few and one, which different kernels read. And an answer's token beside another's prompt is read as a
    prompt's token is, so some of the answer are read as a prompt."""
    end = len(prompt)
    found = [answer(prompt, n, *cuts) for cuts in ((), (end // 2,), (end - 40,), (end - 10,), (end - 1,))]
    said = found[0]
    spread = max(apart(one, other) for one, other in combinations(found, 2))
    for k in {1, 2, n // 2, n - 1}:
        read = answer([*prompt, *said.tokens[:k]], 1, end - 40)
        spread = max(spread, float(np.abs(read.logprobs[0] - said.logprobs[k]).max()))
    return max(_LEAST, _TIMES * spread)


def of_stock(isa: str, stock: float) -> float:
    """The bound for modes that compute as stock does. Stock's own two kernels are `stock` apart, and one of them sums in half precision:
    half of that, and a fifth where ours are in single precision."""
    return stock / (2 if isa in ROUNDING else 5)
