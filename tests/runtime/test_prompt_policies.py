"""Policies that judge by the end of a prompt, in mode evict: they see the mass that the newest tokens gave, over a prompt of many times what is kept.
tests/policies/test_prompt.py says what they make of it."""

import numpy as np
import pytest
from support.contexts import attached
from support.evicting import ONE, Chat, evict


@pytest.mark.parametrize(("name", "pieces"), [("snapkv", []), ("pyramidkv", [10]), ("adakv", []), ("nacl", [10])])
def test_the_end_of_a_long_prompt_decides(synthetic, monkeypatch, name: str, pieces: list[int]):
    with attached(synthetic("llama", n_head=6), evict(512, policy=f"{name}+anchor+recent"), n_ctx=4096, **ONE) as (context, run):
        policy, chat, seen = run._tiering.hierarchy.policy.members[0], Chat(context, run), []
        update = policy.update
        monkeypatch.setattr(policy, "update", lambda told: (seen.append((told.n_tokens, told.mass_sum.sum(axis=2))), update(told)))
        with run.reading_prompt():
            for n in [128] * 12 + pieces:
                chat.feed(chat.tokens(n))
        for (n, mass), of_last in zip(seen[-1 - len(pieces) :], [16, *pieces], strict=True):
            assert n == of_last, "of the long part the last 16"
            np.testing.assert_allclose(mass, 3 * n, rtol=1e-3)  # the query heads of a group
        old = {position for position in chat.positions() if 16 <= position < chat.position - 400}
        assert len(old) > 16, "what is kept is more than what is new"
