"""Mode evict: a hard bound on the tokens that have memory, pages dropped by layer, positions that stay right, and nothing stale behind any event."""

import numpy as np
import pytest
from support import assistant
from support.contexts import attached, dropped
from support.decoding import kld
from support.evicting import ONE, TOLERANCE, Chat, attended, evict

from edgekv import Llama, _native
from edgekv._native import paging as native
from edgekv._native import testing
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.runtime import attachments

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place


@pytest.mark.parametrize(("kind", "types"), [("llama", {}), ("llama", {"type_k": 8, "type_v": 8}), ("llama", {"type_k": 2, "type_v": 2}),
                                             ("gemma2", {}), ("gpt-oss", {})])
def test_streaming_is_stock_with_the_same_cells_removed(synthetic, kind, types):
    """Teacher-forced, over many times what is kept: after each step the stock context loses the tokens that the other freed. Layers
    with a sliding window have a cache of their own, in which nothing is lost: the stock context is compared where there are none. With
    quantised keys stock quantises a prompt's queries too, and AMX's tiles round what prompts attend to bf16, which cost more than the bound: there mode exact
    is compared with."""
    path, reference = synthetic(kind), "exact" if types or _native.isa() == "amx" else "off"
    with attached(path, evict(512), n_ctx=4096, **ONE, **types) as (context, run), attached(
            path, KvOptions(mode=reference), n_ctx=4096, **ONE, **types) as (stock, _):
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


# ---- with a sample budget a head reads a sample of what it has not dropped ---------------------------------------------------------


ALL = 1e9
"""A resolution at which every token is read for certain."""
KEPT = dict(policy="ema+anchor+recent", split="uniform", recent_tokens=32, exact_tokens=0)


def rows(run, row: int, head: int) -> tuple[set[int], np.ndarray]:
    cells, weights = run.last_rows(row, head)
    return set(cells.tolist()), weights


