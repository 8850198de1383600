"""Mode evict: a hard bound on the cells, pages dropped by head, positions that stay right, and nothing stale through any event."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import pytest
from support import assistant
from support.contexts import Context, attached, drop, dropped
from support.decoding import kld

from edgekv import Llama
from edgekv._native import core
from edgekv._native import paging as native
from edgekv.cli.chat.kv import KvWatch, memory_rows, mode_summary
from edgekv.cli.chat.render import _kv_parts
from edgekv.config import Keep, KvOptions
from edgekv.errors import ConfigError
from edgekv.hierarchy import eviction
from edgekv.live import runtime
from edgekv.live.runtime import Runtime
from edgekv.pages.shape import PageShape
from edgekv.serving.options import ServerOptions
from edgekv.serving.server import Server
from edgekv.vocab import KvMode, Split

import llama_cpp  # after edgekv.live.runtime, which puts the libraries in place

ONE = dict(n_seq=1, n_batch=128, n_ubatch=128)
TOLERANCE = 1e-3
"""Of one kernel against another on the tiny models, in nats; attending what was dropped is a thousand times as far away."""


def evict(keep: int = 512, **more) -> KvOptions:
    return KvOptions(mode="evict", **{"keep": keep, "policy": "anchor+recent", "keep_rows": True, **more})


class Chat:
    """One sequence of a context, fed with random tokens."""

    def __init__(self, context: Context, run: Runtime | None, seed: int = 0):
        self.context, self.run, self.position = context, run, 0
        self.rng = np.random.default_rng(seed)

    def tokens(self, n: int) -> list[int]:
        return self.rng.integers(260, 350, n).tolist()

    def feed(self, tokens: list[int]) -> np.ndarray:
        n = len(tokens)
        logits = self.context.decode(tokens, range(self.position, self.position + n), [0] * n)
        self.position += n
        return logits

    def rewind(self, position: int) -> None:
        assert llama_cpp.llama_memory_seq_rm(self.context.memory, 0, position, -1)
        self.position = position

    def positions(self) -> set[int]:
        return set(self.run.cells.stream().positions.tolist()) - {-1}


def attended(run: Runtime, row: int, head: int) -> set[int]:
    return set((native.last_rows(run._native_handle(), row, head)[0] // 16).tolist())


# ---- decisions ------------------------------------------------------------------------------------------------------------------


SHAPE = PageShape(2, 2, 8)


def decide(scores=None, pins=None, gone=None, positions=None, cells=None, shape: PageShape = SHAPE, **more) -> eviction.Losses:
    positions = np.arange(8) * 16 + 15 if positions is None else np.array(positions)
    cells = np.where(positions >= 0, 16, 0) if cells is None else np.array(cells)
    gone = np.zeros(shape.axes, np.uint8) if gone is None else gone
    return eviction.decide(shape, scores, pins, eviction.Demand(gone, positions, cells, **{"split": Split.UNIFORM, "n_keep": 8, **more}))


def test_nothing_goes_while_all_fits():
    losses = decide()
    assert not len(losses.dropped) and not len(losses.freed)
    assert not len(decide(positions=[-1] * 8).freed), "an empty cache"


def test_without_scores_the_oldest_go_by_position_and_not_by_place():
    losses = decide(positions=[100, 20, 90, 30, 80, 40, 70, 60], n_keep=3)
    assert losses.freed.tolist() == [3, 5, 7, 6]
    assert losses.dropped.tolist() == [1, 9, 17, 25], "the oldest of all by every head, and its cells stay"


def test_heads_keep_different_pages_and_what_none_keeps_is_freed():
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[0, 0, 2] = scores[0, 1, 3] = scores[1, :, 4] = 1
    losses = decide(scores, n_keep=2)  # and page 7, the newest
    assert losses.freed.tolist() == [1, 5, 6]
    gone = np.zeros(SHAPE.axes, bool)
    gone.reshape(-1)[losses.dropped] = True
    assert (~gone[0, 0]).nonzero()[0].tolist() == [1, 2, 5, 6, 7], "freed pages are not dropped besides"
    again = decide(scores, gone=gone.astype(np.uint8), positions=[15, -1, 47, 63, 79, -1, -1, 127], n_keep=2)
    assert not len(again.dropped) and not len(again.freed), "what is gone is gone"


def test_room_is_made_from_what_the_best_head_values_least_and_pins_go_last():
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[0, 0] = [8, 7, 1, 2, 3, 4, 5, 0]
    pins = np.zeros(8, bool)
    pins[2] = True
    assert decide(scores, pins, n_excess=17).freed.tolist() == [3, 4], "whole pages, for 17 cells"
    assert decide(scores, pins, n_excess=7 * 16).freed.tolist() == [1, 2, 3, 4, 5, 6], "a bound is a bound; the first and the newest stay"
    assert decide(scores, pins, n_excess=16, cells=[16, 16, 16, 4, 4, 16, 16, 3]).freed.tolist() == [3, 4, 5]
    assert decide(shape=PageShape(0, 0, 8), n_excess=20).freed.tolist() == [1, 2], "nobody observes: the oldest but the first"


def test_bounds_that_cannot_be_kept_are_refused():
    with pytest.raises(ConfigError, match="cannot make room for batches of 512 tokens; keep at least 2,048 tokens, or read at most 256 "
                                          "tokens at once"):
        eviction.check_keep(1024, 1024, 512, 100, frees=True)
    with pytest.raises(ConfigError, match="always kept \\(900: the first and the newest\\) do not fit into --keep 1024, which has room "
                                          "for 768"):
        eviction.check_keep(1024, 1024, 256, 900, frees=True)
    eviction.check_keep(1024, 8192, 512, 900, frees=False)
    for text, message in (("soon", "it must be a number of tokens"), ("0", "it must be"), ("3", "less than one page"), ("auto", "must be")):
        with pytest.raises(ConfigError, match=message):
            KvOptions(mode="evict", keep=text)
    assert Keep.parse("64MiB") == Keep(0, 64 << 20) and Keep.parse(" 4096 ") == Keep(4096)
    with pytest.raises(ConfigError, match="convert 1.0 MiB to tokens first"):
        _ = KvOptions(mode="evict", keep="1MiB").keep_tokens


# ---- what is attended -----------------------------------------------------------------------------------------------------------


def test_where_all_is_kept_it_is_exact(synthetic):
    logits = {}
    for mode in ("exact", "evict"):
        with attached(synthetic("llama", n_head=6), KvOptions(mode=mode, keep=1024), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            assert run.cells.n_cells == 1024
            logits[mode] = np.concatenate([chat.feed(chat.tokens(n)) for n in (128, 128, 100, *[1] * 40, 7, 16, 17, 128, 1)])
            assert run.stats.n_freed == 0 and not dropped(run).any()
    np.testing.assert_array_equal(logits["exact"], logits["evict"])


@pytest.mark.parametrize(("kind", "types"), [("llama", {}), ("llama", {"type_k": 8, "type_v": 8}), ("gemma2", {}), ("gpt-oss", {})])
def test_streaming_is_stock_with_the_same_cells_removed(synthetic, single_precision, kind, types):
    """Teacher-forced, over many times what is kept: after each step the stock context loses the tokens that the other freed. Layers
    with a sliding window have a cache of their own, in which nothing is lost: the stock context is compared where there are none. With
    quantised keys stock quantises a prompt's queries too, which costs more than the bound: there mode exact is compared with."""
    path = synthetic(kind)
    with attached(path, evict(512), n_ctx=4096, **ONE, **types) as (context, run), attached(
            path, KvOptions(mode="exact" if types else "off"), n_ctx=4096, **ONE, **types) as (stock, _):
        ours, other = Chat(context, run), Chat(stock, None)
        assert run.cells.n_cells == 512 and run.options.mode is KvMode.EVICT
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


