"""Models that keep more than rows (windows, recurrent states): prompts begin behind snapshots, and answers are those of a prompt that is read
whole."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.clients import post
from support.prefix_server import EXACT, SPARSE, ask, conversation, n_read, serve
from support.stores import snapshots_in

from edgekv.prefix_cache.results import KeptSnapshot
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import prefixes
from edgekv.server.server import Server

KINDS = ["gemma2", "gpt-oss", "lfm2", "mamba"]
OPENING = 4
"""Tokens at a prompt's end that the next turn may render in another way; the newest snapshot of a prompt stands before them."""


def best(answer: dict) -> np.ndarray:
    """float [token, 2]: each token of the answer and its log-probability."""
    return np.array([(one["id"], one["logprob"]) for one in answer["completion_probabilities"]])


def answered(server: Server, tokens: list[int], n: int = 8, **more) -> tuple[int, np.ndarray]:
    """Tokens of the prompt that were read, and the answer."""
    answer = ask(server, tokens, n, n_probs=1, **more)
    return n_read(answer), best(answer)


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_comes_back_with_the_same_bits(synthetic, kind: str, kv: dict):
    tokens, other = conversation(7, 1500), conversation(9, 900)
    with serve(synthetic(kind, dtype="f32"), kv) as server:
        n_cold, cold = answered(server, tokens)
        answered(server, other)
        n_warm, warm = answered(server, tokens)
        assert (n_cold, n_warm) == (len(tokens), OPENING)
        np.testing.assert_array_equal(warm, cold)


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_from_disk_behind_a_restart(synthetic, kind: str, tmp_path: Path):
    model, where, tokens = synthetic(kind, dtype="f32"), StoreSettings(ram_bytes=0, folder=tmp_path, folder_bytes=1 << 30), conversation(7, 1500)
    with serve(model, EXACT, where, n_slots=2) as server:
        _, cold = answered(server, tokens)
        server.prefixes.flush()
    with serve(model, EXACT, where, n_ctx=4096) as server:  # other numbers of slots and cells
        said = ask(server, tokens, n_probs=1)
        assert n_read(said) == OPENING
        np.testing.assert_array_equal(best(said), cold)
        usage = post(server.url, "/v1/completions", {"prompt": conversation(7, 1500)[:1450], "max_tokens": 1})["usage"]["edgekv"]["cached_tokens"]
        assert sum(usage.values()) >= 1024


@pytest.mark.parametrize("kind", KINDS)
def test_turns_whose_thoughts_are_stripped_read_no_token_twice(synthetic, kind: str):
    """30 turns: a question, its opening, an answer whose thoughts are not in the next prompt, which goes on with other tokens."""
    rng = np.random.default_rng(3)
    known, spare = conversation(5, 60), 0
    with serve(synthetic(kind, dtype="f32"), EXACT, n_ctx=4096) as server:
        for turn in range(30):
            question = rng.integers(260, 320, int(rng.integers(12, 50))).tolist()
            prompt = [*known, *question, 300, 301, 302, 303]
            answer = ask(server, prompt, 24)
            spare += n_read(answer) - (len(prompt) - len(known)) if turn else 0
            known = [*prompt, 320 + answer["tokens"][0] % 2, *rng.integers(260, 320, 5).tolist()]
            if turn == 14:
                ask(server, conversation(77, 700))  # somebody else
        # besides its question, of each turn's prompt: the answer without its thoughts, and at most the opening before it
        assert 29 * 6 <= spare <= 29 * (6 + OPENING)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_in_the_middle_costs_no_more_than_the_spacing(synthetic, kind: str):
    tokens = conversation(7, 1900)
    edited = [*tokens[:1300], *conversation(3, 100)]
    with serve(synthetic(kind, dtype="f32"), EXACT) as server:
        answered(server, tokens)
        n_edited, there = answered(server, edited)
    with serve(synthetic(kind, dtype="f32"), EXACT) as server:
        n_cold, cold = answered(server, edited)
    assert n_cold == len(edited) and 100 <= n_edited <= 100 + prefixes.LEAST_SPACING
    np.testing.assert_allclose(there[:1], cold[:1], rtol=0, atol=1e-3)  # other cuts round otherwise


@pytest.mark.parametrize("kind", ["gemma2", "lfm2", "mamba"])
def test_an_answer_that_nobody_waits_for_any_more_is_kept(synthetic, kind: str):
    """A client leaves in the middle of an answer; the next prompt goes on there."""
    tokens = conversation(7, 600)
    with serve(synthetic(kind, dtype="f32"), EXACT) as server:
        first = ask(server, tokens, 30)["tokens"]
        ask(server, conversation(8, 400))
        said = ask(server, [*tokens, *first[:20]], 1)
        assert n_read(said) <= 20 + OPENING
        # the answer ended by itself: behind all of its tokens but the last, which was not computed
        said = ask(server, [*tokens, *first, 300, 301], 1)
        assert n_read(said) <= 3


@pytest.mark.parametrize("kind", ["gemma2", "lfm2", "mamba"])
def test_a_beginning_that_two_share_is_read_once(synthetic, kind: str):
    """The second asks while the first is read; both begin with 1,024 tokens, behind which there is a snapshot."""
    common = conversation(11, 1100)
    prompts = [[*common, *conversation(seed, 300)] for seed in (1, 2)]
    with serve(synthetic(kind, dtype="f32"), EXACT, n_slots=2) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, server, prompts[0], id_slot=0)
        time.sleep(0.05)
        second = pool.submit(ask, server, prompts[1], id_slot=1)
        assert sorted(n_read(one.result()) for one in (first, second)) == [1400 - 1024, 1400]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_snapshot_is_read_again(synthetic, kind: str, monkeypatch: pytest.MonkeyPatch):
    tokens = conversation(7, 700)
    with serve(synthetic(kind, dtype="f32"), EXACT) as server:
        _, cold = answered(server, tokens)
        answered(server, conversation(9, 300)[1:])
        monkeypatch.setattr(KeptSnapshot, "read", lambda kept: None)
        n, again = answered(server, tokens)
        assert n == len(tokens)
        np.testing.assert_array_equal(again, cold)
        answered(server, conversation(10, 300)[1:])
        monkeypatch.setattr(KeptSnapshot, "read", lambda kept: np.zeros(64, np.uint8))
        n, again = answered(server, tokens)
        assert n == len(tokens)
        np.testing.assert_array_equal(again, cold)
        monkeypatch.undo()
        answered(server, conversation(12, 300)[1:])
        assert answered(server, tokens)[0] == OPENING


def test_llama_cpp_takes_no_checkpoints_of_its_own(synthetic, tmp_path: Path):
    log = tmp_path / "log"
    with serve(synthetic("lfm2", dtype="f32"), EXACT, extra=("--verbosity", "5"), log_file=log) as server:
        ask(server, conversation(1, 200))
    said = log.read_text()
    assert "context checkpoints disabled" in said and "created context checkpoint" not in said


@pytest.mark.parametrize(("kind", "window"), [("gemma2", 64), ("lfm2", 0), ("mamba", 0)])
def test_the_size_of_a_snapshot_is_known_before(synthetic, kind: str, window: int):
    with serve(synthetic(kind, dtype="f32"), EXACT) as server:
        ask(server, conversation(1, 500), 1)
        kept, model = snapshots_in(server.prefixes.ram), server.model
        assert model.sliding_window == window
        estimate = model.snapshot_bytes("f16", "f16")
        assert estimate <= sum(kept) / len(kept) <= 1.1 * estimate + 4096
