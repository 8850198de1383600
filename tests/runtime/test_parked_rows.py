"""Held rows whose tokens leave their cells are parked: they keep their bytes and the memory that they have, and come back with it."""

import threading

import numpy as np
import pytest
from support.contexts import attached
from support.held_rows import BLOCK, N, all_rows, back, filled, hold_blocks, in_cells, leave, n_bytes, read, rows, sizes

from edgekv._native.token_rows import HeldTokens
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions

import llama_cpp

Q8_0 = {"type_k": llama_cpp.GGML_TYPE_Q8_0, "type_v": llama_cpp.GGML_TYPE_Q8_0}
"""A row of K takes 272 bytes: no page is made of whole rows."""


@pytest.mark.parametrize("types", [{}, Q8_0], ids=["f16", "q8_0"])
@pytest.mark.parametrize("first", [0, 37], ids=["from the first", "from an odd one"])
def test_rows_leave_with_their_tokens_and_come_back(synthetic, types, first):
    """Nobody waits for who holds them; what stays of the sequence stays as it is; and once more."""
    with filled(synthetic, **types) as (context, run):
        before, stays = in_cells(run, 0, N, first), in_cells(run, 0, first)
        held = hold_blocks(run, first=first)
        assert all(one.parks for one in held)
        for _ in range(2):
            leave(context, first=first)
            assert all(one.parked for one in held) and all_rows(run, held, first) == before
            assert in_cells(run, 0, first) == stays
            assert back(run, held, first=first) == [True] * len(held)
            assert all_rows(run, held, first) == before == in_cells(run, 0, N, first) and in_cells(run, 0, first) == stays


def test_rows_outlive_their_context(synthetic):
    with attached(synthetic("llama", dtype="f32", n_head_kv=4), KvOptions(mode="exact"), n_ctx=4096, n_seq=1) as (context, run):
        read(context, 0, N)
        before, held = in_cells(run, 0, N), hold_blocks(run)
        n_layers, n = run.tokens.n_layers(), [n_bytes(run, size) for size in sizes()]
        leave(context)
    assert [one.read(range(n_layers), size).tobytes() for one, size in zip(held, n)] == before
    for one in held:
        one.release()


def test_rows_come_back_between_others_tokens(synthetic):
    """Blocks that find cells one behind the other come back, though another's do not; where all of them can, they lie behind each other again."""
    with filled(synthetic, unified=True, n_seq=3) as (context, run):
        read(context, 0, 64, seq=1)
        before, held = in_cells(run, 0, N), hold_blocks(run)
        leave(context)
        read(context, 0, N, seq=2)
        leave(context, seq=2, first=128)
        leave(context, seq=2, end=64)
        cells = run.tokens.place(0, 0, np.zeros(N, np.uint8), parked=[(BLOCK * i, one) for i, one in enumerate(held)])
        assert (cells == np.arange(1216, 1216 + N)).all()
        assert run.tokens.unpark(0, held, np.split(cells, np.cumsum(sizes())[:-1])) == [True] * 5 and in_cells(run, 0, N) == before
        leave(context)
        assert back(run, held) == [False, True, True, True, False], "into cells 0 to 63, 128 to 1,151, and from 1,216 on"
        assert in_cells(run, 0, N)[1:4] == before[1:4] and all_rows(run, held) == before


def test_what_a_sequence_goes_on_with_is_not_parked(synthetic):
    """Tokens leave from the middle of the first block: its holder is asked, as ever, before the others' rows leave."""
    with filled(synthetic) as (context, run):
        before, held = in_cells(run, 0, N), hold_blocks(run)
        said = []

        def asked(*_) -> None:
            said.append((held[0].parked, [one.parked for one in held[1:]], all_rows(run, held) == before))
            held[0].release()

        held[0].needed = asked
        leave(context, first=100)
        assert said == [(False, [True] * (len(held) - 1), True)]
        assert in_cells(run, 0, 100) == [part_of(run, before[0], BLOCK, 100)]


def part_of(run, block: bytes, n: int, n_first: int) -> bytes:
    """The rows of a block's first tokens."""
    found, at = [], 0
    for k_bytes, v_bytes in zip(*run.tokens.row_bytes()):
        for size in (k_bytes, v_bytes):
            found.append(block[at : at + n_first * size])
            at += n * size
    return b"".join(found)


