"""The same conversation gets the same answer: each token's reads follow from the conversation alone, and both modes read prompts alike, also in pieces."""

from pathlib import Path

import numpy as np
import pytest
from support import prefix_server
from support.clients import Stream, answering, drained

from edgekv._native import http_server as native
from edgekv.config import KvOptions
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server
from edgekv.server.server_options import ServerLimits, ServerOptions

EXACT = {"mode": "exact"}
SPARSE = {"mode": "sparse", "exact_tokens": 256, "sample_budget": 30.0}
"""The default policy applies."""
N_ANSWER = 40
"""The policy runs twice in so many tokens."""


@pytest.fixture
def model(synthetic) -> Path:
    return synthetic("llama", n_head=6, dtype="f32", n_ctx_train=8192)


def serve(model: Path, kv: dict, store: StoreSettings | None = None, **more) -> Server:
    return prefix_server.serve(model, kv, store, n_ctx=4096, **more)


def ask(server: Server, tokens: list[int], n: int = N_ANSWER, **more) -> list[tuple[int, float]]:
    """The tokens of the answer, with their log-probabilities."""
    answer = prefix_server.ask(server, tokens, n, n_probs=1, **more)
    return [(one["id"], one["logprob"]) for one in answer["completion_probabilities"]]


def prompt(n: int, seed: int = 7) -> list[int]:
    return prefix_server.conversation(seed, n)


@pytest.mark.parametrize("n_last", [1, 15, 16, 200])
def test_a_prompt_has_the_same_bits_in_both_modes(model, n_last: int):
    """A cold prompt agrees, whatever is left of its last batch, and so does a warm one, of which one token is read."""
    tokens = prompt(2 * 512 + n_last)
    firsts = []
    for kv in (EXACT, SPARSE):
        with serve(model, kv) as server:
            firsts.append([ask(server, tokens, 1), ask(server, tokens, 1)])
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize("n_last", [1, 15, 200])
def test_cold_warm_and_restored_are_the_same_bits(model, tmp_path, n_last: int):
    tokens = prompt(2 * 512 + n_last)
    store = StoreSettings(folder=tmp_path, folder_bytes=1 << 30)
    with serve(model, SPARSE, store) as server:
        cold = ask(server, tokens)
        warm = [ask(server, tokens), ask(server, tokens)]
        assert server.runtime.stats.n_tokens > 0
    with serve(model, SPARSE, store) as server:
        restored = ask(server, tokens)
    with serve(model, SPARSE) as server:
        again = ask(server, tokens)
    assert again == cold
    # a warm prompt has another last piece, whose kernel rounds otherwise; the rows are the same
    assert restored == warm[0] == warm[1]
    if n_last == 1 or n_last < 16 and stock_rounds_alike(model, tokens):
        assert warm[0] == cold


def stock_rounds_alike(model: Path, tokens: list[int]) -> bool:
    """Whether ggml's products of weights give the same bits for the last tokens of this prompt and for one of them. On AVX2 they do not."""
    with serve(model, {"mode": "off"}) as server:
        return ask(server, tokens) == ask(server, tokens)


def test_beside_other_slots(model):
    """Another slot holds a conversation, and this one held another before: the answer shows nothing of them."""
    tokens = prompt(600)
    with serve(model, SPARSE, n_slots=2) as server:
        alone = ask(server, tokens, id_slot=1)
    with serve(model, SPARSE, n_slots=2) as server:
        ask(server, prompt(1000, seed=3), id_slot=1)
        ask(server, prompt(900, seed=5), id_slot=0)
        assert ask(server, tokens, id_slot=1) == alone


N_PROMPT = 800
PROMPT = np.random.default_rng(4).integers(260, 350, N_PROMPT).tolist()


def read_beside_an_answer(model, max_gap_s: float, cache: str, **kv: object) -> tuple[np.ndarray, np.ndarray, int]:
    """The prompt's labels, its K rows of the last layer, and the number of batches. The answer is in the other slot."""
    options = ServerOptions(model, n_ctx=8192, n_threads=1, n_slots=2, limits=ServerLimits(max_gap_s), kv=KvOptions(**kv), extra=(cache,))
    with Server(options) as server:
        reader = answering(server.url, [5 + i % 50 for i in range(99)], id_slot=0)
        before = native.pacing().n_mixed
        last = drained(Stream(server.url, {"prompt": PROMPT, "n_predict": 1, "id_slot": 1}, "/completion"))[-1]
        n_batches = native.pacing().n_mixed - before
        assert last["tokens_evaluated"] == N_PROMPT and reader.is_alive(), "the answer ran all the time"
        run = server.runtime  # batches of the answer add to other cells
        stream = run.cells.stream_of(1)
        cells = run.cells.stream(stream)
        mine = np.flatnonzero(cells.in_sequence(1))
        mine = mine[np.argsort(cells.positions[mine])][:N_PROMPT]
        layer = max(layer.il for layer in run.layers if layer.hooked)
        assert run.selection(1).n_selections == 0 or kv.get("prompts"), "what is read whole is no selection"
        found = cells.labels[mine].copy(), run.cells.keys(layer)[stream, mine].astype(np.float64), n_batches
    reader.join()
    return found


@pytest.mark.parametrize("cache", ["--kv-unified", "--no-kv-unified"], ids=["one cache", "a cache each"])
def test_pieces_of_a_prompt_are_read_exactly(synthetic, every_single_isa, cache: str):
    model = synthetic("llama", n_ctx_train=8192)
    sparse = {"mode": "sparse", "sample_budget": 20, "exact_tokens": 0}
    _, want, _ = read_beside_an_answer(model, 0.0, cache, mode="exact")
    labels, got, n_batches = read_beside_an_answer(model, 1e-6, cache, **sparse)
    assert n_batches >= N_PROMPT // 16 - 2, "the pieces are the smallest there are"
    assert not labels.any()
    # in one cache the answer's token makes a piece longer than what is sampled
    labels, sampled, _ = read_beside_an_answer(model, 1e-6, "--no-kv-unified", **sparse, prompts="sparse")
    assert labels.any(), "with sparse prompts short pieces are sampled, and say so"
    off = [np.abs(rows - want).max() for rows in (got, sampled)]
    assert off[0] < 0.02 and max(0.02, 10 * off[0]) < off[1]
