"""`edgekv cache warm`: a running server reads texts before anybody asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.clients import CHAT, post, shown_at, until
from support.prefix_server import serve

from edgekv.cli.cache import cache
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import warming
from edgekv.server.server import Server
from edgekv.server.warming import Warmer, texts_of

TEXT = "All cats of the house sleep on the warm roof until the evening comes. " * 60


@pytest.fixture
def server(wordy_model, tmp_path) -> Iterator[Server]:
    with serve(wordy_model, store=StoreSettings(folder=tmp_path / "prefixes"), n_ctx=4096) as running:
        yield running


def run(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(cache, ["warm", *arguments, "--url", server.url + "/v1"])


def n_cached(server: Server, role: str, text: str, **more) -> int:
    messages = [{"role": role, "content": text + (" What?" if role == "user" else "")}, *([] if role == "user" else [{"role": "user", "content": "Who?"}])]
    usage = post(server.url, CHAT, {"messages": messages, "max_tokens": 1, **more})["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_folder_is_read_and_then_found(server, tmp_path, monkeypatch):
    monkeypatch.setattr(warming, "PIECE_CHARACTERS", 1500)
    texts = {"one.txt": "One. " + TEXT, "below/two.md": "Two. " + TEXT, ".hidden/three.txt": "Three. " + TEXT, "picture.bin": b"\xff\xfe\x00", "empty": ""}
    for name, text in texts.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = run(server, str(tmp_path / "texts"), "--ttl", "1h")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if " tokens, " in line]
    assert len(lines) == 2 and "two.md" in lines[0] and "one.txt" in lines[1], "by name, hidden ones left out"
    assert [n_cached(server, "system", texts[name]) > 850 for name in ("one.txt", "below/two.md", ".hidden/three.txt")] == [True, True, False]
    server.settle()
    listed = shown_at(server, "/edgekv/cache")["data"]
    assert sum(prompt["ttl_s"] > 3500 for prompt in listed) == 2


def test_what_was_read_is_not_lost(server, monkeypatch):
    monkeypatch.setattr(warming, "PIECE_CHARACTERS", 1500)

    def stop(n: int) -> None:
        if n >= 3000:
            raise KeyboardInterrupt

    warmer = Warmer(server.url, role="user")
    with pytest.raises(KeyboardInterrupt):
        warmer.warm(TEXT, stop)
    server.settle()
    post(server.url, "/completion", {"prompt": "x", "n_predict": 1, "cache_prompt": False})
    again = warmer.warm(TEXT)
    assert 500 < again.n_known < again.n_tokens - 100
    whole = warmer.warm(TEXT)
    assert whole.n_tokens - whole.n_known < 60, "a few tokens for each piece"
    assert n_cached(server, "user", TEXT) > 850


def test_it_waits_while_others_are_answered(server, monkeypatch):
    busy = [True, True, False]
    asked: list[str] = []
    warmer = Warmer(server.url)
    ask = warmer._ask

    def spy(method: str, path: str, body: dict | None = None) -> object:
        asked.append(path)
        return [{"is_processing": busy.pop(0)}] if path == "/slots" else ask(method, path, body)

    monkeypatch.setattr(warmer, "_ask", spy)
    monkeypatch.setattr(warming, "_POLL_S", 0.01)
    warmer.warm("Be brief.")
    assert asked == ["/slots"] * 3 + [CHAT]


def test_a_namespace_of_its_own(server, tmp_path):
    (tmp_path / "one.txt").write_text(TEXT)
    assert run(server, str(tmp_path / "one.txt"), "--cache-salt", "work").exit_code == 0
    assert n_cached(server, "system", TEXT) == 0
    assert n_cached(server, "system", TEXT, cache_salt="work") > 850


def test_mistakes_get_a_sentence(server, tmp_path, wordy_model):
    with pytest.raises(ConfigError, match="is empty"):
        (tmp_path / "empty").touch()
        list(texts_of([tmp_path / "empty"]))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(texts_of([Path(tmp_path / "none")]))
    with pytest.raises(EdgeKVError, match="exceed|context"):
        Warmer(server.url).warm(TEXT * 20)
    until(lambda: not shown_at(server, "/slots")[0]["is_processing"])
    server.stop()
    with pytest.raises(EdgeKVError, match="there is no server at .*`edgekv serve` starts one, --url names another"):
        Warmer(server.url).check()
    with serve(wordy_model, store=None) as other, pytest.raises(EdgeKVError, match="keeps no prompts"):
        Warmer(other.url).check()