class Kept:
    """The cells that heads keep at a step, seen before it: what they have not dropped, and the pages that it stores in."""

    def __init__(self, run):
        cells = run.cells.stream()
        self._run, self._gone, self._used, self._now = run, dropped(run), np.flatnonzero(cells.positions >= 0), cells.now
        self.any_dropped = bool(self._gone.any())

    def cells(self, row: int, head: int) -> set[int]:
        stored = np.unique(self._run.cells.stream().changed_since(self._now) // 16)
        used = np.union1d(self._used, (16 * stored[:, None] + np.arange(16)).reshape(-1))
        gone = self._gone[row, head].copy()
        gone[stored] = 0
        return set(used[gone[used // 16] == 0].tolist())


@pytest.mark.parametrize(("kind", "bounded", "types"), [
    ("llama", False, {}), ("llama", True, {}), ("llama", False, {"type_k": 8, "type_v": 8}), ("gemma2", False, {}), ("gpt-oss", False, {})])
def test_at_the_finest_resolution_all_that_is_kept_is_read(synthetic, kind, bounded, types):
    """Behind five times what is kept, step by step and in batches: the logits of mode evict without a resolution, while pages are freed,
    filled again and dropped by layers."""
    path, sampled, whole = synthetic(kind), evict(512, **KEPT, sample_budget=ALL), evict(512, **KEPT)
    first = (sampled, whole) if bounded else (KvOptions(mode="exact"),) * 2
    with attached(path, first[0], n_ctx=4096, **ONE, **types) as (context, run), attached(path, first[1], n_ctx=4096, **ONE, **types) as (
            other, plain):
        run.configure(sampled), plain.configure(whole)
        ours, theirs = Chat(context, run), Chat(other, plain)
        n_compared, n_hooked = 0, sum(layer.hooked for layer in run.layers)
        for n in (*[128] * 5, 100, *[1] * 35, 128, 5, 16, *[128] * 10, *[1] * 35, 3, 128, *[1] * 5):
            tokens = ours.tokens(n)
            assert kld(theirs.feed(tokens), ours.feed(tokens)).max() < TOLERANCE
            for row in range(n_hooked if n == 1 else 0):
                (cells, weights), (expected, _) = rows(run, row, 0), rows(plain, row, 0)
                if expected:  # else no head had dropped a page
                    assert (weights == 1).all() and cells == expected
                    n_compared += 1
            assert n == 1 or testing.check(run._native_handle()).n_groups_wrong == 0
        # a model with one such layer frees what that layer does not keep
        assert (n_compared > 20) == (run.stats.n_dropped > 0) == (n_hooked > 1) and run.stats.n_freed == plain.stats.n_freed > 0


def test_a_sample_is_of_what_is_kept(synthetic):
    path = synthetic("llama", n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact"), n_ctx=4096, **ONE) as (context, run), attached(
            path, KvOptions(mode="exact"), n_ctx=4096, **ONE) as (other, plain):
        run.configure(evict(2560, **KEPT, sample_budget=300)), plain.configure(evict(2560, **KEPT))
        ours, theirs = Chat(context, run), Chat(other, plain)
        for _ in range(24):
            tokens = ours.tokens(128)
            assert kld(theirs.feed(tokens), ours.feed(tokens)).max() < TOLERANCE, "a prompt reads all that is kept"
        for _ in range(5):
            keeps = Kept(run)
            ours.feed(ours.tokens(1))
            for head in range(run.layers[1].n_head_kv):
                cells, weights = rows(run, 1, head)
                kept = keeps.cells(1, head)
                assert cells < kept and (weights >= 1).all() and (weights > 1).any()
                newest = np.flatnonzero(run.cells.stream().positions > ours.position - 20)
                assert set(newest.tolist()) <= cells
        assert keeps.any_dropped and plain.memory().sketch_bytes == 0 < run.memory().sketch_bytes


def test_short_views_are_read_whole(synthetic):
    """As in mode sparse, of up to `exact_tokens` cells, though heads have dropped pages."""
    with attached(synthetic("llama"), KvOptions(mode="exact"), n_ctx=1024, **ONE) as (context, run):
        run.configure(evict(512, **{**KEPT, "exact_tokens": 1024}, sample_budget=10))
        chat = Chat(context, run)
        for n in (*[128] * 6, *[1] * 20):
            chat.feed(chat.tokens(n))
        keeps = Kept(run)
        chat.feed(chat.tokens(1))
        cells, weights = rows(run, 0, 0)
        kept = keeps.cells(0, 0)
        assert keeps.any_dropped and cells <= kept and len(kept - cells) < 16 and (weights == 1).all()


# ---- events ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "bounded"), [(0, True), (1, True), (2, False)])
def test_random_events(synthetic, monkeypatch, caplog, seed: int, bounded: bool):
    """A head attends a page if it sees a cell of it and has not dropped the page since one of its cells changed."""
    rng = np.random.default_rng(seed)
    options = evict(256, policy="ema+anchor+recent", split=["uniform", "pooled", "pyramid"][seed], recent_tokens=16, plan_every=1)
    with attached(synthetic("llama"), options if bounded else KvOptions(mode="exact"), n_ctx=1024, n_seq=1, n_batch=64,
                  n_ubatch=64) as (context, run):
        handle = run._native_handle()
        chat = Chat(context, run, seed)
        run.configure(options)
        shadow = np.zeros(native.page_arrays(handle).shape, bool)
        clock = np.zeros(run.cells.n_cells, np.uint64)
        real = native.drop_pages
        n_checked = 0

        def drop_pages(handle, moves) -> None:
            shadow[moves["layer"], moves["head"], moves["page"]] = True
            real(handle, moves)

        def look(step) -> None:
            """Before the hierarchy drops anything in this step: the pages that were attended."""
            nonlocal n_checked
            cells = run.cells.stream()
            shadow[:, :, np.unique(np.flatnonzero(cells.changed > clock) // 16)] = False
            clock[:] = cells.changed
            np.testing.assert_array_equal(dropped(run).astype(bool), shadow)
            in_use = (cells.positions >= 0).reshape(-1, 16).any(axis=1)
            if step.n_tokens_hooked == 1 and run.mode is KvMode.EVICT and shadow.any():
                n_checked += 1
                for row in range(2):
                    for head in range(2):
                        assert attended(run, row, head) == set(np.flatnonzero(in_use & ~shadow[row, head]).tolist()), f"row {row}, head {head}"

        monkeypatch.setattr(native, "drop_pages", drop_pages)
        observation = run._tiering.observation
        monkeypatch.setattr(run._tiering, "observation", lambda seen: (look(seen), observation(seen))[1])
        states: list[tuple[int, bytes]] = []
        for _ in range(140):
            event = rng.choice(["one", "few", "prompt", "undo", "clear", "save", "load", "mode"], p=[.55, .1, .15, .07, .02, .04, .05, .02])
            if event in ("one", "few", "prompt") or not chat.position:
                n = {"few": int(rng.integers(2, 17)), "prompt": int(rng.integers(17, 65))}.get(event, 1)
                if chat.position + n < 1000:
                    assert np.isfinite(chat.feed(chat.tokens(n))).all()
            elif event == "undo":
                chat.rewind(max(1, chat.position - int(rng.integers(1, 60))))
            elif event == "clear":
                llama_cpp.llama_memory_clear(context.memory, True)
                chat.position = 0
            elif event == "save":
                states.append((chat.position, context.save()))
            elif event == "load" and states:
                chat.position, state = states[int(rng.integers(len(states)))]
                context.load(state)
            elif event == "mode":
                run.mode = "exact" if run.mode is KvMode.EVICT else "evict"
            run._tiering.hierarchy.check()
        assert "callback failed" not in caplog.text, "what fails in a callback is logged"
        assert run.stats.n_freed > 0 if bounded else n_checked > 0


def test_a_cache_over_anothers_cells_is_left_alone(synthetic, tmp_path):
    """A draft model attends cells that its target stored: the draft sketches, observes and frees none of them."""
    path = assistant.write(tmp_path / "draft.gguf")
    with attached(synthetic("gemma2"), evict(512), n_ctx=4096, **ONE) as (target, run):
        with attachments.defaults(KvOptions(mode="exact")):
            draft = assistant.draft_of(target, path, n_ctx=4096, **ONE)
        guest = attachments.find(draft.address)
        chat = Chat(target, run)
        for n in (128, 128, 1):
            chat.feed(chat.tokens(n))
        before = run.cells.stream().positions.copy()
        assert guest.cells.n_cells == run.cells.n_cells and (guest.cells.stream().positions == before).all(), "the same cells"

        assert not any(layer.hooked for layer in guest.layers) and guest.layers[0].reason == "reads the cache of another layer"
        assert guest.memory().home_bytes == 0, "counted where it belongs"
        assert native.free_pages(guest._native_handle(), np.arange(4)) == 0
        draft.decode([270], [chat.position], [0])
        assert guest.stats.n_ubatches_hooked == 0 and (run.cells.stream().positions == before).all()
        draft.close()

        with attachments.defaults(evict(512)):
            draft = assistant.draft_of(target, path, n_ctx=4096, **ONE)
        assert attachments.find(draft.address) is None, "it runs stock, and says so"
        draft.close()
