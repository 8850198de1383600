"""What a request asks for happens, is refused by name, or stands in a header of the reply."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients import CHAT, Reply
from support.serve_process import Served, serving
from support.stub import write_stub

from edgekv import _native
from edgekv._native import http_server
from edgekv.server.fields import page

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
TURN = [{"role": "user", "content": "?"}]
PLAIN: dict[str, dict] = {CHAT: {"messages": TURN}, COMPLETIONS: {"prompt": "?"}, RESPONSES: {"input": "?"}, MESSAGES: {"messages": TURN, "max_tokens": 9}}
PAGE = Path(__file__).parents[2] / "edgekv" / "server" / "FIELDS.md"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("fields")
    with serving(home, str(write_stub(home / "stub.gguf", "All is well. "))) as started:
        yield started


def refusal(reply: Reply) -> str:
    assert reply.status == 400, reply.text
    assert reply.body["error"]["type"] == "invalid_request_error"
    return reply.body["error"]["message"]


def test_the_page_is_that_of_the_table() -> None:
    _native.prepare()
    assert PAGE.read_text() == page(http_server.fields())


@pytest.mark.parametrize(("path", "name", "value", "allowed"), [
    (CHAT, "temperature", -1, "a number from 0"),
    (CHAT, "top_p", 2, "a number from 0 to 1"),
    (CHAT, "stop", 5, "a text or a list of texts"),
    (CHAT, "grammar", 5, "a text"),
    (CHAT, "tool_choice", 5, "a text or an object"),
    (CHAT, "messages", [], "a list of objects not empty"),
    (CHAT, "max_tokens", 10**18, "an integer from -1 to 2147483647"),
    (CHAT, "max_tokens", 1e18, "an integer from -1 to 2147483647"),
    (CHAT, "max_tokens", 1.5, "an integer from -1 to 2147483647"),
    (CHAT, "stream", "yes", "a boolean"),
    (CHAT, "response_format", "json", "an object"),
    (CHAT, "stream_options", {"include_usage": 1}, "a boolean"),
    (COMPLETIONS, "temperature", -1, "a number from 0"),
    (COMPLETIONS, "n", 0, "an integer from 1 to 128"),
    (RESPONSES, "max_output_tokens", "9", "an integer from -1 to 2147483647"),
    (RESPONSES, "input", 5, "a text or a list of objects"),
    (RESPONSES, "reasoning", {"effort": 5}, "a text"),
    (MESSAGES, "top_p", 2, "a number from 0 to 1"),
    (MESSAGES, "stop_sequences", "x", "a list of texts"),
    (MESSAGES, "thinking", {"type": "on"}, "one of enabled, disabled, adaptive"),
    (MESSAGES + "/count_tokens", "system", 5, "a text or a list of objects"),
], ids=str)
def test_a_wrong_kind_or_range_is_refused(served: Served, path: str, name: str, value: object, allowed: str):
    sentence = refusal(served.ask(path, {**PLAIN[path.removesuffix("/count_tokens")], name: value}))
    inner = f".{next(iter(value))}" if isinstance(value, dict) else ""
    assert sentence.startswith(f"the field '{name}{inner}' is ") and sentence.endswith(f"; it must be {allowed}")


@pytest.mark.parametrize(("name", "value", "why"), [
    ("edgekv_pinned", "all", "must list numbers of 'messages', from 0 on"),
    ("id_slot", 99, "the server has the slots 0 to 0"), ("samplers", ["nope"], "'samplers' names \"nope\""), ("samplers", "?", "'samplers' is \"?\""),
])
def test_a_value_that_the_server_does_not_have_is_refused(served: Served, name: str, value: object, why: str):
    assert why in refusal(served.ask(CHAT, {**PLAIN[CHAT], name: value}))


@pytest.mark.parametrize("path", PLAIN)
def test_what_has_no_effect_is_said(served: Served, path: str):
    asked = {**PLAIN[path], "guided_json": {}, "min_tokens": 5, "a,b\n": 1, "seed": None}
    for body in (asked, {**asked, "stream": True}):
        reply = served.ask(path, body)
        assert reply.status == 200 and reply.headers["x-edgekv-ignored"] == "guided_json, min_tokens, a?b?"
    assert "x-edgekv-ignored" not in served.ask(path, PLAIN[path]).headers


def test_a_known_field_without_effect_is_said_where_it_asks_for_something(served: Served):
    assert served.ask(CHAT, {**PLAIN[CHAT], "store": True, "user": "", "prediction": None}).headers["x-edgekv-ignored"] == "store"
    assert served.ask(RESPONSES, {**PLAIN[RESPONSES], "text": {"verbosity": "low"}}).headers["x-edgekv-ignored"] == "text.verbosity"


def test_many_names_make_a_short_header(served: Served):
    told = served.ask(CHAT, {**PLAIN[CHAT], **{f"name{n}{'x' * 500}": 1 for n in range(100)}}).headers["x-edgekv-ignored"]
    assert len(told) < 2500 and told.endswith(", ...")


def test_strict_fields(tmp_path: Path):
    with serving(tmp_path, str(write_stub(tmp_path / "stub.gguf", "All is well. ")), "--strict-fields") as served:
        for path, plain in PLAIN.items():
            assert "there is no field 'guided_json' here" in refusal(served.ask(path, {**plain, "guided_json": {}}))
            assert served.ask(path, {**plain, "metadata": {"a": "b"}} if path != COMPLETIONS else plain).status == 200
