"""Mode sparse is `exact` where everything is read for certain; it reads the certain rows and a sample; sketches and arena stay true through
every event, while options, tokens and instruction sets change. native/tests/host/test_sample.cpp judges the sample."""

import numpy as np
import pytest
from support.contexts import attached, n_hooked
from support.decoding import N_PROMPT, kld, open_model
from support.events import SAMPLED, check, follow_events
from support.planes import ALL

from edgekv import Llama
from edgekv.common.errors import ConfigError
from edgekv.common.reports import SelectionReport
from edgekv.config import KvOptions

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place


def logits_of(llama: Llama, steps, options: KvOptions) -> np.ndarray:
    rng = np.random.default_rng(0)
    llama.reset()
    llama._ctx.kv_cache_clear()
    llama.kv.configure(options)
    llama.eval(rng.integers(260, 350, N_PROMPT).tolist())
    for n in steps:
        llama.eval(rng.integers(260, 350, n).tolist())
    return np.array(llama.scores[N_PROMPT : llama.n_tokens])


def exact_and_its_spread(llama: Llama, steps) -> tuple[np.ndarray, float]:
    """Logits of `exact`, and twice its largest distance from itself with other numbers of threads: sums in another order, which a step of
    8-bit activations may or may not make visible. One number of threads is too few to see it."""
    exact = logits_of(llama, steps, llama.kv.options.with_(mode="exact"))
    spread = []
    for n_threads in (1, 3, 4):
        llama_cpp.llama_set_n_threads(llama.ctx, n_threads, n_threads)
        spread.append(kld(exact, logits_of(llama, steps, llama.kv.options)).max())
    llama_cpp.llama_set_n_threads(llama.ctx, 2, 2)
    return exact, max(2 * max(spread), 1e-6)


@pytest.mark.parametrize("where", [(-1, 0, 0), (2, 0, 0), (0, -1, 0), (0, 2, 0), (0, 0, -1), (0, 0, 16)])
def test_rows_of_what_there_is_not_are_refused(synthetic, where):
    with attached(synthetic("llama"), KvOptions(**ALL, keep_rows=True), n_seq=1) as (context, run):
        context.decode(range(260, 350), range(90), [0] * 90)
        context.decode([270], [90], [0])
        with pytest.raises(ConfigError, match="there is no query token .* of KV head .* in layer"):
            run.last_rows(*where)
        cells, weights = run.last_rows(1, 1)
        assert cells.tolist() == list(range(91)) and (weights == 1).all()
        assert not len(run.last_rows(1, 1, 15)[0]), "the step had one token"
        run.configure(run.options.with_(keep_rows=False))
        context.decode([270], [91], [0])
        assert not len(run.last_rows(1, 1)[0]), "nobody asked for them"


def test_layers_may_differ_in_kv_heads(synthetic):
    """A layer of 32 KV heads between two of 8 uses the same work space."""
    with attached(synthetic("deci", n_layer=3, n_head=32, n_head_kv=8), KvOptions(**ALL), n_seq=1) as (context, run):
        context.decode(range(260, 350), range(90), [0] * 90)
        for i in range(24):
            context.decode([270 + i], [90 + i], [0])
        n_tokens = run.layer_selection()["n_tokens"]
        assert [n_tokens[row, : layer.n_head_kv].tolist() for row, layer in enumerate(run.layers)] == [[24] * 8, [24] * 32, [24] * 8]


@pytest.mark.parametrize(("kind", "shape", "types"), [
    ("llama", {}, {}), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1}, {"type_k": "q4_0", "type_v": "q8_0"}), ("llama", {"head_dim": 72}, {}),
    ("llama", {"head_dim": 512}, {"type_k": "q8_0", "type_v": "q8_0"}), ("gemma2", {}, {}), ("gpt-oss", {}, {}), ("lfm2", {}, {}),
    ("deepseek2", {"n_latent": 512, "n_turned": 64, "n_head": 20}, {}),
    ("deepseek2", {"n_latent": 512, "n_turned": 64, "n_head": 16}, {"type_k": "q4_0", "type_v": "q4_0"})])
