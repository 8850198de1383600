"""The simulator: what is counted against plain loops, what is chosen, what policies see, the hot tier, scenarios and the command."""

import csv
import io
import json
import subprocess

import numpy as np
import pytest
from support.laboratory import COMMAND
from support.traces import random_trace, replayed

from edgekv.bench.text import find_text
from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.lab.traces.budget import Budget
from edgekv.lab.traces.record import Recording, record
from edgekv.lab.traces.sim import OBSERVATIONS, Replay, Scenario, simulate
from edgekv.lab.traces.trace import Trace
from edgekv.measure.contexts import decoder_of, read
from edgekv.policies import POLICIES


@pytest.mark.parametrize("scenario", [
    Scenario(budget=0.4), Scenario(policy="lru", budget=0.3, observe="full"), Scenario(budget=0.3, observe="honest"),
    Scenario(budget=0.3, split="uniform", observe="honest"),
    Scenario(policy="random", budget=Budget(tokens=100)), Scenario(budget=0.2, prefetch="rope", prefetch_pages=2)],
    ids=lambda scenario: f"{scenario.name}, {scenario.split}, {scenario.prefetch}")
def test_figures(scenario: Scenario):
    trace = random_trace()
    exists = np.array(trace.header.exists)
    heads = list(zip(*np.nonzero(exists)))
    sums = {head: dict.fromkeys(("hit_mass", "hits", "wanted", "hot", "fetched"), 0.0) for head in heads}
    before: dict = {}
    brought: dict = {head: set() for head in heads}
    for replay, step, measured in replayed(trace, scenario):
        if replay.chosen is None:
            continue
        end = step.n_used_end
        for row, head in heads:
            mass = step.mass_sum[row, head, :end].astype(np.float64)
            chosen = set(np.flatnonzero(replay.chosen[row, head]).tolist())
            hot = chosen | brought[row, head]
            wanted = dict(enumerate(step.n_read[row, head, :end].tolist()))
            if measured:
                of = sums[row, head]
                of["hit_mass"] += mass[sorted(hot)].sum() / mass.sum()
                of["hits"] += sum(n for page, n in wanted.items() if page in hot)
                of["wanted"] += sum(wanted.values())
                of["hot"] += len(hot)
                # the page being filled is written in place; what prefetch brings for a step is fetched for it
                of["fetched"] += len(chosen - before[row, head] - {end - 1}) + len(brought[row, head])
            brought[row, head] = set(np.flatnonzero(replay.hot.brought[row, head]).tolist())
            before[row, head] = chosen | brought[row, head]
    result, n = simulate(trace, scenario), trace.header.n_steps
    total = {name: sum(of[name] for of in sums.values()) for name in sums[heads[0]]}
    for (row, head), of in sums.items():
        assert result.hit_rate_mass_by_head[row, head] == pytest.approx(of["hit_mass"] / n, rel=1e-5)
        assert result.hit_rate_by_head[row, head] == pytest.approx(of["hits"] / of["wanted"], rel=1e-5)
        assert result.hot_by_head[row, head] == pytest.approx(of["hot"] / n)
        assert result.fetched_by_head[row, head] == pytest.approx(of["fetched"] / n)
    for array in (result.hit_rate_mass_by_head, result.hit_rate_by_head, result.fetched_by_head, result.hot_by_head):
        np.testing.assert_array_equal(np.isnan(array), ~exists)
    row = result.row()
    assert row["hit_rate_mass"] == pytest.approx(total["hit_mass"] / n / len(heads), rel=1e-5)
    assert row["hit_rate"] == pytest.approx(total["hits"] / total["wanted"], rel=1e-5)
    assert row["fetched"] == pytest.approx(total["fetched"] / n / len(heads))
    assert row["worst_mass"] == pytest.approx(min(of["hit_mass"] for of in sums.values()) / n, rel=1e-5)
    assert 0 < row["hit_rate_mass"] < 1 and 0 < row["hit_rate"] < 1
    assert (total["fetched"] > 0) == (scenario.observe != "honest" and scenario.policy != "random"), "these two never change their minds"


def test_pins_and_scores_choose():
    """Uniform: in each head the pins, the page being filled, then the best scores, of equal ones the newer page."""
    trace = random_trace()
    scenario = Scenario(split="uniform", budget=0.4, settings=dict(recent_tokens=20))
    replay = Replay(trace, scenario)
    for step in trace:
        end, scores = step.n_used_end, replay.policy.scores.copy()
        pins = np.flatnonzero(replay.policy.pins[:end]).tolist()
        replay.step(step)
        if step.warmup:
            continue
        for row, head in zip(*np.nonzero(np.array(trace.header.exists))):
            always = {*pins, end - 1}
            others = sorted(set(range(end)) - always, key=lambda page: (-scores[row, head, page], -page))
            expected = always | set(others[: int(0.4 * end + 0.5) - len(always)])
            assert set(np.flatnonzero(replay.chosen[row, head]).tolist()) == expected


