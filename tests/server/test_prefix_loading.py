"""Rows of a prefix come in time while the rest of the prompt is computed, or not at all. An answer behind loaded rows has the bits of one
behind rows that stayed, where the prompt is cut at the same places."""

import json
import logging
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support import prefix_server
from support.arithmetic import Said, apart, bound_beside_others, check_near
from support.calls import Held, watch
from support.clients import Endpoint, request_bytes, send, until
from support.faulty import flip
from support.prefix_server import EXACT, SPARSE

from edgekv._native import testing
from edgekv._native.token_rows import Arrivals
from edgekv.prefix_cache import coming
from edgekv.prefix_cache.coming import BlockReader
from edgekv.prefix_cache.files import read_header
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime.tokens import Tokens
from edgekv.server.server import Server

MODES = pytest.mark.parametrize("kv", [EXACT, SPARSE], ids=["exact", "sparse"])
N, N_LAYERS = 700, 6
conversation = partial(prefix_server.conversation, n=N)
KEPT = conversation(1)
PROMPT = [*KEPT, *conversation(2, n=40)]
N_OTHER = 600
"""Tokens of an answer beside which another one begins."""


@pytest.fixture
def model(synthetic) -> Path:
    return synthetic("llama", n_head=6, dtype="f32", n_layer=N_LAYERS)


@pytest.fixture(autouse=True)
def layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming, "GROUP_BYTES", 1)


def serve(model: Path, kv: dict, folder: Path | None, **more) -> Server:
    store = None if folder is None else StoreSettings(ram_bytes=64 << 20, folder=folder)
    return prefix_server.serve(model, kv, store, **more)


def ask(server: Server, tokens: list[int], n: int = 6, **more) -> dict:
    return prefix_server.ask(server, tokens, n, n_probs=3, post_sampling_probs=False, **more)


def logprobs(answer: dict) -> np.ndarray:
    """float [token, 3]: of the three likeliest."""
    return np.array([[one["logprob"] for one in step["top_logprobs"]] for step in answer["completion_probabilities"]])


def keep(model: Path, kv: dict, folder: Path, *prompts: list[int], **more) -> None:
    prefix_server.keep(model, kv, StoreSettings(folder=folder), *prompts, **more)


def read_anew(model: Path, kv: dict, *pieces: list[int], **more) -> dict:
    """The answer to the last piece, where nothing is kept. Each piece begins with the one before it."""
    with serve(model, kv, None, **more) as server:
        return [ask(server, piece) for piece in pieces][-1]


def same(came: dict, read: dict) -> None:
    """Loaded rows are the written ones: the answers agree bit for bit."""
    assert came["tokens"] == read["tokens"], "other tokens"
    np.testing.assert_array_equal(logprobs(came), logprobs(read), "other probabilities")


def said(answer: dict) -> Said:
    return Said(answer["tokens"], logprobs(answer))


def answers_and_bounds(model: Path, *prompts: tuple[list[int], int]) -> list[tuple[Said, float]]:
    """For each (prompt, number of tokens) the answer and its bound: other batches, as beside others' tokens, stay within it, and another
    prompt does not."""
    with serve(model, EXACT, None) as server:
        return [(cut_at(server, prompt, n), bound_of(server, prompt, n)) for prompt, n in prompts]


def cut_at(server: Server, prompt: list[int], n: int, *cuts: int) -> Said:
    """The answer behind a prompt that is read in pieces, from its first token on."""
    ask(server, [300, 301], 1)
    for first, end in pairwise([0, *cuts, len(prompt)]):
        answer = ask(server, prompt[:end], n if end == len(prompt) else 1)
        assert answer["timings"]["cache_n"] == first, f"the piece to token {end} was not read from token {first}"
    return said(answer)


def bound_of(server: Server, prompt: list[int], n: int) -> float:
    bound = bound_beside_others(partial(cut_at, server), prompt, n)
    other = [*prompt[:100], prompt[100] + 1, *prompt[101:]]
    assert apart(cut_at(server, other, n), cut_at(server, prompt, n)) > bound, "one of so many tokens counts for more"
    return bound


