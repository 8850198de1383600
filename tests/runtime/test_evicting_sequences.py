"""Mode evict: each of several sequences keeps so much of its own, as if it were alone; layers keep different pages, and give back the memory of others."""

import numpy as np
import pytest
from support.contexts import attached, dropped
from support.decoding import kld
from support.evicting import TOLERANCE, Chat, check_rows, evict
from support.homes import resident_bytes

from edgekv._native import native_arrays, testing
from edgekv.config import KvOptions
from edgekv.runtime.cells import PARTIAL
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

KEEP, LAYERS = 512, 4
SMALL = dict(n_batch=128, n_ubatch=128, n_threads=1, unified=False)
OWN = dict(policy="ema+anchor+recent", split="uniform", recent_tokens=16)


def options(keep: int = KEEP, **more) -> KvOptions:
    return evict(keep, **{"plan_every": 1, **more})


class Talk(Chat):
    """One sequence of a context, of which several may be fed in one batch (`feed`)."""

    def kept(self) -> list[set[int]]:
        """The positions that each layer attends."""
        positions, per_stream = self.run.cells.stream(self.stream).positions, len(dropped(self.run)[0, 0]) // self.run.cells.n_stream
        gone = dropped(self.run)[:, 0, self.stream * per_stream : (self.stream + 1) * per_stream].repeat(16, axis=1)[:, : len(positions)]
        return [set(positions[(positions >= 0) & (of_layer == 0)].tolist()) for of_layer in gone]

    def rows(self) -> list[np.ndarray]:
        return [rows[self.stream] for il in range(len(self.run.layers)) for rows in (self.run.cells.keys(il), self.run.cells.values(il))]

    def held(self) -> float:
        """Tokens whose rows are in memory, mean of the layers."""
        return float(np.mean([len(positions) for positions in self.kept()]))


def feed(*parts: tuple[Talk, list[int]]) -> list[np.ndarray]:
    """Decode tokens of several sequences of one context in one batch; the logits of each."""
    flat = [(token, talk.position + i, talk.seq_id) for talk, tokens in parts for i, token in enumerate(tokens)]
    logits = parts[0][0].context.decode(*zip(*flat, strict=True))
    for talk, tokens in parts:
        talk.position += len(tokens)
    return np.split(logits, np.cumsum([len(tokens) for _, tokens in parts])[:-1])


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("kind", "more"), [
    ("llama", {"policy": "anchor+recent"}), ("llama", OWN), ("llama", {**OWN, "positions": 1}), ("llama", {**OWN, "split": "pooled", "policy": "h2o"}),
    ("llama", {"policy": "streaming(sink_tokens=4)", "recent_tokens": 0}), ("llama", {**OWN, "sample_budget": 1e9, "exact_tokens": 0, "positions": 1}),
    ("llama", {**OWN, "policy": "tova+recent"}), ("gemma2", {**OWN, "positions": 1})])
def test_two_sequences_are_as_each_alone(synthetic, kind, more):
    """Their tokens share batches, one is idle while the other goes on, one goes back; each has the logits and the kept tokens of a context alone.

    Batches fill whole pages, but where single cells are kept: which free cells llama.cpp takes for a token, and so with which tokens it shares a page,
    depends on how many others are in the batch. A page's place decides the order in which attention adds up, and rounding to bf16 which page is worth more."""
    path = synthetic(kind, n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, options(**more), n_ctx=2 * 4096, n_seq=2, **SMALL) as (context, run), attached(
            path, options(**more), n_ctx=4096, n_seq=1, **SMALL) as (left, run_left), attached(
            path, options(**more), n_ctx=4096, n_seq=1, **SMALL) as (right, run_right):
        ours = [Talk(context, run, seed=seq_id, seq_id=seq_id) for seq_id in range(2)]
        alone = [Talk(left, run_left), Talk(right, run_right)]
        assert run.cells.n_stream == 2 and run.cells.n_cells == run_left.cells.n_cells and run.memory().n_cells == 2 * KEEP

        def step(*ns: int) -> None:
            tokens = [talk.tokens(n) for talk, n in zip(ours, ns, strict=True)]
            who = [i for i in range(2) if ns[i]]
            found = dict(zip(who, feed(*((ours[i], tokens[i]) for i in who)), strict=True))
            common = min(ns[i] for i in who)  # llama.cpp computes equally many tokens of each sequence at once
            for i in who:
                parts = [part for part in (tokens[i][:common], tokens[i][common:]) if part]
                expected = np.concatenate([feed((alone[i], part))[0] for part in parts])
                assert kld(expected, found[i]).max() < TOLERANCE
            for mine, other in zip(ours, alone, strict=True):
                assert mine.positions() == other.positions()

        by_cell = "streaming" in more["policy"]
        few = [(1, 1), (5, 40), (64, 1), *[(1, 1)] * 20, *[(1, 0)] * 20, (30, 30)] if by_cell else [(16, 16), (16, 48), (64, 16), *[(16, 0)] * 3]
        if "positions" in more:  # gaps close before a batch, not before each part of it
            few = [(n, m) for n, m in few if not n or not m or n == m]
        for ns in (*[(64, 64)] * 9, *few, (0, 128), (0, 128), *few, (64, 64)):
            step(*ns)
        for each in (ours[0], alone[0]):
            each.rewind(640)
        for ns in (*[(64, 64)] * 3, *few[:3]):
            step(*ns)
        assert run.stats.n_freed == run_left.stats.n_freed + run_right.stats.n_freed > KEEP // 2
        for mine, other in zip(ours, alone, strict=True):
            assert mine.kept() == other.kept()
        if "sample_budget" in more:
            assert testing.check(run._native_handle()).n_groups_wrong == 0


