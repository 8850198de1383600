"""Prompts that are kept, over HTTP: a client lists them, lets them stay for a time, and removes them, and sees only those of its own. What shall not be
kept is not, and what a person deletes is gone: from slots, RAM and disk."""

from functools import partial
from pathlib import Path

import pytest
from support import prefix_server
from support.clients import Reply, post, send
from support.prefix_server import ask, n_read, serve

from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.named import Pin, read_pins, write_pin
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

ANNA, BERT = "key-of-anna", "key-of-bert"
CACHE = "/edgekv/cache"
conversation = partial(prefix_server.conversation, n=600)


def as_key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def listed(server: Server, key: str | None = None, query: str = "") -> list[dict]:
    server.settle()
    reply = send(server.url, CACHE + query, **as_key(key))
    assert reply.status == 200, reply.text
    return reply.body["data"]


def removed(server: Server, query: str, key: str | None = None) -> Reply:
    server.settle()
    return send(server.url, f"{CACHE}?{query}", method="DELETE", **as_key(key))


def test_kept_prompts_are_listed_and_removed(tiny, tmp_path):
    one, two, nothing = conversation(1), [*conversation(1)[:300], *conversation(2)[1:100]], {"prompt": [5], "n_predict": 1, "cache_prompt": False}
    with serve(tiny, store=StoreSettings(folder=tmp_path)) as server:
        assert listed(server) == []
        ask(server, one)
        ask(server, two)
        server.settle()
        server.prefixes.flush()
        found = {row["tokens"]: row for row in listed(server)}
        assert sorted(found) == [406, 607]
        for row in found.values():
            assert row["places"] == ["ram", "disk"] and row["reading"] == "exact" and row["ttl_s"] == 0 and row["pins"] == []
            assert row["bytes"] and 0 <= row["unused_s"] < 60 and len(row["id"]) == 12
        post(server.url, "/completion", nothing)  # the slot gives its tokens up
        reply = removed(server, f"id={found[607]['id'][:8]}")
        assert (reply.status, reply.body["removed"]) == (200, 1) and reply.body["bytes"] == found[607]["bytes"] - listed(server)[0]["bytes"] // 406 * 256
        assert [row["tokens"] for row in listed(server)] == [406], "the block that both have stays"
        assert n_read(ask(server, two)) == 1
        post(server.url, "/completion", nothing)
        assert n_read(ask(server, one)) >= 600 - 300
        assert removed(server, "all=true").body["removed"] == 2
        assert listed(server) == [] and not list(scan(tmp_path)) and server.prefixes.stats()[0].disk.n_bytes == 0


def test_a_prompt_stays_for_a_time_and_no_longer(tiny, tmp_path):
    with serve(tiny, store=StoreSettings(folder=tmp_path)) as server:
        ask(server, conversation(1))
        (row,) = listed(server)
        stays = post(server.url, CACHE, {"id": row["id"], "ttl": "12h"})
        assert 12 * 3600 - 5 <= stays["ttl_s"] <= 12 * 3600
        assert post(server.url, CACHE, {"id": row["id"], "ttl": 60})["ttl_s"] == stays["ttl_s"], "it does not get shorter"
        server.settle()
        server.prefixes.flush()
        assert len(read_pins(tmp_path)) == 1
    with serve(tiny, store=StoreSettings(folder=tmp_path)) as server:
        (row,) = listed(server)
        assert row["places"] == ["disk"] and row["ttl_s"] > 12 * 3600 - 60, "it outlives the server"
        assert post(server.url, CACHE, {"id": row["id"], "ttl": 0})["ttl_s"] <= row["ttl_s"]
        server.settle()
        server.prefixes.flush()
        assert read_pins(tmp_path) == [] and listed(server)[0]["ttl_s"] == 0