@MODES
def test_the_last_layers_come_when_the_first_are_computed(model, tmp_path, monkeypatch, kv):
    """The last layer is held back until the first tokens of the rest were computed in the layers before it."""
    keep(model, kv, tmp_path, KEPT, n_threads=2)
    stayed = read_anew(model, kv, KEPT, PROMPT, n_threads=2)
    computed: list[bool] = []
    with serve(model, kv, tmp_path, n_threads=2) as server:
        ask(server, conversation(3, n=300))
        runtime = server.runtime
        assert runtime is not None and runtime.tokens.arrivals.can_wait

        def hold(_reader: BlockReader, layers: range, _out: np.ndarray) -> None:
            if layers.stop == N_LAYERS:  # the rest has rows in each layer before it once that is computed
                until(lambda: holds(runtime, N_LAYERS - 2, N + 39) and not holds(runtime, N_LAYERS - 1, N - 1), 30)
                computed.append(True)

        watch(monkeypatch, BlockReader, "read", hold)
        answer = ask(server, PROMPT)
        assert answer["timings"]["cache_n"] >= N - 1 and computed
    same(answer, stayed)


def holds(runtime, layer: int, position: int) -> bool:
    """Whether a layer has K of a token; no cell was used before."""
    view = runtime.cells.stream(0)
    cells = np.flatnonzero(view.positions == position)
    return len(cells) == 1 and bool(np.any(runtime.cells.keys(layer)[0, cells[0]]))


# ---- what goes wrong ----------------------------------------------------------------------------------------------------------------


def damage(folder: Path, which: int, layer: int) -> None:
    """Flip a bit of a block's rows in a layer."""
    for path in folder.rglob("*.kv"):
        header = read_header(path)
        if header.tokens[:8].tolist() == KEPT[256 * which : 256 * which + 8]:
            path.write_bytes(flip(header.start + int(header.layout.layer_starts(header.link.n)[layer]))(path.read_bytes()))
            return
    raise AssertionError("there is no such block")


@MODES
@pytest.mark.parametrize("which", [0, 1])
def test_damage_in_a_late_layer_is_read_again(model, tmp_path, caplog, kv, which):
    """The fault shows after two layers. The server reads what was to come up to its end, and then the rest."""
    keep(model, kv, tmp_path, KEPT)
    stayed = read_anew(model, kv, *([PROMPT[:256]] if which else []), KEPT, PROMPT)
    damage(tmp_path, which, N_LAYERS - 1)
    log = tmp_path / "log"
    with serve(model, kv, tmp_path, log_file=log) as server, caplog.at_level(logging.WARNING, "edgekv"):
        answer = ask(server, PROMPT)
        again = ask(server, [*PROMPT, 300])
    same(answer, stayed)
    said = [record.getMessage() for record in caplog.records if record.name in ("edgekv", "edgekv.requests")]
    assert f"the rows of layer {N_LAYERS - 1} are damaged" in said[0]
    assert ["damaged" in one for one in said[1:]] == [True] * (not which), "what is read again is told where it is long"
    assert log.read_text().count("are read again") == 1
    assert answer["timings"]["cache_n"] == 256 * which and again["timings"]["cache_n"] >= N


def test_damage_in_a_prompt_that_is_kept_whole(model, tmp_path):
    """Its last token is computed in any case, and was never counted."""
    keep(model, EXACT, tmp_path, KEPT)
    damage(tmp_path, 1, N_LAYERS - 1)
    with serve(model, EXACT, tmp_path) as server:
        assert ask(server, KEPT)["timings"]["cache_n"] == 256


def test_damage_while_another_answer_runs(model, tmp_path, monkeypatch):
    """The request's token is in the batch that fails, and comes all the same."""
    other = conversation(5, n=300)
    keep(model, EXACT, tmp_path, KEPT)
    (alone, bound), (other_alone, other_bound) = answers_and_bounds(model, (PROMPT, 6), (other, N_OTHER))
    damage(tmp_path, 1, N_LAYERS - 2)
    with serve(model, EXACT, tmp_path, n_slots=2, n_ctx=4096) as server, ThreadPoolExecutor(1) as pool:
        ran = []
        running = pool.submit(ask, server, other, N_OTHER)
        watch(monkeypatch, BlockReader, "read", lambda *_: ran.append(not running.done()))
        while not any(slot["is_processing"] and slot["n_decoded"] > 5 for slot in slots(server)):
            assert not running.done(), "an answer of so many tokens is too short for this machine"
            time.sleep(0.01)
        answer = ask(server, PROMPT)
        assert ran and all(ran)
        check_near(alone, said(answer), bound)
        check_near(other_alone, said(running.result()), other_bound)