@pytest.mark.parametrize("steps", [[40], [17, 23], [1] * 40, [16, 16, 8]])
def test_a_page_that_all_heads_drop_is_as_good_as_removed(synthetic, monkeypatch, steps):
    """In decode steps and in prompts, where other nodes attend."""
    path = synthetic("llama", n_head=6)
    with attached(path, evict(1024), n_ctx=1024, **ONE) as (context, run), attached(path, KvOptions(mode="off"), n_ctx=1024, **ONE) as (
            stock, _):
        ours, other = Chat(context, run), Chat(stock, None)
        for n in (128, 90):
            tokens = ours.tokens(n)
            ours.feed(tokens), other.feed(tokens)
        mask = np.zeros(native.page_arrays(run._native_handle()).shape, bool)
        mask[:, :, [2, 5, 6, 11]] = True
        monkeypatch.setattr(run._tiering.hierarchy, "evict", lambda: None)  # it would free them
        drop(run, mask)
        for page in (2, 5, 6, 11):
            llama_cpp.llama_memory_seq_rm(stock.memory, 0, 16 * page, 16 * page + 16)
        for n in steps:
            tokens = ours.tokens(n)
            assert kld(other.feed(tokens), ours.feed(tokens)).max() < TOLERANCE
        assert dropped(run)[:, :, 2].all(), "until its cells change"


