"""The simulator: against plain loops, against the selection kernel, against a live context, and pinned on golden traces."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import golden
import numpy as np
import pytest
from traces import random_trace

from edgekv.bench.modes import BenchMode
from edgekv.bench.passes import decoder_of, read, warm_up
from edgekv.bench.record import Recording, record
from edgekv.bench.text import find_text
from edgekv.config import Attend, KvOptions
from edgekv.errors import ConfigError
from edgekv.kernels.select import select
from edgekv.policies import POLICIES, Settings
from edgekv.residency import State
from edgekv.sim import Access, Replay, Setting, simulate
from edgekv.trace import Trace
from edgekv.vocab import Split

from edgekv._native import core, hierarchy  # after edgekv.bench, which puts the libraries in place


def replayed(trace: Trace, setting: Setting):
    """(replay, step, whether it was measured) after each step."""
    replay = Replay(trace, setting)
    for step in trace:
        replay.step(step)
        yield replay, step, not step.warmup


# ---- what is counted, by plain loops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [
    Setting(budget=0.4), Setting(policy="lru", budget=0.3, observe="full", access="mass3%"), Setting(sketch="b2", budget=0.3),
    Setting(sketch="b2", budget=0.3, split="uniform", access="top3"), Setting(policy="random", budget=Attend(tokens=100))],
    ids=lambda setting: setting.name)
def test_figures(setting: Setting):
    trace = random_trace()
    exists = np.array(trace.header.exists)
    heads = list(zip(*np.nonzero(exists)))
    sums = {head: dict.fromkeys(("coverage", "hit_mass", "hits", "wanted", "attended", "arena", "fetched"), 0.0) for head in heads}
    before: dict = {}
    over_time = []
    for replay, step, measured in replayed(trace, setting):
        if replay.selected is None:
            continue
        end = step.n_used_end
        coverages = []
        for row, head in heads:
            mass = step.mass_sum[row, head, :end].astype(np.float64)
            attended = set(np.flatnonzero(replay.selected.attended[row, head]).tolist())
            was_hot = before.get((row, head), set()) | {end - 1}  # the page being filled is written in place
            hot = was_hot if setting.sketch else attended
            by_mass = sorted(range(end), key=lambda page: (-mass[page], -page))
            wanted = by_mass[: setting.access.top] if setting.access.top else \
                [page for page in by_mass if mass[page] > setting.access.share * mass.sum()]
            if measured:
                of = sums[row, head]
                coverages.append(mass[sorted(attended)].sum() / mass.sum())
                of["coverage"] += coverages[-1]
                of["hit_mass"] += mass[sorted(hot)].sum() / mass.sum()
                of["hits"] += len(hot & set(wanted))
                of["wanted"] += len(wanted)
                of["attended"] += len(attended)
                of["arena"] += len(attended & was_hot)
                of["fetched"] += len(attended - was_hot)
            before[row, head] = attended
        if measured:
            over_time.append(np.mean(coverages))
    result, n = simulate(trace, setting), trace.header.n_steps
    total = {name: sum(of[name] for of in sums.values()) for name in sums[heads[0]]}
    for (row, head), of in sums.items():
        assert result.coverage_by_head[row, head] == pytest.approx(of["coverage"] / n, rel=1e-5)
        assert result.hit_rate_mass_by_head[row, head] == pytest.approx(of["hit_mass"] / n, rel=1e-5)
        assert result.hit_rate_by_head[row, head] == pytest.approx(of["hits"] / of["wanted"], rel=1e-5)
        assert result.arena_hits_by_head[row, head] == pytest.approx(of["arena"] / of["attended"], rel=1e-5)
        assert result.attended_by_head[row, head] == pytest.approx(of["attended"] / n)
        assert result.fetched_by_head[row, head] == pytest.approx(of["fetched"] / n)
    for array in (result.coverage_by_head, result.hit_rate_by_head, result.fetched_by_head, result.attended_by_head):
        np.testing.assert_array_equal(np.isnan(array), ~exists)
    row = result.row()
    assert row["coverage"] == pytest.approx(total["coverage"] / n / len(heads), rel=1e-5)
    assert row["hit_rate_mass"] == pytest.approx(total["hit_mass"] / n / len(heads), rel=1e-5)
    assert row["hit_rate"] == pytest.approx(total["hits"] / total["wanted"], rel=1e-5)
    assert row["arena_hits"] == pytest.approx(total["arena"] / total["attended"], rel=1e-5)
    assert row["fetched"] == pytest.approx(total["fetched"] / n / len(heads))
    assert row["worst_coverage"] == pytest.approx(min(of["coverage"] for of in sums.values()) / n, rel=1e-5)
    assert 0 < row["coverage"] < 1 and (total["fetched"] > 0 or setting.sketch is None)
    np.testing.assert_allclose(result.coverage_over_time, over_time, rtol=1e-5)
    assert len(result.attended_over_time) == n


def test_coverage_of_the_whole_is_the_heads_mass():
    """Over all mass at once: heads have the same mass, so that the mean of their coverages is the coverage of the whole."""
    trace, setting = random_trace(group=3), Setting(budget=0.25, sketch="b2")
    on_attended = total = 0.0
    for replay, step, measured in replayed(trace, setting):
        if measured:
            mass = step.mass_sum[:, :, : step.n_used_end].astype(np.float64)
            on_attended += mass[replay.selected.attended].sum()
            total += mass.sum()
    assert simulate(trace, setting).coverage == pytest.approx(on_attended / total, rel=2e-4)  # float16 moves a head's total a little


def test_rows_by_layer_and_head():
    result = simulate(random_trace(), Setting(budget=0.25))
    heads, layers = list(result.by_head()), list(result.by_layer())
    assert [(row["layer"], row["head"]) for row in heads] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert [row["layer"] for row in layers] == [1, 2, 3]
    for layer in layers:
        of = [row for row in heads if row["layer"] == layer["layer"]]
        for figure in ("coverage", "fetched", "attended", "hit_rate"):
            assert layer[figure] == pytest.approx(np.mean([row[figure] for row in of]))
    worst = result.worst(2)
    assert [row["coverage"] for row in worst] == sorted(row["coverage"] for row in heads)[:2]
    assert worst[0]["coverage"] == result.row()["worst_coverage"]


# ---- selection ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sketch", "blend", "coverage"), [("b2", 0.0, 0.0), ("b2", 0.3, 0.0), ("box", 0.1, 0.0), (None, 0.1, 0.0),
                                                           ("b2", 0.0, 0.6), ("box", 0.0, 0.9)])
def test_each_head_is_selected_as_by_the_kernel(sketch, blend, coverage):
    """With groups of one query head, and the same number of pages for each head."""
    trace = random_trace(group=1)
    setting = Setting(sketch=sketch, blend=blend, coverage=coverage, split="uniform", budget=0.3, settings=Settings(recent_tokens=20))
    replay, n = Replay(trace, setting), 0
    for step in trace:
        end, scores = step.n_used_end, replay.policy.scores.copy()
        pins = np.array(replay.policy.pins[:end])
        replay.step(step)
        if step.warmup:
            continue
        standing = np.zeros(end)
        standing[end - 1] = np.inf
        for row, head in zip(*np.nonzero(np.array(trace.header.exists))):
            estimate = None if sketch is None else step.estimates[sketch][row, head, :end].astype(np.float64)
            total = 1.0 if estimate is None else estimate.sum()  # the kernel's estimates add up to 1; float16 moves that a little
            with np.errstate(divide="ignore"):
                logs = None if estimate is None else np.log(estimate)[None]
            expected = select(logs, standing, scores[row, head, :end] / total, pins, round(0.3 * end), coverage=coverage, blend=blend)
            assert np.flatnonzero(replay.selected.attended[row, head]).tolist() == expected.pages.tolist()
            n += len(expected.pages) < round(0.3 * end)
    assert (n > 0) == (coverage > 0)


@pytest.mark.parametrize("policy", [name for name in POLICIES if not POLICIES.get(name).clairvoyant])
@pytest.mark.parametrize("split", [Split.UNIFORM, Split.POOLED])
def test_nothing_beats_the_oracle(policy, split):
    trace = random_trace()
    oracle = simulate(trace, Setting(policy="oracle", budget=0.5, split=split))
    for observe in ("full", "honest"):
        other = simulate(trace, Setting(policy=policy, budget=0.5, split=split, observe=observe))
        assert other.attended_by_head[0, 0] > 0
        if split is Split.UNIFORM:
            assert (other.coverage_by_head <= oracle.coverage_by_head + 1e-6)[~np.isnan(other.coverage_by_head)].all()
        assert other.coverage_over_time.max() < 1
        assert (other.attended_over_time <= oracle.attended_over_time + 1e-9).all()
        assert (other.coverage_over_time <= oracle.coverage_over_time + 1e-6).all()
        assert other.observe == observe
    assert oracle.observe == "ahead"


@pytest.mark.parametrize("changes", [{"policy": "ema"}, {"policy": "lru"}, {"policy": "random"}, {"policy": "none"}, {"sketch": "b2"},
                                     {"split": "pooled"}, {"split": "layer"}, {"policy": "oracle"}, {"observe": "full"}], ids=str)
def test_the_whole_budget_covers_everything(changes):
    result = simulate(random_trace(), Setting(**{"budget": 1.0, **changes}))
    row = result.row()
    for figure in ("coverage", "worst_coverage", "hit_rate", "hit_rate_mass", "attended", "arena_hits"):
        assert row[figure] == pytest.approx(1, abs=1e-6), figure
    assert row["fetched"] == 0


def test_the_budget():
    trace = random_trace()
    for budget, pages in ((0.25, 5), (Attend(tokens=65), 5), (Attend(tokens=9999), 20)):
        for replay, step, measured in replayed(trace, Setting(policy="ema", budget=budget)):
            if measured and step.n_used_end == 20:
                assert (replay.selected.attended[:2].sum(axis=2) == pages).all()
                assert not replay.selected.attended[2, 1].any()


def test_whose_split():
    trace = random_trace()
    for setting, split in ((Setting(), "uniform"), (Setting(sketch="b2"), "pooled"), (Setting(split="layer", sketch="b2"), "layer"),
                           (Setting(policy="pyramidkv"), "pyramid"), (Setting(policy="pyramidkv", split="pooled"), "pooled")):
        assert simulate(trace, setting).row()["split"] == split


# ---- what the policy sees ---------------------------------------------------------------------------------------------------------


def seen_by_policy(trace: Trace, setting: Setting):
    """(step, what was attended, observation) of each measured step."""
    replay, seen = Replay(trace, setting), []
    update = replay.policy.update

    def spy(observation) -> None:
        seen.append(observation)
        update(observation)

    replay.policy.update = spy
    for step in trace:
        replay.step(step)
        if not step.warmup:
            yield step, replay.selected.attended, seen[-1]


def test_honest_observation():
    """Attended pages only, as the softmax over them."""
    for step, attended, seen in seen_by_policy(random_trace(), Setting(budget=0.25)):
        end = step.n_used_end
        assert not seen.mass_sum[:, :, end:].any() and not seen.mass_sum[:, :, :end][~attended].any()
        assert not seen.mass_max[:, :, :end][~attended].any()
        for row, head in ((0, 0), (1, 1)):
            mass = step.mass_sum[row, head, :end][attended[row, head]]
            np.testing.assert_allclose(seen.mass_sum[row, head, :end][attended[row, head]], mass / mass.sum() * 2, rtol=2e-3)
        assert (seen.position, seen.n_used_end, seen.n_tokens, seen.observed) == (step.position, end, 1, True)
        assert seen.changed.tolist() == [end - 1] and seen.n_budget == round(0.25 * end)


def test_full_observation():
    for step, _, seen in seen_by_policy(random_trace(), Setting(budget=0.25, observe="full")):
        np.testing.assert_array_equal(seen.mass_sum, step.mass_sum)
        np.testing.assert_array_equal(seen.mass_max, step.mass_max)


def test_fed_observation():
    """The sketch's estimate for the others; both together add up to the group."""
    for step, attended, seen in seen_by_policy(random_trace(), Setting(budget=0.25, sketch="b2")):
        end, estimate = step.n_used_end, step.estimates["b2"]
        part = np.s_[:, :, :end]
        np.testing.assert_array_equal(seen.mass_sum[part][~attended], estimate[part][~attended])
        assert (seen.mass_max[part][~attended] <= estimate[part][~attended]).all()
        np.testing.assert_allclose(seen.mass_sum.sum(axis=2)[:2], 2, rtol=2e-3)
        ratio = (seen.mass_sum[0, 0, :end] / step.mass_sum[0, 0, :end])[attended[0, 0] & (step.mass_sum[0, 0, :end] > 1e-4)]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def test_the_prompt_is_not_observed():
    trace = random_trace(depth=300, n_warmup=5)
    observations = []

    class Spy(POLICIES.get("none")):
        def update(self, observation) -> None:
            observations.append(observation)

    POLICIES.add("spy", Spy, "looks")
    try:
        simulate(trace, Setting(policy="spy"))
    finally:
        del POLICIES._entries["spy"]
    first, *others = observations
    assert not first.observed and first.n_tokens == 295 and first.position == 294 and first.changed.tolist() == list(range(19))
    assert len(others) == 45 and all(seen.observed for seen in others) and others[0].position == 295
    assert others[0].page_positions.tolist()[17:20] == [287, 295, -1]


