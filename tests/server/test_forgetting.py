"""The server keeps nothing that it shall not keep, and deletes what a person deletes: from slots, RAM and disk."""

from functools import partial
from pathlib import Path

import pytest
from support import prefix_server
from support.clients import post

from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

N = 600
conversation = partial(prefix_server.conversation, n=N)


def serve(model: Path, folder: Path, **more) -> Server:
    return prefix_server.serve(model, store=StoreSettings(ram_bytes=64 << 20, folder=folder), **more)


def n_cached(server: Server, tokens: list[int], n: int = 4, **more) -> int:
    reply = post(server.url, "/v1/completions", {"prompt": tokens, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more})
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


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
    with serve(tiny, tmp_path, n_slots=2, extra=extra) as server:
        assert n_cached(server, prompt, 600, cache_prompt=False) == 0
        assert n_blocks(server, tmp_path) == (0, 0)
        assert n_cached(server, prompt) == 0  # nor does a slot have it
        assert n_blocks(server, tmp_path) == (3, 3)
        assert n_cached(server, prompt) == N - 1


@pytest.mark.parametrize(("path", "body", "extra"), [
    ("/v1/embeddings", {"input": "word " * 100}, ("--embeddings", "--pooling", "mean", "--ubatch-size", "512")),
    ("/v1/embeddings", {"input": ["word " * 100, "other " * 60]}, ("--embeddings", "--pooling", "last", "--ubatch-size", "512")),
])
def test_embeddings_are_not_kept(tiny, tmp_path, path: str, body: dict, extra: tuple[str, ...]):
    with serve(tiny, tmp_path, extra=extra) as server:
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
    with serve(tiny, folder, api_key="one", cache_shared=True) as server:
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
