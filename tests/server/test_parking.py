"""A conversation whose slot another one takes is parked, and comes back with its memory: nothing of it is copied, and it goes on as if it had stayed."""

import threading
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch
from support.prefix_server import EXACT, SPARSE, apart, ask, conversation, serve

from edgekv._native.token_rows import HeldTokens
from edgekv.prefix_cache.settings import StoreSettings

N, N_ANSWER = 900, 8
OWN_CACHES = ("--no-kv-unified",)


@pytest.fixture
def wide(synthetic) -> Path:
    """Its rows are wide enough for their pages to be moved: 128 KiB for K of a block."""
    return synthetic("llama", n_head_kv=4, dtype="f32")


@pytest.fixture
def copiers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each copy out of a slot or of what is parked."""
    found: list[str] = []
    watch(monkeypatch, HeldTokens, "read", lambda *_: found.append(threading.current_thread().name))
    return found


def said(server, tokens: list[int], **more) -> tuple[list[int], np.ndarray, int]:
    """An answer, the probabilities of its tokens, and how many tokens of the prompt were not read."""
    answer = ask(server, tokens, N_ANSWER, n_probs=3, post_sampling_probs=False, **more)
    logs = [[one["logprob"] for one in step["top_logprobs"]] for step in answer["completion_probabilities"]]
    return answer["tokens"], np.array(logs), answer["timings"]["cache_n"]


def same(one: tuple, other: tuple) -> None:
    assert one[0] == other[0], "other tokens"
    np.testing.assert_array_equal(one[1], other[1], "other probabilities")


def longer(tokens: list[int], answer: tuple, seed: int = 9) -> list[int]:
    return [*tokens, *answer[0][:-1], *conversation(seed, 40)[1:]]


@pytest.mark.parametrize("more", [{}, {"n_slots": 2, "n_ctx": 4096}, {"n_slots": 2, "n_ctx": 4096, "extra": OWN_CACHES}], ids=["one slot", "unified", "apart"])
@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
def test_who_comes_back_goes_on_as_if_nobody_had_come_between(wide, copiers, kv, more):
    first, second = apart(1, N), apart(2, N)
    with serve(wide, kv, None, **more) as server:
        stayed = [said(server, first, id_slot=0)]
        stayed += [said(server, longer(first, stayed[0]), id_slot=0)]
    with serve(wide, kv, **more) as server:
        came = [said(server, first, id_slot=0)]
        said(server, second, id_slot=0)
        came += [said(server, longer(first, came[0]), id_slot=0)]
        assert copiers == [] and came[1][2] == N + N_ANSWER - 1
    for one, other in zip(came, stayed):
        same(one, other)


def test_what_two_slots_have_stays_until_both_are_taken(wide, copiers):
    """And comes back into other cells. Copied are two ends: of the second, which lies in two places, and of the first, which other tokens follow there."""
    first = apart(1, N)
    with serve(wide, EXACT, n_slots=2, n_ctx=4096) as server:
        tokens = server.runtime.tokens
        token_bytes = sum(map(sum, tokens.row_bytes()))
        answer = said(server, first, id_slot=0)
        before = tokens.read(0, tokens.cells_of(0, N), N * token_bytes)
        assert said(server, longer(first, answer, 7), id_slot=1)[2] >= N // 64 * 64
        copiers.clear()
        said(server, apart(2, N), id_slot=0)
        assert copiers == []
        said(server, apart(3, N), id_slot=1)
        assert len(copiers) == 1
        assert said(server, longer(first, answer), id_slot=0)[2] == N + N_ANSWER - 1
        assert len(copiers) <= 2, "of twelve blocks"
        np.testing.assert_array_equal(tokens.read(0, tokens.cells_of(0, N), N * token_bytes), before)


@pytest.mark.parametrize("kind", ["gemma2", "gpt-oss", "lfm2", "qwen3", "deepseek2", "deepseek32"])
def test_each_kind_of_cache_gives_the_same_as_copies(synthetic, monkeypatch, kind):
    """Windows and states go on as snapshots beside the rows; compressed rows have no V; the keys of an index go along."""
    model, first, second = synthetic(kind, dtype="f32"), apart(1, N), apart(2, N)
    came = dict[bool, list[tuple]]()
    for parks in (True, False):
        monkeypatch.setattr(HeldTokens, "parks", parks)
        with serve(model, EXACT) as server:
            one = said(server, first)
            said(server, second)
            came[parks] = [one, said(server, longer(first, one))]
            assert came[parks][1][2] > N // 2
    for one, other in zip(came[True], came[False]):
        same(one, other)


def test_what_is_parked_counts_in_ram_and_what_came_back_does_not(wide):
    first, second = apart(1, N), apart(2, N)
    with serve(wide, EXACT) as server:
        answer = said(server, first)
        server.settle()
        (before,) = server.prefixes.stats()
        said(server, second)
        server.settle()
        (parked,) = server.prefixes.stats()
        said(server, longer(first, answer))
        server.settle()
        (back,) = server.prefixes.stats()
        token_bytes = sum(map(sum, server.runtime.tokens.row_bytes())) + 4
    n = N + N_ANSWER - 1
    assert (before.ram.n_bytes, before.n_in_slots) == (0, 4)
    assert (parked.ram.n_bytes, parked.ram.n_blocks, parked.n_in_slots) == (n * token_bytes, 4, 4)
    assert back.ram.n_bytes == n * token_bytes and back.ram.n_blocks == 4, "the second conversation is parked now, and as long"


def test_a_bound_that_is_too_small_keeps_a_beginning(wide):
    first, second = apart(1, N), apart(2, N)
    with serve(wide, EXACT) as server:
        token_bytes = sum(map(sum, server.runtime.tokens.row_bytes())) + 4
    bound = 3 * 256 * token_bytes - 1
    with serve(wide, EXACT, StoreSettings(ram_bytes=bound)) as server:
        said(server, first)
        said(server, second)
        server.settle()
        (stats,) = server.prefixes.stats()
        assert 2 * 256 * token_bytes <= stats.ram.n_bytes <= bound
        again = said(server, first)
        assert again[2] == 512
        server.settle()
        (stats,) = server.prefixes.stats()
        assert stats.ram.n_bytes <= bound


def test_a_folder_gets_what_is_parked(wide, never_ending, tmp_path):
    store, first, second = StoreSettings(ram_bytes=1 << 30, folder=tmp_path), apart(1, N), apart(2, N)
    with serve(wide, EXACT, store) as server:
        stayed = said(server, first)
        said(server, second)
        server.settle()
        (stats,) = server.prefixes.stats()
        assert (stats.disk.n_blocks, stats.ram.n_blocks) == (0, 4)
        server.prefixes.flush()
        (stats,) = server.prefixes.stats()
        assert stats.disk.n_blocks == 8
    with serve(wide, EXACT, store) as server:
        again = said(server, first)
        assert again[2] == N - 1 and again[0] == stayed[0]


def test_without_ram_nothing_is_parked(wide, monkeypatch, tmp_path):
    """What a folder has leaves with its cells; what it lacks is copied until it is written."""
    monkeypatch.setattr(HeldTokens, "parked", property(lambda held: False, lambda held, parked: pytest.fail("parked") if parked else None), raising=False)
    with serve(wide, EXACT, StoreSettings(ram_bytes=0, folder=tmp_path)) as server:
        stayed = said(server, apart(1, N))
        said(server, apart(2, N))
        server.prefixes.flush()
        (stats,) = server.prefixes.stats()
        assert (stats.ram.n_bytes, stats.n_dropped) == (0, 0)
        again = said(server, apart(1, N))
        assert again[2] == N - 1 and again[0] == stayed[0]


def test_a_common_beginning_stays_in_the_slot(wide):
    """The next conversation goes on in the first one's cells. Where both have them the rows are copied, and the rest is parked."""
    beginning = apart(1, 700)
    first, second = [*beginning, *conversation(2, 500)], [*beginning, *conversation(3, 500)]
    with serve(wide, EXACT, None) as server:
        stayed = [said(server, first)]
        stayed += [said(server, longer(first, stayed[0]))]
    with serve(wide, EXACT) as server:
        came = [said(server, first)]
        assert said(server, second)[2] >= 700
        came += [said(server, longer(first, came[0]))]
        assert came[1][2] >= 1200
    for one, other in zip(came, stayed):
        same(one, other)