def test_keys_are_shown_to_who_looks_at_them():
    trace = random_trace()
    for step, _, seen in seen_by_policy(trace, Setting(policy="knorm")):
        np.testing.assert_array_equal(seen.key_norms[:, :, : step.n_used_end], trace.key_norms[:, :, : step.n_used_end])
        assert not seen.key_norms[:, :, step.n_used_end :].any()
    assert all(seen.key_norms is None for _, _, seen in seen_by_policy(trace, Setting(policy="ema")))


# ---- the hot tier -----------------------------------------------------------------------------------------------------------------


def test_a_pool_keeps_the_best():
    trace = random_trace()
    setting = Setting(budget=0.2, pool=2.0, observe="full")
    was = None
    for replay, step, measured in replayed(trace, setting):
        if replay.selected is None:
            continue
        hot, end = replay.hot.hot.copy(), step.n_used_end
        assert hot[:, :, :end][replay.selected.attended].all() and not hot[:, :, end:].any()
        assert hot.sum() <= round(2.0 * round(0.2 * end) * 5)
        if was is not None:
            assert not (hot & ~was)[:, :, :end][~replay.selected.attended].any(), "only what is attended becomes hot"
        was = hot
    small, large = (simulate(trace, Setting(policy="ema", budget=0.2, sketch="b2", pool=pool)).row() for pool in (1.0, 2.0))
    assert large["arena_hits"] > small["arena_hits"] and large["fetched"] < small["fetched"] and large["coverage"] == small["coverage"]
    # without scores, what was attended last stays
    small, large = (simulate(trace, Setting(policy="none", budget=0.2, sketch="b2", pool=pool)).row() for pool in (1.0, 2.0))
    assert large["arena_hits"] > small["arena_hits"] and large["hot"] > 1.5 * small["hot"]


