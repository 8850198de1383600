"""Mode evict: gaps that dropped tokens leave are closed, so that rotary positions stay in range. Callers' positions stay as they are."""

import numpy as np
import pytest
from support.contexts import Context, attached
from support.decoding import kld
from support.evicting import ONE, TOLERANCE, Chat, evict

from edgekv import _native
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

ALWAYS = 1
"""The first position by which no token shall be rotated: gaps then close before every batch."""


def keys_by_position(run: Runtime) -> dict[int, np.ndarray]:
    """K of layer 0, as far as it has not given it back. It depends on a token and on the position by which it is rotated alone."""
    keys = run.cells.keys(0)[0].astype(np.float32)
    return {position: keys[cell] for cell, position in enumerate(run.cells.stream().positions.tolist()) if position >= 0 and keys[cell].any()}


def close(stock: Context, positions: list[int]) -> None:
    """Close the gaps of a stock context by llama.cpp's own functions. positions: the kept ones, ascending."""
    for to, position in enumerate(positions):
        llama_cpp.llama_memory_seq_add(stock.memory, 0, position, position + 1, to - position)


@pytest.mark.parametrize(("kind", "types"), [("llama", {}), ("llama", {"type_k": 2, "type_v": 2}), ("longrope", {}), ("gemma2", {})])
def test_closed_gaps_are_stocks_own_shift(synthetic, kind, types):
    """Teacher-forced, over many times what is kept: the other context loses the same tokens, and llama.cpp's own shift closes its gaps,
    of sliding layers only where these have as many cells."""
    # the tiles of AMX round what prompts attend to bf16, and stock llama.cpp does not
    path, mode = synthetic(kind), "exact" if types or _native.isa() == "amx" else "off"
    with attached(path, evict(512, positions=ALWAYS), n_ctx=4096, swa_full=False, **ONE, **types) as (context, run), attached(
            path, KvOptions(mode=mode), n_ctx=4096, swa_full=True, **ONE, **types) as (stock, other):
        ours, theirs = Chat(context, run), Chat(stock, other)
        kept: list[int] = []
        for n in (128, 128, 128, 128, 100, *[1] * 60, 128, 5, 16, 128, 128, 128, *[1] * 20):
            tokens = ours.tokens(n)
            logits, expected = ours.feed(tokens), theirs.feed(tokens)
            assert kld(expected, logits).max() < TOLERANCE
            before, kept = [*kept, *range(ours.position - n, ours.position)], sorted(ours.positions())
            if before != kept:
                at = {position: at for at, position in enumerate(before)}
                for position in sorted(set(before) - set(kept)):
                    llama_cpp.llama_memory_seq_rm(stock.memory, 0, at[position], at[position] + 1)
                close(stock, [at[position] for position in kept])
                theirs.position = len(kept)
        assert run.stats.n_freed > 400 and ours.position > 1000 and theirs.position <= 512
        assert llama_cpp.llama_memory_seq_pos_max(context.memory, 0) == ours.position - 1


def test_nothing_is_rotated_by_a_position_out_of_range(synthetic):
    """In layer 0 a kept key is that of its token at a position below the bound."""
    path = synthetic("llama")
    with attached(path, evict(256, policy="ema+anchor+recent", positions=700), n_ctx=8192, n_seq=1, n_batch=64, n_ubatch=64) as (
            context, run), attached(path, KvOptions(mode="exact"), n_ctx=1024, n_seq=1, n_batch=64, n_ubatch=64) as (fresh, short):
        chat, fed, turned = Chat(context, run), [], 0
        while chat.position < 4000:
            tokens = chat.tokens(int(chat.rng.choice([1, 3, 16, 40, 64])))
            before = keys_by_position(run)
            chat.feed(tokens)
            fed += tokens
            after = keys_by_position(run)
            turned += any(not np.array_equal(before[p], after[p]) for p in before.keys() & after.keys())
        assert 3 < turned < 40, "now and then, before 700"
        kept = sorted(after)
        expected = Chat(fresh, short)
        while expected.position < 700:
            expected.feed(fed[:1] * 50)
        rotated = keys_by_position(short)
        # a token that is known at each position: the first one of the text, wherever it stands
        same = [p for p in kept if fed[p] == fed[0]]
        of_text = {p: int(np.argmin([np.abs(rotated[at] - after[p]).max() for at in range(700)])) for p in same}
        assert all(np.abs(rotated[at] - after[p]).max() < 0.02 * np.abs(after[p]).max() for p, at in of_text.items())
        assert of_text[0] == 0 and list(of_text.values()) == sorted(set(of_text.values())), "in their order, below the bound"


def test_a_rewind_behind_a_closed_gap_forgets_it(synthetic):
    """One token all over: in layer 0 its key tells by which position it is rotated. New tokens are rotated as where there never were more."""
    path = synthetic("llama")
    with attached(path, evict(256, positions=700), n_ctx=8192, n_seq=1, n_batch=64, n_ubatch=64) as (context, run), attached(
            path, KvOptions(mode="exact"), n_ctx=1024, n_seq=1, n_batch=64, n_ubatch=64) as (fresh, short):
        chat, other = Chat(context, run), Chat(fresh, short)
        while chat.position < 704:
            chat.feed([300] * 64)
        assert not np.array_equal(keys_by_position(run)[700], keys_by_position(run)[0]) and run.stats.n_freed > 400
        chat.rewind(100)
        for one, end in ((chat, 676), (other, 704)):
            while one.position < end:
                one.feed([300] * 64)
        found, expected = keys_by_position(run), keys_by_position(short)
        assert sum(position >= 500 for position in found) > 100
        for position in found:
            np.testing.assert_allclose(found[position], expected[position], atol=0.02 * np.abs(expected[position]).max())


def test_states_carry_what_is_closed(synthetic):
    """A state goes on as its context did: in the same context, and in one whose gaps stay. A context that knows no gaps turns its keys back."""
    path = synthetic("llama")
    options = evict(256, positions=400)
    with attached(path, options, n_ctx=4096, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
        chat = Chat(context, run)
        for _ in range(20):
            chat.feed(chat.tokens(64))
        state, sequence, probe = context.save(), context.save(0), chat.tokens(1)
        expected = chat.feed(probe)
        for _ in range(3):
            chat.feed(chat.tokens(64))
        for load in (lambda: context.load(state), lambda: context.load(sequence, 0)):
            load()
            chat.position = 1280
            assert kld(expected, chat.feed(probe)).max() < TOLERANCE
    with attached(path, evict(256, positions=1 << 20), n_ctx=4096, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
        context.load(state)
        np.testing.assert_array_equal(expected, context.decode(probe, [1280], [0]))
        open_keys = Chat(context, run)
        llama_cpp.llama_memory_clear(context.memory, True)
        for _ in range(20):
            open_keys.feed(open_keys.tokens(64))
        unturned = keys_by_position(run)
    with attached(path, KvOptions(mode="exact"), n_ctx=4096, n_seq=1, n_batch=64, n_ubatch=64) as (context, run):
        context.load(state)
        context.decode(probe, [1280], [0])
        found = keys_by_position(run)
        assert found.keys() - {1280} == unturned.keys()
        for position, key in unturned.items():
            np.testing.assert_allclose(found[position], key, atol=0.02 * np.abs(key).max())