@pytest.mark.parametrize(("split", "types"), [("uniform", {}), ("pooled", {"type_k": 8, "type_v": 8}), ("pyramid", {})])
def test_memory_is_bounded_by_all_sequences_and_goes_back_with_each(synthetic, split, types):
    """Far more tokens have cells than fit into the bound. Rows of q8_0 take half a page of the system here, so that what is kept shares pages with what is
    not: real models' rows are larger."""
    path, slack = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192), 2 if types else 1
    with attached(path, options(256, **OWN | {"split": split}), n_ctx=3 * 8192, n_seq=3, **{**SMALL, "n_batch": 64, "n_ubatch": 64}, **types) as (
            context, run):
        talks = [Talk(context, run, seed=seq_id, seq_id=seq_id) for seq_id in range(3)]
        per_token = sum(rows.strides[0] for rows in talks[0].rows())

        def resident() -> int:
            return sum(resident_bytes(rows) for talk in talks for rows in talk.rows())

        assert run.cells.n_cells == 512 and run.memory().n_cells == 3 * 256 and run.memory().home_bytes == 3 * 256 * per_token
        while talks[0].position < 1500:
            n = int(talks[0].rng.choice([1, 1, 3, 16, 20]))
            feed(*((talk, talk.tokens(n)) for talk in talks))
            assert max(talk.held() for talk in talks) <= 256 and run.memory().n_cells_used <= 3 * 256
            assert resident() <= slack * 3 * 256 * per_token
        check_rows(run, whole_pages=not types)
        assert max(native_arrays.cells(run._native_handle(), talk.stream).n_used for talk in talks) > 300, "layers keep different ones"
        for n_left, gone in ((2, talks[1]), (1, talks[2])):
            llama_cpp.llama_memory_seq_rm(context.memory, gone.seq_id, -1, -1)
            gone.position = 0
            feed((talks[0], talks[0].tokens(1)))
            assert resident() <= slack * n_left * 256 * per_token and sum(resident_bytes(rows) for rows in gone.rows()) == 0
            assert run.memory().n_cells_used <= n_left * 256
        feed((talks[1], talks[1].tokens(1)))
        assert talks[1].positions() == {0}


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("policy", "positions"), [
    ("ema+anchor+recent", 1), ("h2o", None), ("lru+anchor+recent", None), ("morphkv", None), ("hierarchical+anchor+recent", 1)])
def test_a_copied_sequence_keeps_what_its_source_keeps(synthetic, policy, positions):
    """The copies of a sequence that is far over its bound have its logits, hold what it holds, and lose what it loses while the same tokens come; then
    they go on by themselves. What was there before goes."""
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    kept = options(256, **OWN | {"policy": policy}, positions=positions)
    with attached(path, kept, n_ctx=3 * 8192, n_seq=3, **{**SMALL, "n_batch": 64, "n_ubatch": 64}) as (context, run):
        source, first, second = (Talk(context, run, seed=seq_id, seq_id=seq_id) for seq_id in range(3))
        for _ in range(12):
            feed((source, source.tokens(32)), (second, second.tokens(32)))
            feed((source, source.tokens(32)))
        partial = run.cells.stream(source.stream).labels & PARTIAL != 0
        layers_differ = bool(partial.any() and dropped(run).any())
        assert layers_differ == ("ema" in policy or "morphkv" in policy), "by the others' scores all layers keep the newest pages of this model"
        for copy in (first, second):
            llama_cpp.llama_memory_seq_rm(context.memory, copy.seq_id, -1, -1)
            llama_cpp.llama_memory_seq_cp(context.memory, source.seq_id, copy.seq_id, -1, -1)
            copy.position = source.position
        n_before, freed = len(source.positions()), run.stats.n_freed
        for n in (1, *[16] * 8, *[1] * 5):
            probe = source.tokens(n)
            logits = feed(*((talk, probe) for talk in (source, first, second)))
            for found in logits[1:]:
                assert kld(logits[0], found).max() < TOLERANCE
            check_rows(run)
            for copy in (first, second):
                assert copy.positions() == source.positions() and copy.kept() == source.kept()
                for ours, theirs in zip(copy.rows(), source.rows(), strict=True):
                    assert resident_bytes(ours) <= resident_bytes(theirs) + 2 * 4096
        assert n_before > 256 or not layers_differ
        assert run.stats.n_freed > freed
        for _ in range(6):
            for found in feed((source, source.tokens(20)), (first, first.tokens(20)), (second, second.tokens(20))):
                assert np.isfinite(found).all()
            check_rows(run)
            assert run.memory().n_cells_used <= 3 * 256


