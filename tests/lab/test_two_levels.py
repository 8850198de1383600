"""edgekv.lab.questions.two_levels and edgekv.lab.heads.recorded: the figures of a study, on made-up heads, and recorded ones of a tiny model."""

import numpy as np
import pytest
from support.contexts import attached
from support.full_attention import Capture, full

from edgekv.arrays.sample import by_share, chances, shares_of
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.lab.heads.recorded import Head, record
from edgekv.lab.questions.two_levels import RESOLUTION, Setting, choose, code_bytes, coded, compare, log_sum, settings, squared_error, study

N, STEPS = 1200, (3, 5)


def head(seed: int = 0, spread: float = 1.0, n: int = N) -> Head:
    """Keys that drift from group to group, as those of a text do."""
    rng = np.random.default_rng(seed)
    drift = np.repeat(rng.normal(size=(-(-(n + 8) // 64), 64)), 64, axis=0)[: n + 8]
    keys = (drift + 0.3 * rng.normal(size=(n + 8, 64))) * spread
    return Head(*(x.astype(np.float32) for x in (keys, rng.normal(size=(n + 8, 64)), 0.3 * rng.normal(size=(8, 3, 64)))), n)


def test_the_error_of_two_stages_is_that_of_draws():
    """The formula is exact for a sum."""
    rng = np.random.default_rng(1)
    y, p, visits = rng.normal(size=(40, 5)), rng.uniform(0.05, 0.9, 40), np.array([1, 0.3, 0.6, 0.2])
    expected = squared_error((y**2).sum(axis=1)[None], (y.reshape(4, 10, 5).sum(axis=1) ** 2).sum(axis=1)[None], p, visits)[0]
    within = np.minimum(1, p / visits.repeat(10))
    came = (rng.random((60_000, 4)) < visits).repeat(10, axis=1) & (rng.random((60_000, 40)) < within)
    sums = (came / (visits.repeat(10) * within)) @ y
    assert sums.mean(axis=0) == pytest.approx(y.sum(axis=0), abs=0.15), "unbiased"
    assert ((sums - y.sum(axis=0)) ** 2).sum(axis=1).mean() == pytest.approx(expected, rel=0.03)
    alone = squared_error((y**2).sum(axis=1)[None], np.ones((1, 4)), p, np.ones(4))[0]
    assert alone == pytest.approx(((1 / p - 1) * (y**2).sum(axis=1)).sum()) and alone < expected, "visiting groups by chance costs"


def test_codes_are_those_of_a_sketch():
    keys = head().keys[:128]
    back, low, step = coded(keys)
    assert back.shape == keys.shape and np.abs(back - keys).max() <= step.max() / 2 + 1e-6
    assert np.unique(np.rint((back[:64] - low[0]) / step[0])).tolist() == list(range(8))
    assert np.array_equal(coded(np.ones((64, 4)))[0], np.ones((64, 4))), "a channel without a range"
    assert (64 * code_bytes(64), 64 * code_bytes(128)) == (4 * 420, 64 * 48 + 272), "16 cells of a head of 64 take 420 bytes"


def test_the_truth_with_every_group_visited_is_one_level():
    one, two = study(head(), STEPS, [Setting("truth", 64, RESOLUTION, 1, 1.0), Setting("truth", 32, 4000, 1, 1.0)])
    assert two[Setting("truth", 64, RESOLUTION, 1, 1.0)] == pytest.approx(one[RESOLUTION])
    assert two[Setting("truth", 32, 4000, 1, 1.0)] == pytest.approx(one[4000])
    assert one[4000].error < one[RESOLUTION].error and one[4000].rows > one[RESOLUTION].rows
    assert one[RESOLUTION].n_bytes == pytest.approx(code_bytes(64) * (N + 5) + 256 * one[RESOLUTION].rows)


def test_chances_of_one_level_are_those_of_the_product():
    n = 1216
    made = head(n=n - 8)
    made = Head(made.keys, made.values, made.queries, n - 4)
    one, _ = study(made, [3], [])
    logits = made.queries[3] @ coded(made.keys)[0].T
    cells = np.arange(n)
    certain = (cells < 16) | (cells >= n - 64)
    seen = np.ones(n, bool)
    p = chances(by_share(*shares_of(logits), seen, certain, RESOLUTION), seen, RESOLUTION)
    assert one[RESOLUTION].rows == pytest.approx(p.sum() / (1 << 20), rel=0.01)


def test_fewer_groups_at_more_error():
    """A larger push visits more; groups that are known better cost less error for the same visits; what stands beside codes is counted."""
    tried = [Setting(design, 64, RESOLUTION, push, 0) for design in ("truth", "mean", "deviation", "before") for push in (0.125, 1)]
    found = compare([head(), head(1)], STEPS, tried)
    for design in ("truth", "mean", "deviation", "before"):
        few, many = (found[Setting(design, 64, RESOLUTION, push, 0)] for push in (0.125, 1))
        assert few["visited"] < many["visited"] <= 1 and few["error"] > many["error"]
        assert few["rows"] <= many["rows"] <= 1 and few["worst_head"] >= few["error"]
    truth, mean, deviation = (found[Setting(design, 64, RESOLUTION, 0.125, 0)] for design in ("truth", "mean", "deviation"))
    assert truth["scanned"] == truth["visited"]
    assert mean["scanned"] - mean["visited"] == pytest.approx(18 * 68 / (code_bytes(64) * (N + 5)), rel=1e-3)
    assert deviation["scanned"] - deviation["visited"] == pytest.approx(18 * 136 / (code_bytes(64) * (N + 5)), rel=1e-3)


def test_a_loud_key_is_heard():
    """One key of each group has nearly all of its attention. Its code tells, mean and deviation do not."""
    rng = np.random.default_rng(3)
    made = head(n=2400)
    keys, loud = 0.1 * rng.normal(size=made.keys.shape), np.ones(64) / 8
    places = np.arange(0, len(keys), 64) + rng.integers(0, 64, -(-len(keys) // 64))
    keys[places[places < len(keys)]] += rng.uniform(4, 9, len(places))[places < len(keys), None] * loud
    queries = np.broadcast_to(loud, made.queries.shape) + 0.02 * rng.normal(size=made.queries.shape)
    tried = [Setting(design, 64, RESOLUTION, 0.02, 0) for design in ("truth", "loud", "deviation")]
    found = compare([Head(keys.astype(np.float32), made.values, queries.astype(np.float32), made.n_before)], (4, 6), tried)
    truth, loud_keys, deviation = (found[setting] for setting in tried)
    assert loud_keys["error"] == pytest.approx(truth["error"], rel=0.2) and loud_keys["visited"] == pytest.approx(truth["visited"], rel=0.1)
    assert deviation["error"] > 1.5 * loud_keys["error"]
    assert loud_keys["scanned"] - loud_keys["visited"] == pytest.approx(37 * (136 + 4 * 25) / (code_bytes(64) * 2406), rel=1e-3)


def test_what_is_chosen_reads_least_at_equal_error():
    tried = settings(("truth", "deviation", "box"), (64, 128))
    assert {one.size for one in tried if one.design == "box"} == {64}, "a sketch has the range of its own group"
    found = compare([head(spread=0.5, n=2400)], STEPS, tried)
    chosen = choose(found)
    assert len({one[:2] for one in chosen}) == len(chosen) and ("truth", 64) in [one[:2] for one in chosen]
    for setting in chosen:
        others = [other for other in tried if other[:2] == setting[:2] and found[other]["error"] <= 1]
        assert found[setting]["bytes"] == min(found[other]["bytes"] for other in others) and found[setting]["error"] <= 1
    assert choose({setting: {**figures, "error": 1.01} for setting, figures in found.items()}) == []


def test_recorded_heads_attend_as_the_model_does(synthetic):
    """Queries, keys and values give the output of the attention node."""
    path = synthetic("llama", n_layer=3, head_dim=64, n_ctx_train=2048)
    text = "A tale of two levels, the coarse one and the fine one. " * 30
    heads = record(path, text, 200, [0, 2], 4)
    capture = Capture()
    with attached(path, KvOptions(mode="exact"), n_ctx=512, **capture.arguments) as (context, run):
        import llama_cpp

        buffer = (llama_cpp.llama_token * 4096)()
        vocab = llama_cpp.llama_model_get_vocab(context.model)
        raw = text.encode()
        n = llama_cpp.llama_tokenize(vocab, raw, len(raw), buffer, 4096, True, True)
        assert n >= 204
        context.decode(buffer[:200], range(200), [0] * 200)
        capture.on = True
        for i in range(200, 204):
            context.decode([buffer[i]], [i], [0])
        expected = full(run, 2, capture["Qcur-2"], range(204)).output
        n_head_kv = run.layers[2].n_head_kv
        assert len(heads) == 2 * n_head_kv
        for h, one in enumerate(heads[n_head_kv:]):
            assert one.n_before == 200 and one.keys.shape == one.values.shape == (204, 64)
            logits = one.queries[3] @ one.keys.T
            output = np.exp(logits - log_sum(logits)[:, None]) @ one.values
            group = len(one.queries[3])
            assert output == pytest.approx(expected[h * group : (h + 1) * group], rel=1e-2, abs=1e-3)


def test_a_text_that_is_too_short_and_a_layer_without_sketches_are_refused(synthetic):
    path = synthetic("llama", n_layer=3, head_dim=64, n_ctx_train=2048)
    with pytest.raises(ConfigError, match="the text has .* tokens, and 1,004 are needed"):
        record(path, "short", 1000, [0], 4)
    sliding = synthetic("gemma2")
    with pytest.raises(ConfigError, match="layer 0 has no sketches: .*; name another one"):
        record(sliding, 100 * "words and words. ", 20, [0], 2)