def test_what_is_not_parked_is_copied_before_its_cells_are_needed(wide, copiers):
    """The block in which two conversations part: a thread copies it, and answers go on. The rest is parked."""
    beginning = apart(1, 100)
    first, second = [*beginning, *conversation(2, 900)], [*beginning, *conversation(3, 900)]
    with serve(wide, EXACT) as server:
        said(server, first)
        said(server, second)
        assert len(copiers) == 1 and copiers[0].startswith("edgekv-save")


def test_two_slots_want_what_is_parked(wide, copiers):
    """The first gets the memory; the second copies from its cells."""
    first, second = apart(1, N), apart(2, N)
    stayed, came = [], []
    for seed in (8, 9):
        with serve(wide, EXACT, None) as server:
            stayed.append(said(server, longer(first, said(server, first), seed)))
    with serve(wide, EXACT, n_slots=2, n_ctx=4096, extra=OWN_CACHES) as server:
        answer = said(server, first, id_slot=0)
        said(server, second, id_slot=0)
        for slot, seed in ((1, 8), (0, 9)):
            came.append(said(server, longer(first, answer, seed), id_slot=slot))
            assert (copiers == []) == (slot == 1) and came[-1][2] == N + N_ANSWER - 1
    for one, other in zip(came, stayed):
        same(one, other)


def test_a_request_that_keeps_nothing_parks_what_was_there(wide, copiers):
    first, second = apart(1, N), apart(2, N)
    with serve(wide, EXACT) as server:
        answer = said(server, first)
        said(server, second, cache_prompt=False)
        again = said(server, longer(first, answer))
        assert again[2] == N + N_ANSWER - 1 and copiers == []