# ---- one sequence, whose layers give back rows -------------------------------------------------------------------------------------


ALONE = dict(n_seq=1, n_batch=64, n_ubatch=64, n_threads=1)


def own(**more) -> KvOptions:
    return options(256, **OWN, **more)


def home(run: Runtime) -> list[np.ndarray]:
    return [rows for il in range(LAYERS) for rows in (run.cells.keys(il), run.cells.values(il))]


def resident(run: Runtime) -> int:
    return sum(map(resident_bytes, home(run)))


@pytest.mark.parametrize("back", [1, 100, 500])
def test_a_rewind_into_pages_that_layers_gave_back(synthetic, back: int):
    """New tokens come into pages whose other cells some layers lost: those cells are emptied, so that nobody attends zeros."""
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, own(), n_ctx=8192, **ALONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(14):
            chat.feed(chat.tokens(64))
        chat.rewind(max(back, chat.position - back) if back < 500 else 396)
        for n in (1, 5, 16, 30, 64):
            assert np.isfinite(chat.feed(chat.tokens(n))).all()
            check_rows(run)
        assert llama_cpp.llama_memory_seq_pos_max(context.memory, 0) == chat.position - 1


def whole(run: Runtime) -> set[int]:
    cells = run.cells.stream()
    return set(cells.positions[(cells.positions >= 0) & (cells.labels & PARTIAL == 0)].tolist())


def test_saved_states_and_other_modes_have_whole_tokens_alone(synthetic):
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, own(), n_ctx=8192, **ALONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(14):
            chat.feed(chat.tokens(64))
        state, sequence, kept, probe = context.save(), context.save(0), whole(run), chat.tokens(1)
        assert 16 < len(kept) < len(chat.positions()), "some are whole"
        run.mode = "exact"
        assert chat.positions() == kept and not dropped(run)[:, :, np.unique(np.flatnonzero(run.cells.stream().positions >= 0) // 16)].any()
        expected = chat.feed(probe)
        for load in (lambda one: one.load(state), lambda one: one.load(sequence, 0)):
            with attached(path, own(), n_ctx=8192, **ALONE) as (other, again):
                load(other)
                ours = Chat(other, again)
                ours.position = 14 * 64
                assert kld(expected, ours.feed(probe)).max() < TOLERANCE
                assert ours.positions() == kept | {14 * 64}
                for _ in range(4):
                    ours.feed(ours.tokens(64))
                check_rows(again)


def test_a_context_that_comes_into_mode_evict_later_gives_back_too(synthetic):
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact"), n_ctx=2048, **ALONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(16):
            chat.feed(chat.tokens(64))
        per_token = sum(rows.strides[1] for rows in home(run))
        assert resident(run) >= 1024 * per_token
        run.configure(own())
        for n in (1, 1, 16, 64):
            chat.feed(chat.tokens(n))
        check_rows(run)
        assert resident(run) <= (256 + 64) * per_token and run.memory().n_cells_used <= 256
        used = np.unique(np.flatnonzero(run.cells.stream().positions >= 0) // 16)
        assert (abs((dropped(run)[:, 0, used] == 0).sum(axis=-1) - 16) <= 1).all(), "each layer its 256 tokens, and not fewer"
        run.mode = "sparse"
        for n in (1, 16, 64):
            assert np.isfinite(chat.feed(chat.tokens(n))).all()
        check_rows(run)


def test_context_of_a_few_more_tokens_than_are_kept_is_bounded(synthetic):
    with attached(synthetic("llama", n_layer=LAYERS, n_ctx_train=8192), own(), n_ctx=512, **ALONE) as (context, run):
        assert run.cells.n_cells == 256


@pytest.mark.parametrize("between", ["off", "exact", None])
def test_a_state_that_is_loaded_keeps_its_rows(synthetic, between: str | None):
    """The state's tokens come with their rows into cells whose pages layers gave back. Nothing gives them back again before the next ubatch, neither
    entering the mode, nor a page beside them that is dropped, nor keys that turn."""
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact"), n_ctx=1024, **ALONE) as (context, run):
        chat = Chat(context, run)
        for _ in range(10):
            chat.feed(chat.tokens(64))
        state = context.save()
        for turn in range(3):
            run.configure(own(positions=1 if turn == 1 else 8000))
            for _ in range(40):
                chat.feed(chat.tokens(1))
            assert dropped(run).any() and resident(run) < 600 * sum(rows.strides[1] for rows in home(run))
            if between is not None:
                run.configure(KvOptions(mode=between))
            context.load(state)
            chat.position = 640
            if between is not None:
                run.configure(own())
            used = run.cells.stream().positions >= 0
            assert used.sum() == 640
            for rows in home(run):
                assert np.array(rows[0]).view(np.uint8).reshape(run.cells.n_cells, -1)[used].any(axis=1).all()
            assert np.isfinite(chat.feed(chat.tokens(1))).all()
            check_rows(run)