def test_what_leaves_a_pool():
    from edgekv.observation import Shape
    from edgekv.sim.hot import HotTier

    def pages(*which: int) -> np.ndarray:
        return np.isin(np.arange(7), which)[None, None]

    tier = HotTier(Shape(1, 1, 8), pool=2.0)
    assert tier.admit(pages(0, 1, 2, 6), 2, None).tolist() == [[3]]  # the last page is being filled: it is not fetched
    assert tier.admit(pages(3, 6), 2, None).tolist() == [[1]]
    assert np.flatnonzero(tier.hot).tolist() == [1, 2, 3, 6], "of those attended equally long ago, the newer stay"
    scores = np.array([0, 5, 1, 3, 0, 0, 0, 9], np.float32)[None, None]
    assert tier.admit(pages(4, 6), 2, scores).tolist() == [[1]]
    assert np.flatnonzero(tier.hot).tolist() == [1, 3, 4, 6]


@pytest.mark.parametrize("prefetch", ["rope", "neighbour", "previous", "random"])
@pytest.mark.parametrize("sketch", [None, "b2"])
def test_prefetch(prefetch, sketch):
    trace = random_trace(depth=400)
    setting = Setting(budget=0.2, sketch=sketch, prefetch=prefetch, prefetch_pages=1.4)
    n = last = 0
    for replay, step, measured in replayed(trace, setting):
        if replay.selected is None:
            continue
        n += last  # what was brought after a step is there for the next
        brought, end = replay.hot.brought, step.n_used_end
        assert brought.sum() <= 7 and not brought[:, :, end - 1 :].any() and not brought[2, 1].any()
        assert not brought[:, :, :end][replay.selected.attended].any(), "what is attended is hot already"
        last = int(brought.sum())
    plain, more = simulate(trace, setting.with_(prefetch="none")).row(), simulate(trace, setting).row()
    assert plain["prefetched"] == 0 and more["coverage"] == plain["coverage"]
    fed = sketch is not None  # an honest policy without estimates has seen mass on hot pages only
    assert more["prefetched"] * 5 * trace.header.n_steps == pytest.approx(n)
    assert n > 20 if prefetch != "previous" or fed else n <= 7  # after the last step of the warm-up it had seen all
    assert more["hit_rate"] > plain["hit_rate"] and more["hit_rate_mass"] > plain["hit_rate_mass"]
    if sketch is None:
        assert more["fetched"] == pytest.approx(plain["fetched"] + more["prefetched"], rel=0.2)