@pytest.mark.parametrize("policy", [name for name in POLICIES if not POLICIES.get(name).clairvoyant])
@pytest.mark.parametrize("split", [Split.UNIFORM, Split.POOLED])
def test_nothing_beats_the_oracle(policy, split):
    trace = random_trace()
    oracle = simulate(trace, Scenario(policy="oracle", budget=0.5, split=split))
    for observe in OBSERVATIONS:
        other = simulate(trace, Scenario(policy=policy, budget=0.5, split=split, observe=observe))
        assert other.hot_by_head[0, 0] > 0
        if split is Split.UNIFORM:
            assert (other.hit_rate_mass_by_head <= oracle.hit_rate_mass_by_head + 1e-6)[~np.isnan(other.hit_rate_mass_by_head)].all()
        assert other.row()["hit_rate_mass"] < 1 and other.row()["hit_rate_mass"] <= oracle.row()["hit_rate_mass"] + 1e-6
        assert other.observe == observe
    assert oracle.observe == "ahead"


def test_the_budget():
    trace = random_trace()
    for budget, pages in ((0.25, 5), (Budget(tokens=65), 5), (Budget(tokens=9999), 20)):
        for replay, step, measured in replayed(trace, Scenario(policy="ema", budget=budget, split="uniform")):
            if measured and step.n_used_end == 20:
                assert (replay.chosen[:2].sum(axis=2) == pages).all()
                assert not replay.chosen[2, 1].any()


def test_whose_split():
    trace = random_trace()
    for scenario, split in ((Scenario(), "pooled"), (Scenario(observe="honest"), "uniform"), (Scenario(split="layer"), "layer"),
                           (Scenario(policy="pyramidkv"), "pyramid"), (Scenario(policy="pyramidkv", split="pooled"), "pooled")):
        assert simulate(trace, scenario).row()["split"] == split


def seen_by_policy(trace: Trace, scenario: Scenario):
    """(step, what was chosen, observation) of each step; nothing is chosen in the warm-up but at its end."""
    replay, seen = Replay(trace, scenario), []
    update = replay.policy.update

    def spy(observation) -> None:
        seen.append(observation)
        update(observation)

    replay.policy.update = spy
    for step in trace:
        replay.step(step)
        yield step, replay.chosen, seen[-1]


def test_honest_observation():
    """Chosen pages only, as the softmax over them; in the warm-up all."""
    for step, chosen, seen in seen_by_policy(random_trace(), Scenario(budget=0.25, observe="honest")):
        if step.warmup:
            np.testing.assert_array_equal(seen.mass_sum, step.mass_sum)
            continue
        end = step.n_used_end
        assert not seen.mass_sum[:, :, end:].any() and not seen.mass_sum[:, :, :end][~chosen].any()
        assert not seen.mass_max[:, :, :end][~chosen].any()
        for row, head in ((0, 0), (1, 1)):
            mass = step.mass_sum[row, head, :end][chosen[row, head]]
            np.testing.assert_allclose(seen.mass_sum[row, head, :end][chosen[row, head]], mass / mass.sum() * 2, rtol=2e-3)
        assert (seen.position, seen.n_used_end, seen.n_tokens, seen.observed) == (step.position, end, 1, True)
        assert seen.changed.tolist() == [end - 1] and seen.n_budget == round(0.25 * end)


@pytest.mark.parametrize(("observe", "prefix"), [("full", "mass"), ("sampled", "sampled")])
def test_observation_of_all_pages(observe, prefix):
    for step, _, seen in seen_by_policy(random_trace(), Scenario(budget=0.25, observe=observe)):
        np.testing.assert_array_equal(seen.mass_sum, getattr(step, f"{prefix}_sum"))
        np.testing.assert_array_equal(seen.mass_max, getattr(step, f"{prefix}_max"))


def test_the_prompt_is_not_observed():
    trace = random_trace(depth=300, n_warmup=5)
    observations = []

    class Spy(POLICIES.get("none")):
        def update(self, observation) -> None:
            observations.append(observation)

    POLICIES.add("spy", Spy, "looks")
    try:
        simulate(trace, Scenario(policy="spy"))
    finally:
        del POLICIES._entries["spy"]
    first, *others = observations
    assert not first.observed and first.n_tokens == 295 and first.position == 294 and first.changed.tolist() == list(range(19))
    assert len(others) == 45 and all(seen.observed for seen in others) and others[0].position == 295
    assert others[0].page_positions.tolist()[17:20] == [287, 295, -1]


