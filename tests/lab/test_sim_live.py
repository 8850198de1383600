"""A live context does what the simulator does."""

import numpy as np
import pytest

from edgekv.bench.text import find_text
from edgekv.config import KvOptions
from edgekv.lab.traces.record import Recording, record
from edgekv.lab.traces.sim import Replay, Scenario
from edgekv.lab.traces.trace import Trace
from edgekv.measure.contexts import decoder_of, read

DEPTH, N_WARMUP, N_STEPS = 400, 16, 80


def live(model, options: KvOptions):
    """The runtime after each step that counts, on the tokens of a recording."""
    with decoder_of(model, kv_options=options, n_ctx=DEPTH + N_STEPS, n_batch=512, n_ubatch=512, n_threads=1) as decoder:
        tokens = find_text("prose").tokens(decoder.llama, DEPTH + N_STEPS)
        list(read(decoder, tokens[: DEPTH - N_WARMUP], 1))
        for step, token in enumerate(tokens[DEPTH - N_WARMUP :], -N_WARMUP):
            decoder.decode([token])
            if step >= 0:
                yield decoder.llama.kv


@pytest.fixture(scope="module")
def one_layer(synthetic, tmp_path_factory):
    """A model of one layer, whose attention what it read before does not change, and a trace of it."""
    model = synthetic("llama", n_layer=1, n_head=4)
    path = tmp_path_factory.mktemp("live") / "a.trace"
    record(Recording(model, find_text("prose"), DEPTH, N_STEPS, N_WARMUP, resolution=100.0), path)
    return model, path


@pytest.mark.parametrize("policy", ["ema", "lru"])
def test_live_scores_of_sampling(one_layer, emulator, policy):
    """What a live policy makes of what mode sparse reads: the scores that the simulator has under sampled observation."""
    model, path = one_layer
    options = KvOptions(mode="sparse", exact_tokens=0, attention_device="emulated", plan_every=1, sample_budget=100.0, policy=policy,
                        observe_prompt=False)
    with Trace.open(path) as trace:
        replay, steps = Replay(trace, Scenario(policy=policy)), trace.steps()
        for _ in range(N_WARMUP):
            replay.step(next(steps))
        for runtime in live(model, options):
            replay.step(next(steps))
            scores = runtime._ops.download(runtime._tiering.hierarchy.policy.scores)[:, :, : trace.header.n_pages].copy()
            np.testing.assert_allclose(scores, replay.policy.scores, rtol=2e-3, atol=1e-6)
        assert np.count_nonzero(scores) > 20
