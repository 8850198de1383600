"""Mode evict: a hard bound on the tokens that have memory, pages dropped by layer, and positions that stay right."""

import numpy as np
import pytest
from support.contexts import attached, drop, dropped
from support.decoding import kld
from support.evicting import ONE, TOLERANCE, Chat, attended, evict

from edgekv import Llama
from edgekv._native import paging as native
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place


def test_where_all_is_kept_it_is_exact(synthetic):
    logits = {}
    for mode in ("exact", "evict"):
        with attached(synthetic("llama", n_head=6), KvOptions(mode=mode, evict_to=1024), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            assert run.cells.n_cells == 1024
            logits[mode] = np.concatenate([chat.feed(chat.tokens(n)) for n in (128, 128, 100, *[1] * 40, 7, 16, 17, 128, 1)])
            assert run.stats.n_freed == 0 and not dropped(run).any()
    np.testing.assert_array_equal(logits["exact"], logits["evict"])


@pytest.mark.parametrize(("kind", "types"), [("llama", {}), ("llama", {"type_k": 8, "type_v": 8}), ("llama", {"type_k": 2, "type_v": 2}),
                                             ("gemma2", {}), ("gpt-oss", {})])
def test_streaming_is_stock_with_the_same_cells_removed(synthetic, kind, types):
    """Teacher-forced, over many times what is kept: after each step the stock context loses the tokens that the other freed. Layers
    with a sliding window have a cache of their own, in which nothing is lost: the stock context is compared where there are none. With
    quantised keys stock quantises a prompt's queries too, which costs more than the bound: there mode exact is compared with."""
    path = synthetic(kind)
    with attached(path, evict(512), n_ctx=4096, **ONE, **types) as (context, run), attached(
            path, KvOptions(mode="exact" if types else "off"), n_ctx=4096, **ONE, **types) as (stock, _):
        ours, other = Chat(context, run), Chat(stock, None)
        assert run.cells.n_cells == 1024 and run.options.mode is KvMode.EVICT, "room for layers that keep different tokens"
        gone: set[int] = set()
        windowed = not all(layer.hooked for layer in run.layers)
        for n in (128, 128, 128, 128, 100, *[1] * 150, 128, 5, 16, 128, *[1] * 40):
            tokens = ours.tokens(n)
            logits, expected = ours.feed(tokens), other.feed(tokens)
            if not windowed:
                assert kld(expected, logits).max() < TOLERANCE
            assert np.isfinite(logits).all()
            for position in sorted(set(range(ours.position)) - ours.positions() - gone):
                llama_cpp.llama_memory_seq_rm(stock.memory, 0, position, position + 1)
                gone.add(position)
        kept = ours.positions()
        assert gone and {*range(16), *range(ours.position - 64, ours.position)} <= kept, "sinks and the newest"
        assert run.stats.n_freed == len(gone) and run.tiers().n_freed == len(gone) and run.memory().n_cells_used == len(kept)


@pytest.mark.parametrize("steps", [[17, 23], [16, 8, *[1] * 16]])
def test_a_page_that_all_heads_drop_is_as_good_as_removed(synthetic, monkeypatch, steps):
    """It holds in decode steps and in prompts, where other nodes attend."""
    path = synthetic("llama", n_head=6)
    with attached(path, evict(1024), n_ctx=1024, **ONE) as (context, run), attached(path, KvOptions(mode="off"), n_ctx=1024, **ONE) as (
            stock, _):
        ours, other = Chat(context, run), Chat(stock, None)
        for n in (128, 90):
            tokens = ours.tokens(n)
            ours.feed(tokens), other.feed(tokens)
        mask = np.zeros(native.page_arrays(run._native_handle()).shape, bool)
        mask[:, :, [2, 5, 6, 11]] = True
        monkeypatch.setattr(run._tiering.hierarchy, "evict", lambda: None)  # the hierarchy would free them
        drop(run, mask)
        for page in (2, 5, 6, 11):
            llama_cpp.llama_memory_seq_rm(stock.memory, 0, 16 * page, 16 * page + 16)
        for n in steps:
            tokens = ours.tokens(n)
            assert kld(other.feed(tokens), ours.feed(tokens)).max() < TOLERANCE
        assert dropped(run)[:, :, 2].all(), "until its cells change"


def test_each_head_attends_what_it_kept(synthetic):
    """Each head's list of pages, its attention mass and its logits fit what it kept. In the first layer the remaining mass is the same,
    divided by its sum. The logits are the same for single tokens and for a prompt."""
    path = synthetic("llama", n_head=2, n_head_kv=2)
    rng = np.random.default_rng(5)
    mass, logits = {}, {}
    for name in ("all", "one by one", "prompt"):
        with attached(path, evict(1024), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            chat.feed(chat.tokens(128)), chat.feed(chat.tokens(80))
            if name == "all":
                mask = rng.random(native.page_arrays(run._native_handle()).shape) < 0.4
                mask[:, :, 12:] = False  # the page being filled, and those to come
                mask[0, 0] &= ~mask.all(axis=(0, 1))  # a page that no head keeps would be freed
            else:
                drop(run, mask)
            seen = []
            run.observers.append(lambda step: seen.append((step.mass_sum.copy(), step.n_observed)))
            tokens = chat.tokens(32)
            if name == "prompt":
                logits[name] = chat.feed(tokens)
                assert [n for _, n in seen] == [16], "its last tokens"
            else:
                logits[name] = np.concatenate([chat.feed([token]) for token in tokens])
            mass[name] = np.sum([m for m, _ in seen], axis=0), seen
            if name == "one by one":
                for row in range(2):
                    for head in range(2):
                        assert attended(run, row, head) == set(np.flatnonzero(~mask[row, head, :15]).tolist())
                assert not mass[name][0][mask].any()
    assert kld(logits["one by one"], logits["prompt"]).max() < TOLERANCE and kld(logits["all"], logits["prompt"]).max() > 0.1
    left = [np.where(mask[0], 0, m[0]) for m, _ in mass["all"][1]]
    expected = np.array([m / m.sum(axis=-1, keepdims=True) for m in left])
    found = np.array([m[0] for m, _ in mass["one by one"][1]])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    np.testing.assert_allclose(mass["prompt"][0][0], found[16:].sum(axis=0), atol=1e-2)


def test_layers_keep_their_own_on_an_ordinary_context(synthetic):
    """Each layer has the pages of its share, and pages that no layer keeps are freed."""
    options = evict(256, policy="ema+anchor+recent", split="uniform", recent_tokens=32)
    with attached(synthetic("llama", n_layer=3), KvOptions(mode="sparse"), n_ctx=2048, **ONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(6):
            chat.feed(chat.tokens(128))
        assert run.memory().n_cells_used == 768
        run.configure(options)
        for _ in range(17):
            chat.feed(chat.tokens(1))
        used = np.unique(np.flatnonzero(run.cells.stream().positions >= 0) // 16)
        kept = (dropped(run)[:, :, used] == 0).sum(axis=-1)
        assert (abs(kept - 16) <= 1).all(), "each layer its 256 tokens, and what came since the last look"
        assert len(used) > 18 and len({tuple(pages) for pages in dropped(run).reshape(6, -1).tolist()}) == 3, "layers keep different ones"
        assert run.stats.n_dropped > 0 and run.stats.n_freed == chat.position - len(chat.positions())
        assert run.tiers().n_dropped == int(dropped(run).sum())
        gone = dropped(run)  # the hierarchy decides again after the step
        chat.feed(chat.tokens(1))
        stored = int(np.flatnonzero(run.cells.stream().positions == chat.position - 1)[0]) // 16
        expected = {*used.tolist(), stored} - set(np.flatnonzero(gone[0, 0]).tolist())
        assert attended(run, 0, 0) == expected


def test_a_sequence_that_is_taken_back_is_not_empty(synthetic):
    """The beginning of a sequence stays, whatever a policy wants: llama.cpp's server aborts on an empty sequence that should hold
    tokens."""
    for policy in ("recent", "h2o"):
        options = evict(256, policy=policy, sink_tokens=0, recent_tokens=0)
        with attached(synthetic("llama"), options, n_ctx=4096, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
            chat = Chat(context, run)
            for _ in range(16):
                chat.feed(chat.tokens(64))
            assert run.stats.n_freed > 700 and len(chat.positions()) <= 256
            for position in (1000, 100):
                chat.rewind(position)
                assert llama_cpp.llama_memory_seq_pos_max(context.memory, 0) >= 15
                assert np.isfinite(chat.feed(chat.tokens(1))).all()
            assert set(range(16)) <= chat.positions()


def test_twenty_times_what_is_kept(synthetic):
    """Nothing grows, nothing fails, and every page that stays keeps its positions."""
    with attached(synthetic("llama"), evict(256, policy="ema+anchor+recent"), n_ctx=8192, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
        chat = Chat(context, run)
        assert llama_cpp.llama_n_ctx(context.ctx) == 8192 and run.cells.n_cells == 512
        for _ in range(16):
            chat.feed(chat.tokens(64))
        for n in (16, *[1] * 40):
            chat.feed(chat.tokens(n))
        before = run.memory()
        keys = {position: cell for cell, position in enumerate(run.cells.stream().positions.tolist())}
        assert before.home_bytes == 2 * 2 * 256 * 2 * 64 * 2
        while chat.position < 20 * 256:
            chat.feed(chat.tokens(int(chat.rng.choice([1, 1, 1, 3, 16, 40, 64]))))
            assert run.memory().n_cells_used <= 256
        after = run.memory()
        assert (after.home_bytes, after.extra_bytes) == (before.home_bytes, before.extra_bytes)
        stays = set(keys) & chat.positions()
        now = {position: cell for cell, position in enumerate(run.cells.stream().positions.tolist())}
        assert stays and all(now[position] == keys[position] for position in stays), "nothing is moved"
        assert llama_cpp.llama_memory_seq_pos_max(context.memory, 0) == chat.position - 1


def test_a_bounded_context_makes_room_in_every_mode(synthetic):
    for mode in ("exact", "sparse", "off"):
        with attached(synthetic("llama"), evict(256), n_ctx=4096, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
            chat = Chat(context, run)
            chat.feed(chat.tokens(64))
            run.mode = mode
            for n in (64, 64, 64, 64, *[16] * 20, 64, 64):
                chat.feed(chat.tokens(n))
            assert run.memory().n_cells_used <= 256 and run.stats.n_freed > 0


def test_streaming_keeps_cells(synthetic):
    """4 sinks and the newest tokens, to the cell, after each look of the policy; the mass of the others goes on as the pages do."""
    with attached(synthetic("llama"), evict(260, policy="streaming(sink_tokens=4)", recent_tokens=0, plan_every=1), n_ctx=8192, n_seq=1, n_batch=16,
                  n_ubatch=16) as (context, run):
        chat = Chat(context, run)
        assert run.cells.n_cells == 1024
        for n in (*[16] * 30, *[1] * 50, 7, 16, 3):
            assert np.isfinite(chat.feed(chat.tokens(n))).all()
            if chat.position > 400:
                assert chat.positions() == {0, 1, 2, 3, *range(chat.position - 256, chat.position)}
        assert run.stats.n_freed == chat.position - 260 and run.stats.n_dropped == 0


def test_contexts_that_cannot_evict_say_so(synthetic):
    path = str(synthetic("llama"))
    with pytest.raises(ConfigError, match="batches of 512 tokens; keep at least 2,048"):
        Llama(path, kv_options=evict(1024), n_ctx=4096, n_batch=512, verbose=False)
    with pytest.raises(ConfigError, match="there are none here"):
        Llama(path, kv_options=evict(1024), n_ctx=4096, flash_attn=False, verbose=False)
    with pytest.raises(ConfigError, match="runs on the processor only"):
        Llama(path, kv_options=evict(1024, attention_device="cuda"), n_ctx=4096, verbose=False)
    with pytest.raises(ConfigError, match="hold fewer than 256 tokens of this model"):
        Llama(path, kv_options=KvOptions(mode="evict", evict_to="100KiB"), n_ctx=4096, verbose=False)
    with attached(synthetic("llama"), n_ctx=1024) as (_, run), pytest.raises(ConfigError, match="the 4 of this context share one cache"):
        run.configure(evict(256))
    with attached(synthetic("llama"), n_ctx=1024, **ONE) as (_, run):
        run.mode = "evict"  # the default bound holds
        with pytest.raises(ConfigError, match="always kept \\(2,096: "):
            run.configure(evict(256, recent_tokens=2048))


def test_llama_fits_its_batches_to_what_it_keeps(synthetic):
    per_token = 2 * 2 * 2 * 64 * 2
    llama = Llama(str(synthetic("llama")), kv_options=KvOptions(mode="evict", evict_to=f"{600 * per_token}B"), n_ctx=4096, verbose=False)
    assert llama.n_batch == 128 and llama.kv.memory().n_cells == 512 and llama.n_ctx() == 4096 and llama.kv.options.keep_tokens == 512
    assert llama.kv.memory().home_bytes <= 600 * per_token
    text = llama("abcdefgh" * 200, max_tokens=600, temperature=0.0)
    assert text["usage"]["total_tokens"] > 1500 and llama.kv.memory().n_cells_used <= 512
    llama.close()


def test_the_default_model_goes_on_past_what_it_keeps(default_model):
    llama = Llama(str(default_model), kv_options=KvOptions(mode="evict", evict_to=512), n_ctx=4096, n_threads=1, verbose=False)
    prompt = "The magic number is 7421. " + "The quick brown fox jumps over the lazy dog. " * 70
    text = llama(prompt + "The quick brown fox", max_tokens=8, temperature=0.0)["choices"][0]["text"]
    assert "jumps over the lazy dog" in text
    assert llama.n_tokens > 700 and llama.kv.memory().n_cells_used <= 512 and llama.kv.stats.n_dropped > 0 and llama.kv.stats.n_freed > 0
    llama.close()
