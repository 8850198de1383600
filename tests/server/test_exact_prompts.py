"""The server reads a prompt beside answers in pieces as short as answers: where prompts are exact, the pieces are."""

import numpy as np
import pytest
from support.clients import Stream, answering, drained

from edgekv._native import http_server as native
from edgekv.config import KvOptions
from edgekv.server.server import Server
from edgekv.server.server_options import ServerLimits, ServerOptions

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