def test_each_head_attends_what_it_kept(synthetic, single_precision):
    """Lists of pages, attention mass (in the first layer what is left is the same mass, divided by its sum), and the same logits whether
    the tokens come one by one or as a prompt."""
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
                mask[0, 0] &= ~mask.all(axis=(0, 1))  # what no head keeps would be freed
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


def test_heads_keep_their_own_on_an_ordinary_context(synthetic):
    """The bound is logical there: each head's pages are what the split says, and what no head keeps is freed."""
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
        assert (abs(kept - 16) <= 1).all(), "each head its 256 tokens, and what came since the last look"
        assert len(used) > 18 and len({tuple(row) for row in dropped(run).reshape(6, -1).tolist()}) > 1, "they keep different ones"
        assert run.stats.n_dropped > 0 and run.stats.n_freed == chat.position - len(chat.positions())
        assert run.tiers().n_dropped == int(dropped(run).sum())
        run.mode = "exact"  # what is left, all of it
        chat.feed(chat.tokens(1))
        run.mode = "evict"
        gone = dropped(run)  # it looks anew after the step
        chat.feed(chat.tokens(1))
        stored = int(np.flatnonzero(run.cells.stream().positions == chat.position - 1)[0]) // 16
        expected = {*used.tolist(), stored} - set(np.flatnonzero(gone[0, 0]).tolist())
        assert attended(run, 0, 0) == expected


def test_a_sequence_that_is_taken_back_is_not_empty(synthetic):
    """Whatever a policy wants of its beginning: to llama.cpp's server an empty sequence that should hold tokens is a reason to abort."""
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


# ---- a hard bound ---------------------------------------------------------------------------------------------------------------


