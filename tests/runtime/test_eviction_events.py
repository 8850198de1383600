"""Mode evict through rewinds, state files, random events and a cache over another's cells: nothing is stale."""

import numpy as np
import pytest
from support import assistant
from support.contexts import attached, dropped
from support.evicting import ONE, Chat, attended, evict

from edgekv._native import paging as native
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.runtime import attachments

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place


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
