"""Slots that share one cache (--kv-unified): each has the context and the answers that it would have with a cache of its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients import send
from support.prefix_server import EXACT, SPARSE, ask, conversation, n_read, serve

N_CTX = 512

ONE = ("--kv-unified",)


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("kv", [EXACT, SPARSE], ids=["exact", "sparse"])
def test_every_slot_can_be_full(tiny, kv: dict):
    """All slots are filled to their last token at the same time; one of them that wants more is told so, and takes nothing from the others."""
    with serve(tiny, kv, n_slots=3, n_ctx=N_CTX, store=None, extra=ONE) as server, ThreadPoolExecutor(3) as pool:
        prompts = [conversation(seed, N_CTX - 40) for seed in range(3)]
        answers = list(pool.map(lambda i: ask(server, prompts[i], 200, id_slot=i), range(3)))
        assert [answer["stop_type"] for answer in answers] == ["limit"] * 3
        assert [len(answer["tokens"]) for answer in answers] == [40] * 3
        assert server.runtime.memory().n_cells_used > 3 * (N_CTX - 4)
        too_long = send(server.url, "/completion", {"prompt": conversation(9, N_CTX + 88), "n_predict": 4})
        assert too_long.status == 400 and "exceeds the available context size" in too_long.text
        again = ask(server, prompts[1], 4, id_slot=1)
        assert n_read(again) == 1
        if kv is EXACT:  # mode sparse samples rows for the prompt's last token now
            assert again["tokens"] == answers[1]["tokens"][:4]


@pytest.mark.usefixtures("single_precision")
def test_the_answers_of_slots_with_caches_of_their_own(tiny):
    """In mode exact. A sample's draws depend on which tokens share a batch; tests/runtime/test_places.py compares the rows that it reads."""
    prompts = [conversation(seed, 300 + 17 * seed) for seed in range(4)]
    found = []
    for extra in (ONE, ()):
        with serve(tiny, EXACT, n_slots=4, store=None, extra=extra) as server, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: ask(server, prompts[i], 2, id_slot=i), range(4)))
            found.append([answer["tokens"] for answer in pool.map(lambda i: ask(server, prompts[i], 30, id_slot=i), range(4))])
    assert found[0] == found[1]


def test_many_answers_to_one_prompt_take_its_cells_once(tiny):
    with serve(tiny, n_slots=8, store=None, extra=ONE) as server:
        body = {"prompt": conversation(3, 1000), "max_tokens": 8, "n": 8, "temperature": 1.0, "seed": 5}
        reply = send(server.url, "/v1/completions", body)
        assert len(reply.body["choices"]) == 8
        assert server.runtime.memory().n_cells_used <= 1000 + 8 * 8
