"""Mode evict: layers keep different pages, and give the memory of the others back."""

import numpy as np
import pytest
from support.contexts import attached, dropped
from support.decoding import kld
from support.evicting import TOLERANCE, Chat, check_rows, evict
from support.homes import resident_bytes

from edgekv.config import KvOptions
from edgekv.runtime.cells import PARTIAL
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

SMALL = dict(n_seq=1, n_batch=64, n_ubatch=64, n_threads=1)
LAYERS = 4


def options(keep: int = 256, **more) -> KvOptions:
    return evict(keep, **{"policy": "ema+anchor+recent", "split": "uniform", "recent_tokens": 16, "plan_every": 1, **more})


def home(run: Runtime) -> list[np.ndarray]:
    return [rows for il in range(LAYERS) for rows in (run.cells.keys(il), run.cells.values(il))]


def resident(run: Runtime) -> int:
    return sum(map(resident_bytes, home(run)))


@pytest.mark.parametrize("back", [1, 100, 500])
def test_a_rewind_into_pages_that_layers_gave_back(synthetic, back: int):
    """New tokens come into pages whose other cells some layers lost: those cells are emptied, so that nobody attends zeros."""
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, options(), n_ctx=8192, **SMALL) as (context, run):
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
    with attached(path, options(), n_ctx=8192, **SMALL) as (context, run):
        chat = Chat(context, run)
        for _ in range(14):
            chat.feed(chat.tokens(64))
        state, sequence, kept, probe = context.save(), context.save(0), whole(run), chat.tokens(1)
        assert 16 < len(kept) < len(chat.positions()), "some are whole"
        run.mode = "exact"
        assert chat.positions() == kept and not dropped(run)[:, :, np.unique(np.flatnonzero(run.cells.stream().positions >= 0) // 16)].any()
        expected = chat.feed(probe)
        for load in (lambda one: one.load(state), lambda one: one.load(sequence, 0)):
            with attached(path, options(), n_ctx=8192, **SMALL) as (other, again):
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
    with attached(path, KvOptions(mode="exact"), n_ctx=2048, **SMALL) as (context, run):
        chat = Chat(context, run)
        for _ in range(16):
            chat.feed(chat.tokens(64))
        per_token = sum(rows.strides[1] for rows in home(run))
        assert resident(run) >= 1024 * per_token
        run.configure(options(256))
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
    with attached(synthetic("llama", n_layer=LAYERS, n_ctx_train=8192), options(), n_ctx=512, **SMALL) as (context, run):
        assert run.cells.n_cells == 256


@pytest.mark.parametrize("between", ["off", "exact", None])
def test_a_state_that_is_loaded_keeps_its_rows(synthetic, between: str | None):
    """The state's tokens come with their rows into cells whose pages layers gave back. Nothing gives them back again before the next ubatch, neither
    entering the mode, nor a page beside them that is dropped, nor keys that turn."""
    path = synthetic("llama", n_layer=LAYERS, n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact"), n_ctx=1024, **SMALL) as (context, run):
        chat = Chat(context, run)
        for _ in range(10):
            chat.feed(chat.tokens(64))
        state = context.save()
        for turn in range(3):
            run.configure(options(positions=1 if turn == 1 else 8000))
            for _ in range(40):
                chat.feed(chat.tokens(1))
            assert dropped(run).any() and resident(run) < 600 * sum(rows.strides[1] for rows in home(run))
            if between is not None:
                run.configure(KvOptions(mode=between))
            context.load(state)
            chat.position = 640
            if between is not None:
                run.configure(options())
            used = run.cells.stream().positions >= 0
            assert used.sum() == 640
            for rows in home(run):
                assert np.array(rows[0]).view(np.uint8).reshape(run.cells.n_cells, -1)[used].any(axis=1).all()
            assert np.isfinite(chat.feed(chat.tokens(1))).all()
            check_rows(run)
