"""Sequences that share one cache in mode sparse: each one's rows follow from its own tokens, whatever lies beside them."""

import numpy as np
from support.contexts import Context, attached

from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

TURN = 24
"""Each sequence gets so many tokens in turn: groups of 64 cells hold some of both."""

OPTIONS = KvOptions(mode="sparse", sample_budget=30, exact_tokens=0, recent_tokens=16, keep_rows=True, policy="none")


def fill(context: Context, other: np.random.Generator, n_turns: int = 14) -> int:
    """Prompts of both sequences, turn by turn. `other` draws the second one's tokens."""
    own = np.random.default_rng(1)
    for turn in range(n_turns):
        at = list(range(turn * TURN, (turn + 1) * TURN))
        context.decode(own.integers(260, 350, TURN).tolist(), at, [0] * TURN)
        context.decode(other.integers(260, 350, TURN).tolist(), at, [1] * TURN)
    return n_turns * TURN


def tokens(context: Context, run: Runtime, position: int, n: int = 4) -> tuple[np.ndarray, list[np.ndarray]]:
    """The first sequence's answer, and the rows that it read."""
    logits, rows = [], []
    for i in range(n):
        logits.append(context.decode([300 + i], [position + i], [0]))
        rows += [np.concatenate(run.last_rows(0, head)) for head in range(2)]
    return np.concatenate(logits), rows


def test_the_same_bits_whatever_the_other_says(synthetic):
    answers = []
    for seed in (2, 3):
        with attached(synthetic("llama"), OPTIONS, n_ctx=1024, n_seq=2) as (context, run):
            position = fill(context, np.random.default_rng(seed))
            answers.append(tokens(context, run, position))
    n_read = [len(row) // 2 for row in answers[0][1]]
    assert 16 < min(n_read) and max(n_read) < 14 * TURN + 4, "some are read by chance"
    for logits, rows in answers[1:]:
        for mine, first in zip(rows, answers[0][1]):
            np.testing.assert_array_equal(mine, first)
        np.testing.assert_array_equal(logits, answers[0][0])
