"""Observers see attention mass that sums to one per query head, of decoded tokens and of a prompt's end."""

import numpy as np
import pytest
from support.contexts import attached
from support.evicting import ONE, Chat, evict

from edgekv.config import KvOptions
from edgekv.runtime.observers import UbatchReport

PAGE = 16


class Recorder:
    """Copies of every step's mass."""

    def __init__(self, run):
        self.steps: list[UbatchReport] = []
        self.mass_max: list[np.ndarray] = []
        self.mass_sum: list[np.ndarray] = []
        run.observers.append(self)

    def __call__(self, step: UbatchReport) -> None:
        self.steps.append(step)
        self.mass_max.append(step.mass_max.copy())
        self.mass_sum.append(step.mass_sum.copy())


@pytest.mark.parametrize(("kind", "n_head", "n_head_kv", "n_tokens"), [("llama", 6, 2, 1), ("llama", 6, 2, 16), ("qwen3", 4, 4, 4), ("gemma2", 4, 2, 1)])
def test_mass_sums_to_one(synthetic, kind: str, n_head: int, n_head_kv: int, n_tokens: int):
    with attached(synthetic(kind, n_head=n_head, n_head_kv=n_head_kv)) as (context, run):
        seen = Recorder(run)
        context.decode(range(260, 350), range(90), [0] * 90)
        context.decode(range(260, 260 + n_tokens), range(90, 90 + n_tokens), [0] * n_tokens)
        assert [(step.hooked, step.n_observed) for step in seen.steps] == [(True, 0), (True, n_tokens)]
        assert not seen.mass_sum[0].any(), "mode exact does not observe prompts"
        step, mass_max, mass_sum = seen.steps[1], seen.mass_max[1], seen.mass_sum[1]
        assert step.n_tokens == n_tokens and step.page_tokens == PAGE
        assert step.layers == tuple(layer.il for layer in run.layers if layer.hooked)
        assert mass_sum.shape == (len(step.layers), n_head_kv, 512 // PAGE)
        group = n_head // n_head_kv
        np.testing.assert_allclose(mass_sum.sum(axis=2), n_tokens * group, rtol=1e-4)
        assert (mass_max <= mass_sum + 1e-6).all() and (mass_sum <= group * mass_max + 1e-5).all()
        n_pages = -(-(90 + n_tokens) // PAGE)
        assert not mass_sum[:, :, n_pages:].any() and (mass_sum[:, :, :n_pages] > 0).all()


def test_larger_pages_add_up_small_ones(synthetic):
    mass = {}
    for page_tokens in (16, 64):
        with attached(synthetic("llama"), KvOptions(page_size=page_tokens)) as (context, run):
            seen = Recorder(run)
            context.decode(range(260, 350), range(90), [0] * 90)
            context.decode([300], [90], [0])
            mass[page_tokens] = seen.mass_sum[1]
    np.testing.assert_allclose(mass[16].reshape(*mass[64].shape, 4).sum(axis=3), mass[64], atol=1e-5)


def test_observing_can_be_turned_off(synthetic):
    with attached(synthetic("llama"), KvOptions(observe=False)) as (context, run):
        seen = Recorder(run)
        context.decode(range(260, 300), range(40), [0] * 40)
        context.decode([300], [40], [0])
        run.observe = True
        context.decode([301], [41], [0])
        assert [(step.hooked, step.n_observed) for step in seen.steps] == [(True, 0), (True, 0), (True, 1)]
        assert not seen.mass_sum[1].any() and seen.mass_sum[2].any()


# ---- observing changes nothing --------------------------------------------------------------------------------------------------

SPARSE = KvOptions(mode="sparse", sample_budget=200, exact_tokens=0, recent_tokens=16)
EVICT = KvOptions(mode="evict", evict_to=256, policy="ema+anchor+recent", recent_tokens=16)
DEVICE = SPARSE.with_(attention_device="emulated")


def conversation(path, options: KvOptions, observer=None):
    """A prompt and 40 or 80 ubatches of one token or several; with an observer two stretches of them are observed. Returns the logits,
    the plans and the tokens known when each was made, the scores, and the counters."""
    rng = np.random.default_rng(1)
    with attached(path, options, n_ctx=1024, n_seq=1, n_batch=64, n_ubatch=64, n_threads=1) as (context, run):
        logits, plans, position = [], [], 0
        if hierarchy := run._tiering and run._tiering.hierarchy:
            submit = hierarchy.migrator.submit
            hierarchy.migrator.submit = lambda plan: (plans.append((position, plan.promote.copy(), plan.demote.copy())), submit(plan))
        sizes = [64] * 6 + [1, 1, 1, 2, 1, 5, 1, 16] * (5 if options is DEVICE else 10)
        half = len(sizes) // 2
        for i, n in enumerate(sizes):
            if observer and i in (9, half + 9):
                run.observers.append(observer)
            if observer and i in (half, len(sizes) - 5):
                run.observers.remove(observer)
            logits.append(context.decode(rng.integers(260, 350, n), range(position, position + n), [0] * n))
            position += n
        scores = run._ops.download(hierarchy.policy.scores).copy() if hierarchy else None
        counters = {name: count for name, count in run.stats.as_dict().items() if not name.endswith("seconds")}
    return np.concatenate(logits), plans, scores, counters


@pytest.mark.parametrize("options", [SPARSE.with_(attention_device="cpu"), DEVICE, EVICT], ids=["sparse", "device", "evict"])
def test_observing_changes_nothing(synthetic, emulator, options: KvOptions):
    seen = []
    alone = conversation(synthetic("llama"), options)
    observed = conversation(synthetic("llama"), options, seen.append)
    np.testing.assert_array_equal(alone[0], observed[0])
    for one, other in zip(alone[1], observed[1], strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(one[2], other[2])
    np.testing.assert_array_equal(alone[2], observed[2])
    assert alone[3] == observed[3]
    assert len(seen) == (46 if options is DEVICE else 86) - 23, "and each ubatch was told"
    assert options is not EVICT or alone[3]["n_freed"] > 0
    assert options is not DEVICE or len(alone[1]) > 1 and alone[3]["n_promoted"] > 0


def test_each_ubatch_is_told_by_itself(synthetic):
    """Each ubatch is reported alone, also inside of a run, where mass adds up for the policy."""
    told = {}
    for plan_every in (1, 32):
        masses = told[plan_every] = []
        conversation(synthetic("llama"), SPARSE.with_(attention_device="cpu", policy="none", plan_every=plan_every),
                     lambda step: masses.append((step.n_tokens, step.hooked, step.n_observed, step.mass_sum.copy(), step.mass_max.copy())))
    for one, other in zip(told[1], told[32], strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_allclose(one[3], other[3], atol=1e-4)
        np.testing.assert_allclose(one[4], other[4], atol=1e-4)
        assert other[3].sum(axis=2).min() == pytest.approx(2 * other[2], rel=1e-3), "the query heads of a group, for each token"


# ---- the end of a prompt ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "mode"), [("llama", "evict"), ("gemma2", "sparse"), ("gpt-oss", "evict"), ("lfm2", "sparse")])
def test_observing_a_prompt_changes_nothing_but_what_is_known(synthetic, kind: str, mode: str):
    logits, steps = {}, {}
    for observe in (False, True):
        with attached(synthetic(kind), KvOptions(mode=mode, observe_prompt=observe), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            seen = steps[observe] = []
            run.observers.append(lambda step, seen=seen: seen.append((step.hooked, step.n_observed, step.mass_sum.copy())))
            logits[observe] = np.concatenate([chat.feed(chat.tokens(n)) for n in (128, 100)])
            assert run.stats.n_tokens_hooked == 228 and run.stats.n_ubatches_hooked == 2
            assert run._tiering is None or run._tiering.hierarchy.policy.scores.any() == observe
    np.testing.assert_array_equal(logits[False], logits[True])
    assert [(hooked, n) for hooked, n, _ in steps[True]] == [(True, 16)] * 2
    assert [(hooked, n) for hooked, n, _ in steps[False]] == [(True, 0)] * 2

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