def test_cells_that_another_sequence_has_too_stay(synthetic):
    """A copied sequence goes on in them: nothing moves, and nobody is asked."""
    with filled(synthetic, unified=True) as (context, run):
        before, held = in_cells(run, 0, N), hold_blocks(run)
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        leave(context)
        assert not any(one.parked for one in held) and in_cells(run, 1, N) == before == all_rows(run, held)
        leave(context, seq=1)
        assert all(one.parked for one in held) and all_rows(run, held) == before


def test_what_is_held_twice_is_asked_for(synthetic):
    with filled(synthetic) as (context, run):
        held, again = hold_blocks(run), run.tokens.hold(0, run.tokens.cells_of(0, 10))
        asked = []
        for one in (held[0], again):
            one.needed = lambda *_, one=one: (asked.append(one.parked), one.release())
        leave(context)
        assert asked == [False, False] and all(one.parked for one in held[1:])


def test_tokens_in_scattered_cells_are_not_parked(synthetic):
    """Two sequences took turns in one cache: no page is one sequence's."""
    with filled(synthetic, n=0, unified=True) as (context, run):
        for at in range(0, N - 64, 64):
            read(context, at, at + 64, seq=0)
            read(context, at, at + 64, seq=1)
        held = hold_blocks(run, 1024)
        assert not any(one.parks for one in held)


@pytest.mark.parametrize("n_gone", range(1, 5))
def test_the_others_stay_when_some_are_released(synthetic, n_gone):
    """In any order: whole pages are given back, and those that two blocks share stay for the other one."""
    with filled(synthetic, **Q8_0) as (context, run):
        before, held = in_cells(run, 0, N), hold_blocks(run)
        leave(context)
        order = np.random.default_rng(n_gone).permutation(len(held))
        for i in order[:n_gone]:
            held[i].release()
        left = [i for i in range(len(held)) if i not in order[:n_gone]]
        assert [rows(run, held[i], sizes()[i]) for i in left] == [before[i] for i in left]


def test_too_few_cells_are_refused(synthetic):
    with filled(synthetic) as (context, run):
        before, held = in_cells(run, 0, N), hold_blocks(run)
        leave(context)
        cells = run.tokens.place(0, 0, np.zeros(N - 1, np.uint8))
        with pytest.raises(ConfigError, match=f"{N} tokens do not come back into {N - 1} cells"):
            run.tokens.unpark(0, held, [cells])
        assert all_rows(run, held) == before


def test_rows_that_lie_otherwise_in_their_page_stay_parked(synthetic):
    """A slot whose beginning is longer by one token."""
    with filled(synthetic, **Q8_0) as (context, run):
        before, held = in_cells(run, 0, N), hold_blocks(run)
        leave(context)
        read(context, 0, 1)
        assert back(run, held, first=1, n=N + 1) == [False] * len(held)
        assert all(one.parked for one in held) and all_rows(run, held) == before


def test_a_thread_reads_the_same_rows_wherever_they_are(synthetic):
    with filled(synthetic) as (context, run):
        before, held, end = in_cells(run, 0, N), hold_blocks(run), threading.Event()
        wrong, n_read = [], [0]

        def reads() -> None:
            while not end.is_set():
                wrong.extend(i for i, one in enumerate(held) if rows(run, one, sizes()[i]) != before[i])
                n_read[0] += 1

        reader = threading.Thread(target=reads)
        reader.start()
        try:
            for _ in range(20):
                leave(context)
                assert back(run, held) == [True] * len(held)
        finally:
            end.set()
            reader.join(60)
        assert not wrong and n_read[0] > 0


def test_all_that_leave_together_share_one_wait(synthetic):
    """Their holders are told at once, with the same beginning of their wait."""
    with filled(synthetic) as (context, run):
        held, since = hold_blocks(run), []
        for one in held:
            one.needed = lambda *at: since.append(at)
        leave(context)
        assert len(since) == len(held) and len(set(since)) == 1 and len(since[0]) == 1