def test_with_everything_read_it_is_exact(synthetic, kind, shape, types):
    llama = open_model(synthetic(kind, **shape), **types)
    steps = (1, 1, 1, 2, 3, 5, 16, 1)
    exact, bound = exact_and_its_spread(llama, steps)
    sparse = logits_of(llama, steps, llama.kv.options.with_(**ALL, error_every=1))
    assert kld(exact, sparse).max() < bound
    check(llama.kv)
    seen = llama.kv.selection()
    assert seen.n_selections and seen.attended > 0.95 and seen.error < 1e-4 and seen.certain > 0.95


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize(("kind", "shape", "n_prompts"), [("llama", {"n_head": 6, "dtype": "f32"}, 3), ("deepseek32", {"n_layer": 1, "n_top_k": 60}, 0)])
def test_several_sequences(synthetic, kind: str, shape: dict, n_prompts: int, unified: bool):
    """Each token reads its own sequence only, whatever else lies in the cache: as stock does, and with everything read for certain. Stock nodes read the
    prompts of compressed rows."""
    logits = {}
    for mode in ("off", "exact", "sparse"):
        rng = np.random.default_rng(1)
        with attached(synthetic(kind, **shape), KvOptions(**ALL | {"mode": mode}), n_ctx=1024 if unified else 3 * 1024, n_seq=3,
                      unified=unified) as (context, run):
            ends = np.array([100, 150, 200])
            for seq, n in enumerate(ends):
                context.decode(rng.integers(260, 350, n), range(n), [seq] * n)
            found = []
            for step in range(6):
                # split streams are attended in one graph only if the batch names the sequences in order
                order = rng.permutation(3) if unified else np.arange(3)
                found.append(context.decode(rng.integers(260, 350, 3), ends[order] + step, order)[np.argsort(order)])
            logits[mode] = np.concatenate(found)
            check(run)
            assert n_hooked(run) == (0 if mode == "off" else n_prompts + 6)
    assert kld(logits["off"], logits["exact"]).max() < 1e-3 and np.abs(logits["off"] - logits["exact"]).max() < 0.2
    assert kld(logits["exact"], logits["sparse"]).max() < 1e-6


def test_a_context_is_attended_whole_up_to_a_length(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=2048)
    logits_of(llama, (1,) * 4, llama.kv.options.with_(mode="sparse", exact_tokens=768))
    assert llama.kv.selection() == SelectionReport(), "a view of 768 cells"
    for _ in range(5):
        llama.eval([270] * 40)  # prompts are attended whole
    assert llama.kv.selection() == SelectionReport()
    llama.eval([271])
    assert llama.kv.selection().n_selections == 2 * 2


def test_rows_and_weights_are_those_of_the_specification(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=2048)
    logits_of(llama, (1,) * 3, llama.kv.options.with_(**SAMPLED, keep_rows=True))
    for token in range(260, 276):
        before = llama.kv.layer_selection()
        llama.eval([token])
        after = llama.kv.layer_selection()
        for row in range(2):
            for head in range(2):
                cells, weights = llama.kv.last_rows(row, head)
                assert len(cells) == len(weights) == (after["n_read"] - before["n_read"])[row, head]
                assert (np.diff(cells) > 0).all() and cells[-1] == llama.n_tokens - 1
                assert (weights >= 1).all() and np.count_nonzero(weights == 1) == (after["n_certain"] - before["n_certain"])[row, head]