def test_what_an_operator_pinned_stays(tiny, tmp_path):
    with serve(tiny, store=StoreSettings(folder=tmp_path)) as server:
        ask(server, conversation(1))
        ask(server, conversation(2))
        server.settle()
        server.prefixes.flush()
        first = next(iter(sorted(listed(server), key=lambda row: row["id"])))
        file = next(file for file in scan(tmp_path) if file.link.key.hex().startswith(first["id"]))
        write_pin(tmp_path, Pin("manual", file.root, file.link.key, 1e12))
        assert [row["pins"] for row in sorted(listed(server), key=lambda row: row["id"])] == [["manual"], []]
        reply = removed(server, f"id={first['id']}")
        assert reply.status == 400 and "pinned as manual" in reply.body["error"]["message"]
        assert removed(server, "all=true").body["pinned"] == 1
        assert [row["id"] for row in listed(server)] == [first["id"]]


def test_a_key_sees_and_touches_only_its_own(tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{ANNA}\n{BERT}\n")
    with serve(tiny, store=StoreSettings(folder=tmp_path / "prefixes"), api_key_file=keys) as server:
        assert send(server.url, CACHE).status == 401 and removed(server, "all=true").status == 401
        for key, more in ((ANNA, {}), (ANNA, {"cache_salt": "work"}), (BERT, {})):
            post(server.url, "/completion", {"prompt": conversation(1), "n_predict": 4, **more}, **as_key(key))
        server.settle()
        server.prefixes.flush()
        (anna,), (bert,), (work,) = listed(server, ANNA), listed(server, BERT), listed(server, ANNA, "?cache_salt=work")
        assert len({anna["id"], bert["id"], work["id"]}) == 3
        assert listed(server, BERT, "?cache_salt=work") == []
        for answer in (removed(server, f"id={anna['id']}", BERT), removed(server, f"id={work['id']}", ANNA),
                       send(server.url, CACHE, {"id": anna["id"], "ttl": "1h"}, **as_key(BERT))):
            assert answer.status == 400 and "no kept prompt has an ID" in answer.body["error"]["message"]
        assert removed(server, "all=true", BERT).body["removed"] == 1
        assert len(listed(server, ANNA)) == 1 and listed(server, BERT) == []
        assert removed(server, "all=true&cache_salt=work", ANNA).body["removed"] == 1
        assert len(listed(server, ANNA)) == 1


def test_a_server_that_keeps_nothing_says_so(tiny):
    with serve(tiny, store=None) as server:
        for method in ("GET", "DELETE", "POST"):
            reply = send(server.url, CACHE, {} if method == "POST" else None, method)
            assert reply.status == 501 and "--cache-ram" in reply.body["error"]["message"]
        marked = {"model": "x", "max_tokens": 2, "system": [{"type": "text", "text": "word " * 30, "cache_control": {"type": "ephemeral"}}],
                  "messages": [{"role": "user", "content": "x"}]}
        assert post(server.url, "/v1/messages", marked)["usage"]["cache_creation_input_tokens"] == 0


def test_a_model_with_windows_begins_at_a_mark(synthetic, tmp_path):
    """A snapshot is taken where a marked part ends."""
    def asked(question: str) -> dict:
        return {"model": "x", "max_tokens": 2, "system": [{"type": "text", "text": "word " * 90, "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": question}]}

    with serve(synthetic("gemma2", dtype="f32"), store=StoreSettings(folder=Path(tmp_path))) as server:
        first = post(server.url, "/v1/messages", asked("one " * 40))["usage"]
        post(server.url, "/completion", {"prompt": [5], "n_predict": 1, "cache_prompt": False})
        again = post(server.url, "/v1/messages", asked("two " * 40))["usage"]
    n = first["cache_creation_input_tokens"]
    assert n > 90 and again["cache_creation_input_tokens"] <= 8 and n - 8 <= again["cache_read_input_tokens"] <= n + 8


# ---- what is not kept, and what is deleted -----------------------------------------------------------------------------------------


def n_blocks(server: Server, folder: Path) -> tuple[int, int]:
    """(blocks in RAM and in slots, blocks on disk)."""
    server.settle()
    server.prefixes.flush()
    (stats,) = server.prefixes.stats()
    return stats.ram.n_blocks + stats.n_in_slots, len(list(scan(folder)))


@pytest.mark.parametrize("extra", [(), ("--kv-unified",)], ids=["a cache each", "one cache"])
def test_cache_prompt_false_keeps_nothing(tiny, tmp_path, extra):
    """Six blocks used to lie on disk."""
    prompt = conversation(1)
    with serve(tiny, store=StoreSettings(folder=tmp_path), n_slots=2, extra=extra) as server:
        assert n_read(ask(server, prompt, 600, cache_prompt=False)) == len(prompt)
        assert n_blocks(server, tmp_path) == (0, 0)
        assert n_read(ask(server, prompt)) == len(prompt)  # nor does a slot have it
        assert n_blocks(server, tmp_path) == (3, 3)
        assert n_read(ask(server, prompt)) == 1


@pytest.mark.parametrize(("path", "body", "extra"), [
    ("/v1/embeddings", {"input": "word " * 100}, ("--embeddings", "--pooling", "mean", "--ubatch-size", "512")),
    ("/v1/embeddings", {"input": ["word " * 100, "other " * 60]}, ("--embeddings", "--pooling", "last", "--ubatch-size", "512")),
])
def test_embeddings_are_not_kept(tiny, tmp_path, path: str, body: dict, extra: tuple[str, ...]):
    with serve(tiny, store=StoreSettings(folder=tmp_path), extra=extra) as server:
        assert all(len(one["embedding"]) for one in post(server.url, path, body)["data"])
        assert n_blocks(server, tmp_path) == (0, 0)


def test_a_chat_that_is_removed_leaves_nothing(tiny, tmp_path, monkeypatch):
    """The chat's own server used to delete the text and leave K, V and the tokens in the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from edgekv.cli.chat.client import ChatClient
    from edgekv.cli.chat.kept import Keeper, KeptChats
    from edgekv.cli.chat.session import Conversation
    from edgekv.cli.chat.views import OwnServer

    folder, chats = tmp_path / "prefixes", KeptChats(tmp_path / "chats")
    with serve(tiny, store=StoreSettings(folder=folder), api_key="one", cache_shared=True) as server:
        view = OwnServer(server)
        conversation = Conversation(ChatClient(server.url, "one", {"max_tokens": 300, "temperature": 0}), "Always the same words. " * 12)
        keeper = Keeper(conversation, chats, view)

        def say(text: str) -> None:
            conversation.draft.text = text
            conversation.send(lambda _: None)
            keeper.keep()

        say("first")
        say("more")
        first = keeper.name
        shared = n_blocks(server, folder)[1]
        conversation.clear()
        keeper.begin()
        say("second")
        both = n_blocks(server, folder)[1]
        assert shared < both
        chats.remove(first, view)
        assert 0 < n_blocks(server, folder)[1] < shared and chats.names() == [keeper.name]
        chats.remove(keeper.name, view)
        assert n_blocks(server, folder) == (0, 0) and not list(folder.rglob("*.json"))


# ---- mistakes: one server for all ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "query", "body", "said"), [
    ("DELETE", "", None, "only one of these"), ("DELETE", "?all=true&id=3f", None, "only one of these"), ("DELETE", "?id=3f", None, "no kept prompt"),
    ("DELETE", "?id=", None, "no kept prompt"), ("DELETE", "?key=3f", None, "'key' is not known here"), ("POST", "", {"ttl": "1h"}, "'id' must be"),
    ("POST", "", {"id": "3f"}, "'ttl' must be"), ("POST", "", {"id": "3f", "ttl": "long"}, "'ttl' is 'long'"),
    ("POST", "", {"id": "3f", "ttl": -1}, "'ttl' must be"), ("POST", "", {"id": "3f", "ttl": 1e12}, "'ttl' must be"), ("POST", "", [1], "JSON object"),
    ("POST", "", b"{", None), ("GET", "?x=1", None, "'x' is not known here"), ("POST", "", {"id": 5, "ttl": 5, "cache_salt": 7}, "must be a string"),
])
def test_mistakes_are_said(mistaken, method: str, query: str, body: object, said: str | None):
    reply = send(mistaken.url, CACHE + query, body, method)
    assert reply.status == 400 and (said or "") in reply.body["error"]["message"], reply.text
    assert reply.body["error"]["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def mistaken(synthetic):
    with serve(synthetic("llama", n_head=6, dtype="f32"), store=StoreSettings()) as server:
        yield server
