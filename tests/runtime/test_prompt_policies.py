"""Policies that judge by the end of a prompt, in mode evict: each follows its definition on the mass that the newest tokens gave, over a
prompt of many times what it keeps."""

import math

import numpy as np
import pytest
from support.contexts import attached
from support.evicting import ONE, Chat, evict

from edgekv.policies.age import KEPT

KERNEL, RANDOM_SHARE, SEED = 5, 0.37, 0
"""The defaults of SnapKV and of NACL."""


class Shown:
    """The policy's input of each run (mass, tokens that gave it, positions in each page's cells, pages that a head may keep), and its
    scores."""

    def __init__(self, policy, run, monkeypatch):
        self.policy, self.runs = policy, []
        update = policy.update

        def watched(seen):
            cells = run.cells.stream().positions.reshape(-1, policy.shape.page_tokens)
            self.runs.append((seen.mass_sum.copy(), seen.n_tokens, cells.copy(), seen.n_budget))
            update(seen)
            self.scores, self.end = policy.scores.copy(), seen.n_used_end

        monkeypatch.setattr(policy, "update", watched)

    def window(self, n_runs: int) -> tuple[np.ndarray, int]:
        """(mass of the last runs [row, head, page], tokens that gave it). A page counts while it still holds the same tokens."""
        now = self.runs[-1][2]
        held = [((cells == now) | (cells < 0)).all(axis=1) for _, _, cells, _ in self.runs[-n_runs:]]
        mass = sum(mass * same for (mass, *_), same in zip(self.runs[-n_runs:], held))
        return mass[:, :, : self.end], sum(n for _, n, *_ in self.runs[-n_runs:])


def definition(name: str, shown: Shown, n_runs: int) -> np.ndarray:
    """float [row, head, page], by plain loops over pages."""
    (mass, n), (_, _, cells, n_budget), end = shown.window(n_runs), shown.runs[-1], shown.end
    positions = cells.max(axis=1)
    since, size, in_use = positions.max() - n, cells.shape[1], positions[:end] >= 0
    score = np.zeros(mass.shape)
    for at in np.ndindex(mass.shape[:2]):
        p = mass[at] / n
        if name == "nacl":
            drawn = np.maximum(np.random.default_rng(SEED).standard_exponential(shown.policy.shape.axes, np.float32), 1e-6)[at]
            best = sorted(range(end), key=lambda page: -p[page])[: round((1 - RANDOM_SHARE) * n_budget)]
            q = [math.exp(p[page]) / drawn[page] for page in range(end)]
            score[at] = [(1 + p[page] if page in best else q[page] / (1 + q[page])) * in_use[page] for page in range(end)]
        else:
            tokens = np.repeat(p / size, size)
            shifted = [np.roll(np.pad(tokens, KERNEL), by)[KERNEL:-KERNEL] for by in range(-(KERNEL // 2), KERNEL // 2 + 1)]
            score[at] = np.mean(shifted, axis=0).reshape(end, size).sum(axis=1) * in_use
    age = (positions.max() - positions[:end]) / size
    return score + np.where(in_use & (positions[:end] > since), KEPT * (1 + 1 / (1 + age)), 0)


@pytest.mark.parametrize(("name", "pieces", "n_runs"), [("snapkv", [], 1), ("pyramidkv", [10], 2), ("adakv", [], 1), ("nacl", [10], 2)])
def test_the_end_of_a_long_prompt_decides(synthetic, monkeypatch, name: str, pieces: list[int], n_runs: int):
    with attached(synthetic("llama", n_head=6), evict(512, policy=f"{name}+anchor+recent"), n_ctx=4096, **ONE) as (context, run):
        policy = run._tiering.hierarchy.policy.members[0]
        shown, chat = Shown(policy, run, monkeypatch), Chat(context, run)
        with run.reading_prompt():
            for n in [128] * 12 + pieces:
                chat.feed(chat.tokens(n))
        assert shown.window(n_runs)[1] == 16 + sum(pieces), "of the long part the last 16"
        np.testing.assert_allclose(shown.scores[:, :, : shown.end], definition(name, shown, n_runs), rtol=2e-4, atol=1e-6)
        old = {position for position in chat.positions() if 16 <= position < chat.position - 400}
        assert len(old) > 16, "what is kept is more than what is new"
