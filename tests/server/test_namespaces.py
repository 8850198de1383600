"""A key reveals nothing of what another key sent: not in slots, in the cells of others, in RAM, on disk, or in a log."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support import prefix_server
from support.clients import CHAT, Reply, send

from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

ANNA, BERT = "key-of-anna", "key-of-bert"
N = 600
conversation = partial(prefix_server.conversation, n=N)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{ANNA}\n{BERT}\n")
    return path


def serve(model: Path, keys: Path | None, store: StoreSettings | None = None, **more) -> Server:
    return prefix_server.serve(model, store=store, api_key_file=keys, **more)


def ask(server: Server, path: str, body: dict | None, key: str | None = None, method: str | None = None, **headers: str) -> Reply:
    """With the key as a bearer's, where there is one."""
    return send(server.url, path, body, method, **({} if key is None else {"Authorization": f"Bearer {key}"}), **headers)


def n_cached(server: Server, tokens: list[int], key: str | None = None, headers: dict[str, str] | None = None, **more) -> int:
    reply = ask(server, "/v1/completions", {"prompt": tokens, "max_tokens": 4, "temperature": 0, **more}, key, **(headers or {}))
    assert reply.status == 200, reply.text
    usage = reply.body["usage"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    # the server computes the last token in any case
    assert found or sum(usage["edgekv"]["cached_tokens"].values()) <= 1, "the two counts of cached tokens differ"
    return found


STORED = StoreSettings(ram_bytes=64 << 20)
PLACES = {
    "the slot": {"n_slots": 1},
    "two slots": {"n_slots": 2},
    "one cache": {"n_slots": 2, "extra": ("--kv-unified",)},
    "a store": {"n_slots": 1, "store": STORED},
    "a store and one cache": {"n_slots": 2, "extra": ("--kv-unified",), "store": STORED},
    "chunks": {"n_slots": 1, "extra": ("--cache-reuse", "16")},
    "snapshots": {"n_slots": 1, "store": STORED},
    "llama's own variable": {"n_slots": 1, "store": STORED},
}


@pytest.mark.parametrize("where", PLACES)
def test_another_key_finds_nothing(tiny, synthetic, keys, monkeypatch, where: str):
    """Another key used to find 599 of 600 tokens in each place."""
    prompt, windows = conversation(1), where == "snapshots"
    if where == "llama's own variable":
        keys = monkeypatch.setenv("LLAMA_API_KEY", f"{ANNA},{BERT}")
    with serve(synthetic("gemma2", dtype="f32") if windows else tiny, keys, **PLACES[where]) as server:
        assert n_cached(server, prompt, ANNA) == 0
        assert n_cached(server, prompt, BERT) == 0
        assert windows or n_cached(server, prompt[: N // 2], BERT) >= N // 2 - 1  # of its own
        if where != "the slot" and where != "chunks":  # which Bert took over
            assert n_cached(server, prompt, ANNA) >= N - 1 - 4 * windows  # the newest snapshot stands four tokens before the end


def test_moved_chunks_are_of_the_same_key(tiny, keys):
    prompt = conversation(2)
    with serve(tiny, keys, extra=("--cache-reuse", "16")) as server:
        n_cached(server, prompt, ANNA)
        assert n_cached(server, prompt[:1] + prompt[200:], ANNA) > 300
        n_cached(server, prompt, ANNA)
        assert n_cached(server, prompt[:1] + prompt[200:], BERT) == 0


def test_who_reads_the_same_at_the_same_time_waits_for_its_own_key_alone(tiny, keys):
    """One of eight requests used to read the prompt, and seven took its rows."""
    prompt = conversation(3, n=1024)
    whose = [ANNA, BERT] * 4
    with serve(tiny, keys, STORED, n_slots=8) as server, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda key: n_cached(server, prompt, key), whose))
    for key in (ANNA, BERT):
        assert min(n for n, of in zip(found, whose) if of == key) == 0
    assert sum(n > 0 for n in found) >= 4


def test_what_is_on_disk_is_a_keys_own_after_a_restart_too(tiny, keys, tmp_path):
    where, prompt = StoreSettings(folder=tmp_path / "prefixes"), conversation(4)
    with serve(tiny, keys, where) as server:
        n_cached(server, prompt, ANNA)
        assert server.prefixes is not None
        server.prefixes.flush()
    with serve(tiny, keys, where) as server:
        assert n_cached(server, prompt, BERT) == 0
        assert n_cached(server, prompt, headers={"X-Api-Key": ANNA}) == N - 1
    with serve(tiny, None, where) as server:
        assert n_cached(server, prompt) == 0
    for file in (tmp_path / "prefixes").rglob("*"):
        assert not file.is_file() or ANNA.encode() not in file.read_bytes()


@pytest.mark.parametrize("shared", [False, True])
def test_a_salt_is_a_namespace(tiny, keys, shared: bool):
    prompt = conversation(7)
    with serve(tiny, keys, STORED, cache_shared=shared) as server:
        n_cached(server, prompt, ANNA, cache_salt="a project")
        assert n_cached(server, prompt, ANNA) == 0
        assert n_cached(server, prompt, ANNA, cache_salt="another") == 0
        assert n_cached(server, prompt, ANNA, cache_salt="a project") == N - 1
        assert n_cached(server, prompt, BERT, cache_salt="a project") == (N - 1 if shared else 0)


def test_saved_slots_are_a_keys_own(tiny, keys, tmp_path):
    prompt = conversation(8)
    with serve(tiny, keys, extra=("--slot-save-path", str(tmp_path))) as server:
        n_cached(server, prompt, ANNA)
        reply = ask(server, "/slots/0?action=save", {"filename": "one"}, BERT)
        assert reply.status == 400 and "another key" in reply.body["error"]["message"]
        assert ask(server, "/slots/0?action=save", {"filename": "one"}, ANNA).status == 200
        assert ask(server, "/slots/0?action=restore", {"filename": "one"}, BERT).status == 400
        reply = ask(server, "/slots/0?action=restore", {"filename": "one"}, ANNA)
        assert reply.status == 200 and reply.body["n_restored"] >= N
        assert n_cached(server, prompt, BERT) == 0
        ask(server, "/slots/0?action=restore", {"filename": "one"}, ANNA)
        assert n_cached(server, prompt, ANNA) == N - 1


def test_streams_that_are_kept_for_a_lost_client_are_a_keys_own(tiny, keys):
    """A client that guessed a stream's name used to read the answer, and could end it."""
    names = {"conversation_ids": ["one"]}
    with serve(tiny, keys) as server:
        said = ask(server, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}, ANNA,
                   **{"X-Conversation-Id": "one"}).text
        assert "data: " in said
        assert ask(server, "/v1/stream?conv_id=one", None, BERT).status == 404
        assert ask(server, "/v1/streams/lookup", names, BERT).body == []
        ask(server, "/v1/stream?conv_id=one", None, BERT, "DELETE")
        (found,) = ask(server, "/v1/streams/lookup", names, ANNA).body
        assert found["conversation_id"] == "one"
        again = ask(server, "/v1/stream?conv_id=one", None, ANNA)
        assert again.status == 200 and again.text.split() == said.split()


def test_the_log_says_nothing_of_a_conversation(tiny, tmp_path):
    """The log used to show the two tokens at which a prompt differs from what is kept."""
    log, words = tmp_path / "log", ["zebra", "quokka", "okapi"]
    text = " ".join(f"{words[i % 2]} {i}" for i in range(150))
    with serve(tiny, None, STORED, log_file=log) as server:
        for prompt in (text, text[:400] + "okapi " + text[400:], "okapi " * 200):
            assert ask(server, "/completion", {"prompt": prompt, "n_predict": 2}).status == 200
            assert ask(server, CHAT, {"messages": [{"role": "user", "content": prompt[:200]}], "max_tokens": 2}).status == 200
    said = log.read_text(errors="replace")
    assert "goes on differently at token" in said
    assert not any(word in said for word in words)
    line = next(line for line in said.splitlines() if "goes on differently" in line)
    assert "'" not in line