def test_the_error_is_estimated_now_and_then(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=2048)
    for every in (0, 1, 4):
        before = llama.kv.layer_selection()
        logits_of(llama, (1,) * 16, llama.kv.options.with_(**SAMPLED, error_every=every))
        n_errors = llama.kv.layer_selection()["n_errors"] - before["n_errors"]
        assert (n_errors == (0 if not every else 2 * 16 // every)).all(), "the heads in turn, each two query heads"


@pytest.mark.parametrize("types", [{}, {"type_k": "q8_0", "type_v": "q8_0"}], ids=["f16", "q8_0"])
def test_rows_do_not_depend_on_runs_or_threads(synthetic, types):
    llama = open_model(synthetic("llama", n_head=6), n_ctx=2048, **types)
    options = llama.kv.options.with_(**SAMPLED, keep_rows=True, error_every=1)
    found = []
    for n_threads in (2, 2, 1, 3):
        logits_of(llama, (), options)
        llama_cpp.llama_set_n_threads(llama.ctx, n_threads, 2)
        before, steps = llama.kv.layer_selection(), []
        for n in (1, 1, 4, 1, 16, 1):
            llama.eval(list(range(270, 270 + n)))
            steps += [llama.kv.last_rows(row, head, n - 1) for row in range(2) for head in range(2)]
        after = llama.kv.layer_selection()
        sums = {name: after[name] - before[name] for name in after.dtype.names}
        found.append((steps, np.array(llama.scores[N_PROMPT : llama.n_tokens]), sums))
        llama_cpp.llama_set_n_threads(llama.ctx, 2, 2)
    for steps, logits, sums in found[1:]:
        for (cells, weights), (first_cells, first_weights) in zip(steps, found[0][0], strict=True):
            np.testing.assert_array_equal(cells, first_cells)
            np.testing.assert_array_equal(weights, first_weights)
        np.testing.assert_array_equal(logits, found[0][1])
        for name, values in sums.items():
            np.testing.assert_allclose(values, found[0][2][name], rtol=1e-9, err_msg=name)


def test_a_sample_is_that_of_its_own_stream(synthetic):
    """Two conversations side by side, and then each in the other's stream: its queries, keys and positions draw the same rows."""
    texts, lengths, found = np.random.default_rng(3).integers(260, 350, (2, 320)), np.array([300, 260]), []
    for order in ([0, 1], [1, 0]):
        with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(**SAMPLED | {"sample_budget": 20}), n_ctx=2 * 1024, n_seq=2, unified=False) as (
                context, run):
            for stream, text in enumerate(order):
                context.decode(texts[text, : lengths[text]], range(lengths[text]), [stream] * lengths[text])
            llama_cpp.llama_memory_seq_rm(context.memory, order[1], 16, 48)  # the pages behind begin at other positions than those of the other text
            llama_cpp.llama_memory_seq_add(context.memory, order[1], 48, -1, -32)
            ends = lengths - [0, 32]
            steps = [context.decode(texts[order, 300 + step], ends[order] + step, [0, 1]) for step in range(8)]
            assert run.selection().attended < 0.7
        found.append(np.array(steps)[:, order])
    np.testing.assert_array_equal(*found)


def test_everything_may_change_while_it_runs(synthetic):
    llama = open_model(synthetic("llama"), n_ctx=2048)
    options = llama.kv.options.with_(**SAMPLED)
    logits_of(llama, (1,) * 20, options)
    for changes in ({"sample_budget": 1e4}, {"mode": "off"}, {"mode": "sparse"},
                    {"policy": "lru", "prefetch": "rope"}, {"mode": "exact"}, {"exact_tokens": 900},
                    {"mode": "sparse", "error_every": 3, "keep_rows": True}, {"exact_tokens": 0, "recent_tokens": 0},
                    {"policy": "random", "prefetch": "previous"}, {"policy": "none"}):
        options = options.with_(**changes)
        llama.kv.configure(options)
        assert llama.kv.mode == options.mode and llama.kv.options == options
        for token in range(12):
            llama.eval([260 + token])
        check(llama.kv)
    exact, bound = exact_and_its_spread(llama, (1, 2, 1))
    assert kld(exact, logits_of(llama, (1, 2, 1), options.with_(**ALL))).max() < bound
    with pytest.raises(ConfigError, match="this context has pages of 16 tokens"):
        llama.kv.configure(options.with_(page_size=32))


@pytest.mark.parametrize(("unified", "page_tokens"), [(False, 16), (True, 48)])
def test_sketches_follow_every_event(synthetic, unified: bool, page_tokens: int):
    """Cells are removed, copied, shifted, saved and restored: sketches are always as if built anew."""
    compared, _ = follow_events(synthetic("llama"), 100 if unified else 30, unified, page_tokens)
    assert compared > 300