@pytest.mark.parametrize("prefetch", ["rope", "previous", "random"])
@pytest.mark.parametrize("observe", ["sampled", "honest"])
def test_prefetch(prefetch, observe):
    trace = random_trace(depth=400)
    scenario = Scenario(budget=0.2, observe=observe, prefetch=prefetch, prefetch_pages=1.4)
    n = last = 0
    for replay, step, measured in replayed(trace, scenario):
        if replay.chosen is None:
            continue
        n += last  # what was brought after a step is there for the next
        brought, end = replay.hot.brought, step.n_used_end
        assert brought.sum() <= 7 and not brought[:, :, end - 1 :].any() and not brought[2, 1].any()
        assert not brought[:, :, :end][replay.chosen].any(), "what is chosen is hot already"
        last = int(brought.sum())
    plain, more = simulate(trace, scenario.with_(prefetch="none")).row(), simulate(trace, scenario).row()
    assert plain["prefetched"] == 0 and more["hot"] > plain["hot"]
    assert more["prefetched"] * 5 * trace.header.n_steps == pytest.approx(n)
    # who sees only what it chose has seen mass on hot pages only, after the last step of the warm-up
    assert n > 20 if prefetch != "previous" or observe == "sampled" else n <= 7
    assert more["hit_rate"] > plain["hit_rate"] and more["hit_rate_mass"] > plain["hit_rate_mass"]


@pytest.mark.parametrize(("changes", "match"), [
    ({"budget": 0.0}, "the budget is 0.0"), ({"budget": 1.5}, "the budget"), ({"split": "none"}, "no budget split 'none'"),
    ({"observe": "partly"}, "no observation mode 'partly'; choose one of: sampled, honest, full"),
    ({"prefetch": "all"}, "no prefetch 'all'"),
    ({"prefetch_pages": -1}, "prefetch_pages")])
def test_settings_that_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        Scenario(**changes)


def sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "lab", "sim", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)


def test_the_command(tmp_path):
    one, two = tmp_path / "one.trace", tmp_path / "two.trace"
    random_trace().write(one)
    random_trace(seed=1).write(two)
    done = sim(one, two, "--policy", "lru", "--policy", "ema", "--budget", "10%,64", "--observe", "honest,sampled", "-o", "json",
               "--set", "alpha=0.5")
    rows = json.loads(done.stdout)
    assert done.returncode == 0 and len(rows) == 16
    assert {(row["trace"], row["policy"], row["budget"], row["observe"]) for row in rows} == {
        (trace, policy, budget, observe) for trace in ("one.trace", "two.trace") for policy in ("lru", "ema") for budget in (0.1, 64)
        for observe in ("honest", "sampled")}
    with Trace.open(two) as trace:
        expected = simulate(trace, Scenario(policy="ema", budget=0.1, observe="honest", settings=dict(alpha=0.5))).row()
    found = next(row for row in rows if row["trace"] == "two.trace" and row["policy"] == "ema" and row["budget"] == 0.1
                 and row["observe"] == "honest")
    assert {key: value for key, value in found.items() if key not in ("trace", "seconds")} == pytest.approx(
        {key: value for key, value in expected.items() if key != "seconds"})

    table = sim(one, "--budget", "20%", "--worst", 2, "-o", "csv")
    heads = list(csv.DictReader(io.StringIO(table.stdout)))
    assert len(heads) == 2 and float(heads[0]["hit_rate_mass"]) <= float(heads[1]["hit_rate_mass"]) and {"layer", "head"} <= set(heads[0])
    layers = sim(one, "--by", "layer", "--budget", "20%", "-o", "md").stdout.splitlines()
    assert len(layers) == 5 and "| layer |" in layers[0]
    assert "sampled" in sim(one).stdout


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (("--set", "beta=1"), 2, "--set: 'beta=1' is not a setting; write NAME=VALUE, with one of alpha, "),
    (("--set", "seed=x"), 2, "seed is 'x'; it must be a whole number"), (("--policy", "best"), 2, "there is no policy 'best'"),
    (("--budget", "x"), 2, "is 'x'; it must be a share of the context"),
    (("--observe", "nothing"), 2, "'nothing' is not one of")])
def test_mistakes(tmp_path, arguments, code, said):
    random_trace().write(tmp_path / "a.trace")
    done = sim(tmp_path / "a.trace", *arguments)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


# ---- a live context does what the simulator does ---------------------------------------------------------------------------------


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
        replay, steps = Replay(trace, Scenario(policy=policy)), iter(trace)
        for _ in range(N_WARMUP):
            replay.step(next(steps))
        for runtime in live(model, options):
            replay.step(next(steps))
            scores = runtime._ops.download(runtime._tiering.hierarchy.policy.scores)[:, :, : trace.header.n_pages].copy()
            np.testing.assert_allclose(scores, replay.policy.scores, rtol=2e-3, atol=1e-6)
        assert np.count_nonzero(scores) > 20
