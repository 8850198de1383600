"""Parts of a request that say how long the prompt up to them stays: of Anthropic's API and of OpenAI's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients import CHAT, Reply, Stream, drained, post, send
from support.prefix_server import serve

from edgekv.prefix_cache.named import read_pins
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server

TOOLS_TEMPLATE = Path(__file__).parents[1] / "support" / "tools.jinja"
DOCUMENT = "All cats of the house sleep on the warm roof until the evening comes. " * 40
FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture(scope="module")
def server(wordy_model, tmp_path_factory) -> Iterator[Server]:
    where = StoreSettings(folder=tmp_path_factory.mktemp("prefixes"))
    with serve(wordy_model, store=where, n_ctx=4096, extra=("--chat-template-file", str(TOOLS_TEMPLATE))) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    """Forget what other tests left, in the slot too."""
    post(server.url, "/completion", {"prompt": "x", "n_predict": 1, "cache_prompt": False})
    server.settle()
    assert send(server.url, "/edgekv/cache?all=true", method="DELETE").status == 200


def text(words: str, mark: dict | None = None, **more: Any) -> dict:
    return {"type": "text", "text": words, **({} if mark is None else {"cache_control": mark}), **more}


def body(*messages: Any, **more: Any) -> dict:
    said = [{"role": "user", "content": one} if not isinstance(one, dict) else one for one in messages]
    return {"model": "x", "max_tokens": 4, "temperature": 0, "messages": said, **more}


def send_message(server: Server, *messages: Any, **more: Any) -> Reply:
    return send(server.url, "/v1/messages", body(*messages, **more))


def usage(server: Server, *messages: Any, **more: Any) -> dict:
    reply = send_message(server, *messages, **more)
    assert reply.status == 200, reply.text
    return reply.body["usage"]


def kept(server: Server) -> list[dict]:
    server.settle()
    return send(server.url, "/edgekv/cache").body["data"]


def test_a_marked_system_prompt_is_written_once_and_then_read(server):
    system = [text(DOCUMENT, FIVE)]
    first = usage(server, "What sleeps?", system=system)
    assert first["cache_read_input_tokens"] == 0 and first["cache_creation_input_tokens"] > 500 and 5 < first["input_tokens"] < 40
    assert first["cache_creation"] == {"ephemeral_5m_input_tokens": first["cache_creation_input_tokens"], "ephemeral_1h_input_tokens": 0}
    second = usage(server, "Where?", system=system)
    assert second["cache_creation_input_tokens"] == 0 and second["cache_read_input_tokens"] >= first["cache_creation_input_tokens"]
    longer = max(kept(server), key=lambda prompt: prompt["ttl_s"])
    assert 290 <= longer["ttl_s"] <= 300 and longer["tokens"] > 500
    server.prefixes.flush()  # pins are written behind
    assert [pin.asked for pin in read_pins(server.options.store.folder)] == [True], "one beginning is pinned once"


def test_without_marks_nothing_is_counted_as_written(server):
    plain = usage(server, "What sleeps?", system=DOCUMENT)
    assert plain["cache_creation_input_tokens"] == 0 and plain["input_tokens"] > 500
    assert {prompt["ttl_s"] for prompt in kept(server)} == {0}


@pytest.mark.parametrize("marked", [
    {"system": [text(DOCUMENT), text(" It is late. ", HOUR)]},
    {"messages": [[text(DOCUMENT, HOUR), text("What sleeps?")]]},
    {"messages": [[text("  "), text(DOCUMENT, HOUR), text("\nWhat sleeps?\n")]]},
    {"messages": [DOCUMENT, {"role": "assistant", "content": [text("I see.", HOUR)]}, "What sleeps?"]},
    {"messages": [[text(DOCUMENT), text("What sleeps?", HOUR)]]},
    {"messages": [DOCUMENT], "cache_control": HOUR},
    {"messages": [DOCUMENT, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}, "cache_control": HOUR}]},
                  [{"type": "tool_result", "tool_use_id": "1", "content": "a cat"}]]},
    {"messages": [[text(DOCUMENT)], {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
                  [{"type": "tool_result", "tool_use_id": "1", "content": [text("a cat", None)], "cache_control": HOUR}]]},
    {"messages": ["x"], "tools": [{"name": "look", "description": DOCUMENT, "input_schema": {"type": "object"}, "cache_control": HOUR}]},
], ids=["system", "message", "white space", "answer", "last", "request", "call", "result", "tool"])
def test_a_mark_changes_no_token_of_the_prompt(server, marked: dict):
    def unmarked(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: unmarked(value) for key, value in part.items() if key != "cache_control"}
        return [unmarked(one) for one in part] if isinstance(part, list) else part

    more = {"messages": ["What sleeps?"], **marked}
    with_mark = send_message(server, *more.pop("messages"), **more).body
    found = with_mark["usage"]
    assert found["cache_creation"]["ephemeral_1h_input_tokens"] == found["cache_creation_input_tokens"] > 400
    plain = unmarked({"messages": ["What sleeps?"], **marked})
    again = send_message(server, *plain.pop("messages"), **plain).body
    total = found["cache_creation_input_tokens"] + found["input_tokens"] + found["cache_read_input_tokens"]
    assert again["usage"]["cache_read_input_tokens"] == total - 1, "the same prompt, which is all there but for its last token"


def test_marks_end_where_their_parts_end(server):
    blocks = [text(DOCUMENT, HOUR), text(DOCUMENT[:700], FIVE), text("What sleeps?")]
    found = usage(server, blocks)
    long, short = (found["cache_creation"][f"ephemeral_{name}_input_tokens"] for name in ("1h", "5m"))
    n = send(server.url, "/tokenize", {"content": DOCUMENT[:700]}).body["tokens"]
    assert abs(short - len(n)) <= 2 and long > 3 * short and found["input_tokens"] < 40


def test_a_stream_counts_them_too(server):
    stream = Stream(server.url, body("What sleeps?", system=[text(DOCUMENT, FIVE)]), "/v1/messages")
    started = next(event for event in drained(stream) if event["type"] == "message_start")
    assert started["message"]["usage"]["cache_creation_input_tokens"] > 500


@pytest.mark.parametrize(("changes", "said"), [
    ({"system": [text("x", {"type": "ephemeral", "ttl": "2h"})]}, "'ttl' in the field 'cache_control'"),
    ({"system": [text("x", {"type": "ephemeral", "ttl": 300})]}, "'ttl' in the field 'cache_control'"),
    ({"system": [text("x", {"type": "forever"})]}, "'cache_control' must be"),
    ({"system": [text("x", {})]}, "'cache_control' must be"),
    ({"system": [text("x", "ephemeral")]}, "'cache_control' must be"),  # type: ignore[arg-type]
    ({"system": [text("  \n", FIVE)]}, "cannot mark an empty text"),
    ({"messages": [{"role": "user", "content": [text("", FIVE), text("x")]}]}, "cannot mark an empty text"),
    ({"system": [text(f"{i}", FIVE) for i in range(5)]}, "4 blocks with 'cache_control' at most; this one has 5"),
    ({"system": [text(f"{i}", FIVE) for i in range(4)], "cache_control": FIVE}, "this one has 5"),
])
def test_a_mark_that_is_none_is_refused(server, changes: dict, said: str):
    reply = send(server.url, "/v1/messages", body("x") | changes)
    assert reply.status == 400 and said in reply.body["error"]["message"], reply.text


def test_four_marks_are_served(server):
    found = usage(server, "x", system=[text(DOCUMENT[: 300 * i], HOUR if i < 3 else FIVE) for i in range(1, 5)])
    assert all(found["cache_creation"].values())


def test_null_is_no_mark(server):
    assert usage(server, "x", system=[{"type": "text", "text": DOCUMENT, "cache_control": None}])["cache_creation_input_tokens"] == 0


# ---- OpenAI ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "ttl_s"), [
    ({"prompt_cache_retention": "24h"}, 24 * 3600), ({"prompt_cache_retention": "in_memory"}, None), ({"prompt_cache_retention": None}, None),
    ({"prompt_cache_options": {}}, 1800), ({"prompt_cache_options": {"ttl": "12h"}}, 12 * 3600), ({"prompt_cache_options": {"mode": "explicit"}}, None),
])
@pytest.mark.parametrize(("path", "of"), [(CHAT, {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 2}),
                                          ("/v1/completions", {"prompt": DOCUMENT, "max_tokens": 2})])
def test_a_whole_prompt_stays(server, path: str, of: dict, fields: dict, ttl_s: int | None):
    found = post(server.url, path, of | fields)["usage"]
    assert found["edgekv"].get("kept") == (None if ttl_s is None else {"tokens": found["prompt_tokens"], "ttl_s": ttl_s})
    (prompt,) = kept(server)
    assert ttl_s is None or ttl_s - 10 <= prompt["ttl_s"] <= ttl_s
    assert ttl_s is not None or prompt["ttl_s"] == 0


def test_breakpoints_mark_parts(server):
    content = [text(DOCUMENT, prompt_cache_breakpoint={"mode": "explicit"}), text("What sleeps?")]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, "prompt_cache_options": {"mode": "explicit", "ttl": "12h"}}
    found = post(server.url, CHAT, asked)["usage"]
    kept_for = found["edgekv"]["kept"]
    assert kept_for["ttl_s"] == 12 * 3600 and 500 < kept_for["tokens"] < found["prompt_tokens"]
    items = [{"role": "user", "content": [{"type": "input_text", "text": DOCUMENT, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}},
                                          {"type": "input_text", "text": "Who?"}]}]
    assert send(server.url, "/v1/responses", {"model": "x", "input": items, "max_output_tokens": 2}).status == 200


@pytest.mark.parametrize(("fields", "said"), [
    ({"prompt_cache_retention": "25h"}, '"in_memory" or "24h"'), ({"prompt_cache_retention": 24}, '"in_memory" or "24h"'),
    ({"prompt_cache_options": {"ttl": "5m"}}, "'ttl' in the field 'prompt_cache_options'"), ({"prompt_cache_options": "x"}, "'prompt_cache_options'"),
    ({"prompt_cache_options": {"mode": "x"}}, "'mode' in the field 'prompt_cache_options'"),
    ({"messages": [{"role": "user", "content": [text("x", prompt_cache_breakpoint={"mode": "x"})]}]}, "'prompt_cache_breakpoint' must be"),
])
def test_what_openai_does_not_know_is_refused(server, fields: dict, said: str):
    reply = send(server.url, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2} | fields)
    assert reply.status == 400 and said in reply.body["error"]["message"], reply.text


def test_what_stays_in_memory_is_not_written(server):
    post(server.url, CHAT, {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 2, "prompt_cache_retention": "in_memory"})
    server.prefixes.flush()
    (prompt,) = kept(server)
    assert prompt["places"] == ["ram"]

