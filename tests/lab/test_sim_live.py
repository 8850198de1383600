"""A live context does what the simulator does."""

import numpy as np
import pytest
from support.traces import replayed

from edgekv.bench.modes import BenchMode
from edgekv.bench.passes import warm_up
from edgekv.bench.text import find_text
from edgekv.config import KvOptions
from edgekv.lab.traces.record import Recording, record
from edgekv.lab.traces.sim import Replay, Scenario
from edgekv.lab.traces.trace import Trace
from edgekv.measure.contexts import decoder_of, read

DEPTH, N_WARMUP, N_STEPS = 400, 16, 80


def live(model, options: KvOptions, warms_up: bool):
    """(runtime, step) after each step that counts, on the tokens of a recording; in the steps before, with `warms_up` full attention."""
    with decoder_of(model, kv_options=options, n_ctx=DEPTH + N_STEPS, n_batch=512, n_ubatch=512, n_threads=1) as decoder:
        tokens = find_text("prose").tokens(decoder.llama, DEPTH + N_STEPS)
        list(read(decoder, tokens[: DEPTH - N_WARMUP], 1))
        window = tokens[DEPTH - N_WARMUP : DEPTH]
        if warms_up:
            warm_up(decoder, BenchMode({"mode": options.mode}), options, window)
        for token in () if warms_up else window:
            decoder.decode([token])
        for step, token in enumerate(tokens[DEPTH:]):
            decoder.decode([token])
            yield decoder.llama.kv, step


@pytest.fixture(scope="module")
def one_layer(synthetic, tmp_path_factory):
    """A model of one layer, whose attention what it read before does not change, and a trace of it."""
    model = synthetic("llama", n_layer=1, n_head=4)
    path = tmp_path_factory.mktemp("live") / "a.trace"
    record(Recording(model, find_text("prose"), DEPTH, N_STEPS, N_WARMUP, resolution=100.0), path)
    return model, path


@pytest.mark.parametrize("policy", ["ema", "lru"])
def test_live_attention_without_sketches(one_layer, policy):
    """What is attended where the policy decides: the pages that the simulator chooses under honest observation."""
    model, path = one_layer
    options = KvOptions(mode="sparse", exact_tokens=0, sink_tokens=0, recent_tokens=0, attention_device="cpu", plan_every=1,
                        sketch="none", attend="20%", policy=policy, keep_rows=True)
    pages = np.zeros((N_STEPS, 2, (DEPTH + N_STEPS) // 16), bool)
    for runtime, step in live(model, options, warms_up=True):
        for head in range(2):
            pages[step, head, runtime.last_rows(0, head)[0] // 16] = True
    chosen = np.zeros_like(pages)
    scenario = Scenario(policy=policy, budget=0.2, observe="honest", settings=dict(sink_tokens=0, recent_tokens=0))
    with Trace.open(path) as trace:
        for replay, step, measured in replayed(trace, scenario):
            if measured:
                chosen[step.position - DEPTH, :, : step.n_used_end] = replay.chosen[0]
    np.testing.assert_array_equal(pages, chosen)
    assert 800 < pages.sum() < 1200 and (pages != np.roll(pages, 1, axis=0)).sum() > 10


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
        for runtime, _ in live(model, options, warms_up=False):
            replay.step(next(steps))
            scores = runtime._ops.download(runtime._tiering.hierarchy.policy.scores)[:, :, : trace.header.n_pages].copy()
            np.testing.assert_allclose(scores, replay.policy.scores, rtol=2e-3, atol=1e-6)
        assert np.count_nonzero(scores) > 20