def test_residency():
    trace = random_trace()
    for replay, step, _ in replayed(trace, Setting(budget=0.2)):
        pass
    residency, end = replay.hot.residency(step.n_used_end), step.n_used_end
    assert (residency.state[:2, :, end - 1] == State.FILLING).all() and (residency.state[:, :, end:] == State.FREE).all()
    assert (residency.state[2, 1] == State.FREE).all()
    resident = residency.state == State.RESIDENT
    assert np.array_equal(resident[:2, :, : end - 1], replay.hot.hot[:2, :, : end - 1])


# ---- settings -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "match"), [
    ({"budget": 0.0}, "the budget is 0.0"), ({"budget": 1.5}, "the budget"), ({"split": "none"}, "no budget split 'none'"),
    ({"observe": "partly"}, "no observation mode 'partly'; choose one of: honest, full"), ({"prefetch": "all"}, "no prefetch 'all'"),
    ({"sketch": "b3"}, "no sketch 'b3'"), ({"feed": True}, "feed .* needs a sketch"), ({"pool": 0.5}, "the pool is 0.5"),
    ({"feed": True, "sketch": "b2", "observe": "full"}, "feed"), ({"blend": 2.0}, "blend is 2.0"), ({"coverage": -1}, "coverage is -1"),
    ({"access": "top0"}, "the access is 'top0'; write topN"), ({"access": "mass0%"}, "access"), ({"prefetch_pages": -1}, "prefetch_pages")])