def test_beginnings_of_conversations_take_turns_in_two_slots(synthetic):
    """Any slot, any length: a conversation then lies in several places, and so do the mappings of its pages."""
    rng, kept = np.random.default_rng(0), list[tuple[int, list[HeldTokens], list[bytes]]]()
    with filled(synthetic, n=0, n_ctx=4096) as (context, run):
        for turn in range(40):
            seq = int(rng.integers(2))
            leave(context, seq=seq)
            if turn < 5:
                n = int(rng.integers(600, 2000))
                read(context, 0, n, seq=seq)
                kept.append((n, hold_blocks(run, n, seq), in_cells(run, seq, n)))
            else:
                away = [one for one in kept if all(held.parked for held in one[1])]
                n, held, _ = away[int(rng.integers(len(away)))]
                n = min(n, BLOCK * int(rng.integers(1, len(held) + 1)))
                found = back(run, held[: len(sizes(n=n))], seq=seq, n=n)
                assert all(found[:-1]), "only a short end stays parked"
            assert all(all_rows(run, held, n=n) == before for n, held, before in kept)


def test_a_conversation_parks_longer_from_several_places(synthetic):
    """It came back into another slot and went on there: its rows lie in several mappings of the kernel's."""
    with filled(synthetic, n=1024) as (context, run):
        held = hold_blocks(run, 1024)
        leave(context)
        assert back(run, held, seq=1, n=1024) == [True] * 4
        read(context, 1024, 2048, seq=1)
        held += hold_blocks(run, 2048, seq=1, first=1024)
        before = in_cells(run, 1, 2048)
        leave(context, seq=1)
        assert all(one.parked for one in held) and all_rows(run, held, n=2048) == before
        assert back(run, held, seq=1, n=2048) == [True] * 8 and in_cells(run, 1, 2048) == before


def copied(run, held: list[HeldTokens], seq: int = 0, some_of: HeldTokens | None = None) -> list[int]:
    """Which of these must be copied before a sequence loses them all, and some tokens of one."""
    return [held.index(one) for one in run.tokens.must_copy(seq, [(one, one is not some_of) for one in held])]


def test_it_is_known_before_what_must_be_copied(synthetic):
    """What is held twice, what another sequence has in part, what goes in part, and what is too little by itself; not what others have whole."""
    with filled(synthetic, unified=True) as (context, run):
        held = hold_blocks(run)
        assert copied(run, held) == [] and copied(run, held[4:]) == [0]
        assert copied(run, held, some_of=held[1]) == [1]
        again = run.tokens.hold(0, run.tokens.cells_of(0, 10))
        assert copied(run, held) == [0]
        again.release()
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, 300, 400)
        assert copied(run, held) == [1]
        llama_cpp.llama_memory_seq_rm(context.memory, 1, -1, -1)
        held[2].release()
        assert copied(run, held) == []
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        assert copied(run, held[4:]) == [], "they stay where they are"
        llama_cpp.llama_memory_seq_rm(context.memory, 1, -1, -1)
        leave(context)
        assert [one.parked for one in held] == [True, True, False, True, True]


def test_nothing_is_parked_before_a_stream_is_copied(synthetic):
    """Its rows are needed where they are until the next batch."""
    with filled(synthetic) as (context, run):
        held = hold_blocks(run)
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        assert copied(run, held) == [0, 1, 2, 3, 4]


def test_the_number_of_places_has_a_bound(synthetic):
    """As many conversations are parked as the kernel has room for mappings; of the next one it is known that it will be asked for."""
    with filled(synthetic, n=0) as (context, run):
        parked, n_asked = list[HeldTokens](), 0
        while n_asked == 0:
            one = run.tokens.hold(0, run.tokens.place(0, 0, np.zeros(512, np.uint8)))
            one.needed = lambda *_, one=one: None if one.parked else one.release()
            expected = [not copied(run, [one])]
            leave(context)
            assert [one.parked] == expected
            parked.append(one)
            n_asked += not one.parked
        assert len(parked) > 100
        parked[0].release()
        one = run.tokens.hold(0, run.tokens.place(0, 0, np.zeros(512, np.uint8)))
        assert copied(run, [one]) == []


def test_rows_whose_holder_fails_are_released(synthetic):
    """And do not come back."""
    with filled(synthetic) as (context, run):
        held = hold_blocks(run)
        held[0].needed = lambda *_: 1 // 0
        leave(context)
        assert [one.parked for one in held] == [False] + [True] * 4
        cells = np.split(run.tokens.place(0, 0, np.zeros(N, np.uint8)), np.cumsum(sizes())[:-1])
        assert run.tokens.unpark(0, held[1:], cells[1:]) == [True] * 4