def slots(server: Server) -> list[dict]:
    return [{"n_decoded": 0} | slot | (slot.get("next_token") or [{}])[0] for slot in send(server.url, "/slots").body]


def test_two_that_come_back_at_once(model, tmp_path):
    prompts = [[*conversation(seed), *conversation(10 + seed, n=30)] for seed in (1, 2)]
    keep(model, EXACT, tmp_path, conversation(1), conversation(2))
    alone = answers_and_bounds(model, *((prompt, 6) for prompt in prompts))
    with serve(model, EXACT, tmp_path, n_slots=2, n_ctx=4096) as server, ThreadPoolExecutor(2) as pool:
        for answer, (read, bound) in zip(pool.map(lambda prompt: ask(server, prompt), prompts), alone):
            assert answer["timings"]["cache_n"] >= N - 1
            check_near(read, said(answer), bound)


@pytest.mark.parametrize("stops", [False, True], ids=["the client leaves", "the server stops"])
def test_an_end_in_the_middle(model, tmp_path, monkeypatch, stops):
    """Nothing waits, nothing in the folder changes, and the next request is answered. It begins behind all but the last token, where the
    rest was read though the client had left, or behind the loaded rows."""
    keep(model, EXACT, tmp_path, KEPT)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.kv")}
    stayed = {len(PROMPT) - 1: read_anew(model, EXACT, KEPT, PROMPT, PROMPT), N: read_anew(model, EXACT, KEPT, PROMPT)}
    with serve(model, EXACT, tmp_path) as server:
        held = Held(monkeypatch, BlockReader, "read", lambda _reader, layers, _out: layers.stop == N_LAYERS)
        body = json.dumps({"prompt": PROMPT, "n_predict": 100, "stream": True}).encode()
        client = Endpoint(server).send(request_bytes("/completion", body))
        assert held.begun.wait(20)
        client.close()
        if stops:
            threading.Timer(0.2, held.go_on.set).start()
        else:
            held.go_on.set()
            answer = ask(server, PROMPT)
            same(answer, stayed[answer["timings"]["cache_n"]])
    assert held.go_on.is_set()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("n_more", [0, 40], ids=["all of it is known", "more follows"])
@MODES
def test_a_load_under_the_computation_is_as_one_before_it(model, tmp_path, monkeypatch, kv, n_more):
    """The answer and its rows are the same: sketches are built from loaded rows. Where all is known the last token is computed anew, in a
    cell that the load must leave alone."""
    prompt = [*KEPT, *conversation(2, n=1 + n_more)[1:]]
    keep(model, kv, tmp_path / "kept", KEPT)
    seen = []
    for overlaps in (True, False):
        folder = tmp_path / str(overlaps)
        shutil.copytree(tmp_path / "kept", folder)
        if not overlaps:
            monkeypatch.setattr(Arrivals, "can_wait", False)
        with serve(model, kv, folder) as server:
            answer = ask(server, prompt, 12)
            runtime = server.runtime
            assert runtime is not None and answer["timings"]["cache_n"] == N - (n_more == 0)
            selection, check = runtime.selection(), testing.check(runtime._native_handle())
            seen.append((answer["tokens"], selection.n_read, selection.n_certain))
            assert check.n_groups_wrong == 0 and (check.n_groups > 0) == (kv is SPARSE)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("dies_of", [SystemExit, MemoryError, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_in_the_middle_of_a_load(model, tmp_path, monkeypatch, dies_of):
    """The decode that waits for its rows fails, and the prompt is read again."""
    keep(model, EXACT, tmp_path, KEPT)
    with serve(model, EXACT, None) as server:
        alone = ask(server, PROMPT, cache_prompt=False)["tokens"]
    n_writes: list[int] = []

    def die(*_: object) -> None:
        n_writes.append(1)
        if len(n_writes) == 5:
            raise dies_of

    with serve(model, EXACT, tmp_path) as server:
        watch(monkeypatch, Tokens, "write", die)
        answer = ask(server, PROMPT)
        assert answer["tokens"] == alone and len(n_writes) == 5
        assert answer["timings"]["cache_n"] == 0
