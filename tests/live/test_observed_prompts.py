"""The attention of a prompt's end, as policies see it."""

from __future__ import annotations

import numpy as np
import pytest
from support.contexts import attached
from support.evicting import ONE, Chat

from edgekv.config import KvOptions


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt-oss", "lfm2"])
@pytest.mark.parametrize("mode", ["sparse", "evict"])
def test_observing_a_prompt_changes_nothing_but_what_is_known(synthetic, kind: str, mode: str):
    logits, steps = {}, {}
    for observe in (False, True):
        with attached(synthetic(kind), KvOptions(mode=mode, observe_prompt=observe), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            seen = steps[observe] = []
            run.observers.append(lambda step, seen=seen: seen.append((step.hooked, step.n_observed, step.mass_sum.copy())))
            logits[observe] = np.concatenate([chat.feed(chat.tokens(n)) for n in (128, 100)])
            assert run.stats.n_tokens_hooked == 228 and run.stats.n_ubatches_hooked == 2
            assert run._tiering.hierarchy.policy.scores.any() == observe
    np.testing.assert_array_equal(logits[False], logits[True])
    assert [(hooked, n) for hooked, n, _ in steps[True]] == [(True, 16)] * 2
    assert [(hooked, n) for hooked, n, _ in steps[False]] == [(True, 0)] * 2


def test_a_prompts_mass_is_that_of_its_last_tokens(synthetic):
    masses = []
    for last in (1, 16):
        with attached(synthetic("llama", n_head=6), KvOptions(mode="sparse"), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            tokens, total = chat.tokens(128), []
            run.observers.append(lambda step: total.append(step.mass_sum.copy()))
            if last == 1:  # the same tokens, one by one after the others
                run.mode = "exact"
                chat.feed(tokens[:112])
                for token in tokens[112:]:
                    chat.feed([token])
            else:
                chat.feed(tokens)
            masses.append(np.sum(total, axis=0))
    assert masses[1].sum() == pytest.approx(16 * 2 * 6, rel=1e-3), "tokens x layers x query heads"
    np.testing.assert_allclose(masses[0], masses[1], atol=2e-2)