def test_settings_that_are_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        Setting(**changes)


def test_what_a_trace_lacks():
    trace = random_trace()
    with pytest.raises(ConfigError, match="no estimates of sketch 'b1', but of: b2, box"):
        simulate(trace, Setting(sketch="b1"))
    with pytest.raises(ConfigError, match="no policy 'best'"):
        simulate(trace, Setting(policy="best"))


def test_access():
    assert Access.parse("top12") == Access(top=12) and str(Access(top=12)) == "top12"
    assert Access.parse("mass0.5%") == Access(top=0, share=0.005) and str(Access.parse("mass0.5%")) == "mass0.5%"


def test_names():
    assert Setting(policy="lru").name == "lru (honest)" and Setting(sketch="b2", policy="ema").name == "b2 ema (honest, fed)"
    assert Setting(sketch="none").sketch is None
    row = simulate(random_trace(), Setting(sketch="b2", observe="full")).row()
    assert (row["observe"], row["feed"], row["blend"]) == ("full", False, KvOptions.blend)


# ---- a live context selects the same ------------------------------------------------------------------------------------------------

DEPTH, N_WARMUP, N_STEPS = 400, 16, 80


def live_pages(model, changes: dict, shape: tuple[int, int]) -> np.ndarray:
    """bool [step, row, head, page]: what mode sparse attends, on the tokens of a recording."""
    options = KvOptions(mode="sparse", min_tokens=0, coverage_floor=0.0, sink_tokens=0, recent_tokens=0, split="uniform", kv_budget=0,
                        device="cpu", plan_every=1, **changes)
    pages = np.zeros((N_STEPS, *shape, (DEPTH + N_STEPS) // 16), bool)
    with decoder_of(model, kv_options=options, n_ctx=DEPTH + N_STEPS, n_batch=512, n_ubatch=512, n_threads=1) as decoder:
        tokens = find_text("prose").tokens(decoder.llama, DEPTH + N_STEPS)
        run = decoder.llama.kv
        list(read(decoder, tokens[: DEPTH - N_WARMUP], 1))
        warm_up(decoder, BenchMode(dict(changes, mode="sparse")), run.options, tokens[DEPTH - N_WARMUP : DEPTH])
        for step, token in enumerate(tokens[DEPTH:]):
            decoder.decode([token])
            for row, head in np.ndindex(shape):
                pages[step, row, head, hierarchy.last_pages(core.find(run.address), row, head)] = True
    return pages


@pytest.mark.parametrize(("n_head", "changes", "differ"), [
    (2, {"sketch": "b2", "policy": "none", "blend": 0.0}, 0), (4, {"sketch": "b2", "policy": "none", "blend": 0.0}, 0),
    (4, {"sketch": "box", "policy": "none", "blend": 0.0}, 2), (2, {"sketch": "b2", "policy": "ema", "blend": 0.5, "feed": False}, 2),
    (2, {"sketch": "b2", "policy": "ema", "blend": 0.5, "feed": True}, 6), (4, {"sketch": "none", "policy": "ema", "feed": False}, 0),
    (4, {"sketch": "none", "policy": "lru", "feed": False}, 0), (4, {"sketch": "b2", "policy": "ema", "blend": 0.1, "feed": True}, 30)])
def test_live_selection(tmp_path, synthetic, n_head, changes, differ):
    """A model of one layer: what it attends changes nothing before it, so that the trace of full attention is what the live steps see.

    The pages are the same but for near ties: a trace's float16 may exchange two pages whose values lie within 0.1 %. `differ`
    is how many pages of all (about 1,000) may be exchanged: none or a few where the query heads of a group do not matter. With
    groups of two and a policy that is blended in, a trace knows the softmax over the attended pages for both together only, and
    the policy's scores are a little different.
    """
    model = synthetic("llama", n_layer=1, n_head=n_head)
    sketch = None if changes["sketch"] == "none" else changes["sketch"]
    record(Recording(model, find_text("prose"), DEPTH, N_STEPS, N_WARMUP, (sketch,) if sketch else ()), tmp_path / "a.trace")
    live = live_pages(model, dict(changes, attend="20%"), (1, 2))
    setting = Setting(policy=changes["policy"], budget=0.2, split="uniform", sketch=sketch, blend=changes.get("blend", 0.0),
                      feed=changes.get("feed", False) if sketch else None, settings=Settings(sink_tokens=0, recent_tokens=0))
    simulated = np.zeros_like(live)
    with Trace.open(tmp_path / "a.trace") as trace:
        for replay, step, measured in replayed(trace, setting):
            if measured:
                simulated[step.position - DEPTH, :, :, : step.n_used_end] = replay.selected.attended
    assert (live.sum(axis=3) == simulated.sum(axis=3)).all() and 800 < live.sum() < 1200
    assert (live != simulated).sum() / 2 <= differ
    assert (live != np.roll(live, 1, axis=0)).sum() > 10 * max(differ, 1), "what is attended changes from step to step"


# ---- golden -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads(golden.EXPECTED.read_text())


@pytest.fixture(scope="module")
def golden_traces() -> dict[str, Trace]:
    return {name: Trace.open(path).loaded() for name, path in golden.TRACES.items()}


@pytest.mark.parametrize("name", golden.TRACES)
@pytest.mark.parametrize(("what", "setting"), list(golden.settings()), ids=[what for what, _ in golden.settings()])
def test_golden(expected, golden_traces, name, what, setting):
    assert what in expected[name], "a policy is new: run python tests/golden.py"
    assert golden.figures(golden_traces[name], setting) == pytest.approx(expected[name][what], abs=1e-6)


def test_golden_files_are_small(expected):
    assert all(path.stat().st_size < 300_000 for path in golden.TRACES.values())
    for name in golden.TRACES:
        assert list(expected[name]) == [what for what, _ in golden.settings()], "run python tests/golden.py"


# ---- the command ------------------------------------------------------------------------------------------------------------------


def sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "from edgekv.cli.main import main; main()", "sim", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)


def test_the_command(tmp_path):
    one, two = tmp_path / "one.trace", tmp_path / "two.trace"
    random_trace().write(one)
    random_trace(seed=1).write(two)
    done = sim(one, two, "--policy", "lru", "--policy", "ema", "--budget", "10%,64", "--observe", "honest,full", "-o", "json",
               "--set", "alpha=0.5")
    rows = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == "" and len(rows) == 16
    assert {(row["trace"], row["policy"], row["budget"], row["observe"]) for row in rows} == {
        (trace, policy, budget, observe) for trace in ("one.trace", "two.trace") for policy in ("lru", "ema") for budget in (0.1, 64)
        for observe in ("honest", "full")}
    with Trace.open(two) as trace:
        expected = simulate(trace, Setting(policy="ema", budget=0.1, settings=Settings(alpha=0.5))).row()
    found = next(row for row in rows if row["trace"] == "two.trace" and row["policy"] == "ema" and row["budget"] == 0.1
                 and row["observe"] == "honest")
    assert {key: value for key, value in found.items() if key not in ("trace", "seconds")} == pytest.approx(
        {key: value for key, value in expected.items() if key != "seconds"})

    table = sim(one, "--sketch", "b2", "--budget", "20%", "--worst", 2, "-o", "csv")
    heads = list(csv.DictReader(io.StringIO(table.stdout)))
    assert len(heads) == 2 and float(heads[0]["coverage"]) <= float(heads[1]["coverage"]) and {"layer", "head"} <= set(heads[0])
    layers = sim(one, "--by", "layer", "--budget", "20%", "-o", "md").stdout.splitlines()
    assert len(layers) == 5 and "| layer |" in layers[0]
    assert "honest, fed" in sim(one, "--sketch", "b2").stdout


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (("--set", "beta=1"), 2, "--set 'beta=1' is no setting; write NAME=VALUE with one of the names alpha, "),
    (("--set", "seed=x"), 2, "seed must be a whole number"), (("--policy", "best"), 2, "there is no policy 'best'"),
    (("--sketch", "b1"), 2, "the trace has no estimates of sketch 'b1'"), (("--budget", "x"), 2, "the page budget is 'x'"),
    (("--access", "x"), 2, "the access is 'x'"), (("--feed",), 2, "needs a sketch")])
def test_mistakes(tmp_path, arguments, code, said):
    random_trace().write(tmp_path / "a.trace")
    done = sim(tmp_path / "a.trace", *arguments)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
