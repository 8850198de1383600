"""Mode evict: a hard bound on the tokens that have memory, pages dropped by layer, and positions that stay right."""

import numpy as np
import pytest
from support.contexts import attached
from support.decoding import kld
from support.evicting import ONE, TOLERANCE, Chat, evict

from edgekv import Llama
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place


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