def test_twenty_times_what_is_kept(synthetic):
    """Nothing grows and nothing fails; positions of what stays are those it had."""
    with attached(synthetic("llama"), evict(256, policy="ema+anchor+recent"), n_ctx=8192, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
        chat = Chat(context, run)
        assert llama_cpp.llama_n_ctx(context.ctx) == 8192 and run.cells.n_cells == 256
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


# ---- events ---------------------------------------------------------------------------------------------------------------------


def test_rewinding_and_state_files_bring_back_what_they_change(synthetic):
    options = KvOptions(mode="evict", keep=128, policy="ema+anchor+recent", split="uniform", recent_tokens=16)
    with attached(synthetic("llama"), KvOptions(mode="exact"), n_ctx=1024, **ONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(4):
            chat.feed(chat.tokens(128))
        state, probe = context.save(), chat.tokens(1)
        expected = chat.feed(probe)
        run.configure(options)
        for _ in range(33):
            chat.feed(chat.tokens(1))
        assert dropped(run).any() and len(chat.positions()) < 512
        lost = set(range(512)) - chat.positions()
        gap = max(lost) + 1
        chat.rewind(512)
        assert np.isfinite(chat.feed(chat.tokens(20))).all()
        chat.rewind(gap)  # to a position whose neighbour is gone
        assert np.isfinite(chat.feed(chat.tokens(1))).all() and gap in chat.positions()
        context.load(state)
        chat.position = 512
        found = chat.feed(probe)
        assert not dropped(run)[:, :, :32].any() and chat.positions() == set(range(513))
        np.testing.assert_array_equal(expected, found)
        for _ in range(20):
            chat.feed(chat.tokens(1))
        assert dropped(run).any(), "and then it begins anew"
        chat.rewind(0)
        chat.feed(chat.tokens(1))
        assert not dropped(run).any() and run.memory().n_cells_used == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bounded", [True, False])
def test_random_events(synthetic, monkeypatch, caplog, seed: int, bounded: bool):
    """Against a shadow: a head attends a page if it sees a cell of it, and did not drop it since one of its cells changed."""
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
            shadow[moves["row"], moves["head"], moves["page"]] = True
            real(handle, moves)

        def look(step) -> None:
            """Before the hierarchy drops anything in this step: what it attended."""
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
                        assert attended(run, row, head) == set(np.flatnonzero(in_use & ~shadow[row, head]).tolist())

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
    """A draft model attends what its target stored: none of it is the draft's to sketch, to observe or to free."""
    path = assistant.write(tmp_path / "draft.gguf")
    with attached(synthetic("gemma2"), evict(512), n_ctx=4096, **ONE) as (target, run):
        with runtime.defaults(KvOptions(mode="exact")):
            draft = assistant.draft_of(target, path, n_ctx=4096, **ONE)
        guest = runtime.find(draft.address)
        chat = Chat(target, run)
        for n in (128, 128, 1):
            chat.feed(chat.tokens(n))
        before = run.cells.stream().positions.copy()
        assert guest.cells.n_cells == 512 and (guest.cells.stream().positions == before).all(), "the same cells"

        assert not any(layer.hooked for layer in guest.layers) and guest.layers[0].reason == "reads the cache of another layer"
        assert guest.memory().home_bytes == 0, "counted where it belongs"
        assert native.free_pages(guest._native_handle(), np.arange(4)) == 0
        draft.decode([270], [chat.position], [0])
        assert guest.stats.n_ubatches_hooked == 0 and (run.cells.stream().positions == before).all()
        draft.close()

        with runtime.defaults(evict(512)):
            draft = assistant.draft_of(target, path, n_ctx=4096, **ONE)
        assert runtime.find(draft.address) is None, "it runs stock, and says so"
        draft.close()


# ---- what is refused ------------------------------------------------------------------------------------------------------------


def test_contexts_that_cannot_evict_say_so(synthetic):
    path = str(synthetic("llama"))
    with pytest.raises(ConfigError, match="batches of 512 tokens; keep at least 2,048"):
        Llama(path, kv_options=evict(1024), n_ctx=4096, n_batch=512, verbose=False)
    with pytest.raises(ConfigError, match="there are none here"):
        Llama(path, kv_options=evict(1024), n_ctx=4096, flash_attn=False, verbose=False)
    with pytest.raises(ConfigError, match="runs on the processor only"):
        Llama(path, kv_options=evict(1024, device="cuda"), n_ctx=4096, verbose=False)
    with pytest.raises(ConfigError, match="hold fewer than 256 tokens of this model"):
        Llama(path, kv_options=KvOptions(mode="evict", keep="100KiB"), n_ctx=4096, verbose=False)
    with attached(synthetic("llama"), n_ctx=1024) as (_, run), pytest.raises(ConfigError, match="serves one sequence, and this context is made for 4"):
        run.configure(evict(256))
    with attached(synthetic("llama"), n_ctx=1024, **ONE) as (_, run):
        run.mode = "evict"  # the default bound holds
        with pytest.raises(ConfigError, match="always kept \\(2,096: "):
            run.configure(evict(256, recent_tokens=2048))


def test_llama_fits_its_batches_to_what_it_keeps(synthetic):
    per_token = 2 * 2 * 2 * 64 * 2
    llama = Llama(str(synthetic("llama")), kv_options=KvOptions(mode="evict", keep=f"{600 * per_token}B"), n_ctx=4096, verbose=False)
    assert llama.n_batch == 128 and llama.kv.cells.n_cells == 512 and llama.n_ctx() == 4096 and llama.kv.options.keep_tokens == 512
    assert llama.kv.memory().home_bytes <= 600 * per_token
    text = llama("abcdefgh" * 200, max_tokens=600, temperature=0.0)
    assert text["usage"]["total_tokens"] > 1500 and llama.kv.memory().n_cells_used <= 512
    llama.close()


# ---- the server, and what a person is told ----------------------------------------------------------------------------------------


def ask(server: Server, messages: list[dict], n: int) -> dict:
    body = json.dumps({"messages": messages, "max_tokens": n, "temperature": 0}).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def test_a_conversation_longer_than_what_is_kept(synthetic):
    """Served turn by turn, taken back to where the neighbour is gone, and begun anew."""
    options = ServerOptions(synthetic("llama"), kv=KvOptions(mode="evict", keep=256), n_ctx=2048)
    with Server(options) as server:
        (run,) = runtime.live()
        messages, seen = [], []
        for turn in range(9):
            messages += [{"role": "user", "content": f"{turn}" * 80}]
            messages += [ask(server, messages, 30)["choices"][0]["message"]]
            seen.append(run.n_positions)
            assert run.memory().n_cells_used <= 256
            if turn == 7:
                messages = messages[:6]
        assert max(seen) > 800 and run.stats.n_freed > 500 and llama_n_ctx(run) == 2048
        status = KvWatch(server).status(run.n_positions)
        assert status.kept == (run.memory().n_cells_used, run.n_positions)
        assert _kv_parts(status)[0][0][1] == f"KV evict: {status.kept[0]:,} of {status.kept[1]:,} tokens kept"
        assert mode_summary(server) == "evict: 256 tokens kept"
        rows = dict(memory_rows(server))
        assert rows["kept"].startswith(f"{status.kept[0]:,} of") and rows["dropped"].startswith(f"{run.stats.n_freed:,} tokens")
        assert ask(server, [{"role": "user", "content": "x"}], 5)["usage"]["completion_tokens"] > 0


def llama_n_ctx(run: Runtime) -> int:
    return core.limits(run._native_handle()).n_ctx_seq


def test_what_the_server_cannot_keep_is_refused(synthetic):
    path, kv = synthetic("llama"), KvOptions(mode="evict", keep=512)
    with pytest.raises(ConfigError, match="one request at a time, not 2"):
        Server(ServerOptions(path, kv=kv, n_slots=2))
    for option in ("--context-shift", "--cache_reuse", "-ub"):
        with pytest.raises(ConfigError, match="does not go with mode evict"):
            Server(ServerOptions(path, kv=kv, extra=(option, "256")))
    with pytest.raises(ConfigError, match="always kept \\(5,"):
        Server(ServerOptions(path, kv=kv.with_(recent_tokens=5000), n_ctx=2048)).start()
    assert not runtime.live()


# ---- what prompts attend to -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt-oss", "lfm2"])
@pytest.mark.parametrize("mode", ["sparse", "evict"])
def test_observing_a_prompt_changes_nothing_but_what_is_known(synthetic, kind: str, mode: str):
    logits, steps = {}, {}
    for observe in (False, True):
        with attached(synthetic(kind), KvOptions(mode=mode, observe_prompt=observe), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            seen = steps[observe] = []
            run.observers.append(lambda step, seen=seen: seen.append((step.hooked, step.n_observed, step.mass_sum.copy())))
            logits[observe] = np.concatenate([chat.feed(chat.tokens(n)) for n in (128, 100)])
            assert run.stats.n_tokens_hooked == 228 and run.stats.n_ubatches_hooked == 2
            assert run._tiering.hierarchy.policy.scores.any() == observe
    np.testing.assert_array_equal(logits[False], logits[True])
    assert [(hooked, n) for hooked, n, _ in steps[True]] == [(True, 16)] * 2
    assert [(hooked, n) for hooked, n, _ in steps[False]] == [(True, 0)] * 2


def test_a_prompts_mass_is_that_of_its_last_tokens(synthetic):
    masses = []
    for last in (1, 16):
        with attached(synthetic("llama", n_head=6), KvOptions(mode="sparse"), n_ctx=1024, **ONE) as (context, run):
            chat = Chat(context, run)
            tokens, total = chat.tokens(128), []
            run.observers.append(lambda step: total.append(step.mass_sum.copy()))
            if last == 1:  # the same tokens, one by one after the others
                run.mode = "exact"
                chat.feed(tokens[:112])
                for token in tokens[112:]:
                    chat.feed([token])
            else:
                chat.feed(tokens)
            masses.append(np.sum(total, axis=0))
    assert masses[1].sum() == pytest.approx(16 * 2 * 6, rel=1e-3), "tokens x layers x query heads"
    np.testing.assert_allclose(masses[0], masses[1], atol=2e-2)


def test_the_default_model_goes_on_past_what_it_keeps(default_model):
    llama = Llama(str(default_model), kv_options=KvOptions(mode="evict", keep=512), n_ctx=4096, n_threads=1, verbose=False)
    prompt = "The magic number is 7421. " + "The quick brown fox jumps over the lazy dog. " * 70
    text = llama(prompt + "The quick brown fox", max_tokens=8, temperature=0.0)["choices"][0]["text"]
    assert "jumps over the lazy dog" in text
    assert llama.n_tokens > 700 and llama.kv.memory().n_cells_used <= 512 and llama.kv.stats.n_freed > 200
    llama.close()
