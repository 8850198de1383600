"""Which tools are called: the one that a request names, only those that it allows, and no second one where it wants one call at most."""

import json
from pathlib import Path

import pytest
from support.clients import CHAT, Reply, Stream, drained
from support.serve_process import Served
from support.stub_server import stub_server, stubbed

NAMES = ("look", "open", "write")
NONE = {"type": "object", "properties": {}}
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TEMPLATE = Path(__file__).parents[1] / "support" / "tools.jinja"


BOTH = [piece.encode() for piece in (
    "<tool_call>", "\n{", '"name"', ': "', "look", '", ', '"argum', 'ents":', " {}", "}\n", "</tool_call>",
    "\n<tool", "_call>\n", '{"', 'name"', ': "op', 'en", "', "arguments", '": {', "}}\n", "</tool_", "call>")]
"""Calls of `look` and `open` at once, if the model may."""

served = stub_server(BOTH, template=TEMPLATE.read_text())


def body(path: str, choice: object = None, **more: object) -> dict:
    text = "Do it."
    tools: list[dict] = [{"name": name, "input_schema": NONE} for name in NAMES]
    if path == CHAT:
        tools = [{"type": "function", "function": {"name": name, "parameters": NONE}} for name in NAMES]
    elif path == RESPONSES:
        tools = [{"type": "function", "name": name, "parameters": NONE} for name in NAMES]
    asked: dict = {"input": text, "max_output_tokens": 300} if path == RESPONSES else {"messages": [{"role": "user", "content": text}], "max_tokens": 300}
    return {**asked, "model": "x", "temperature": 0, "tools": tools, **({} if choice is None else {"tool_choice": choice}), **more}


def called(path: str, reply: Reply) -> list[str]:
    assert reply.status == 200, reply.text
    if path == CHAT:
        return [one["function"]["name"] for one in reply.body["choices"][0]["message"].get("tool_calls", [])]
    if path == MESSAGES:
        return [one["name"] for one in reply.body["content"] if one["type"] == "tool_use"]
    return [one["name"] for one in reply.body["output"] if one["type"] == "function_call"]


def allowed(path: str, mode: str, *names: str) -> dict:
    if path == CHAT:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def function(path: str, name: str) -> dict:
    if path == MESSAGES:
        return {"type": "tool", "name": name}
    return {"type": "function", "function": {"name": name}} if path == CHAT else {"type": "function", "name": name}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_the_named_function_is_called_and_no_other(served: Served, path: str):
    assert called(path, served.ask(path, body(path))) == ["look", "open"], "the stub's own choice"
    for name in NAMES:
        assert called(path, served.ask(path, body(path, function(path, name)))) == [name]
    reply = served.ask(path, body(path, function(path, "delete")))
    assert reply.status == 400
    assert reply.body["error"]["message"] == "the field 'tool_choice' names the function 'delete'; 'tools' has look, open, write"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_only_allowed_tools_are_called(served: Served, path: str):
    assert set(called(path, served.ask(path, body(path, allowed(path, "required", "open"))))) == {"open"}
    assert set(called(path, served.ask(path, body(path, allowed(path, "auto", "write", "open"))))) <= {"open", "write"}
    assert called(path, served.ask(path, body(path, allowed(path, "auto", "look", "open")))) == ["look", "open"]
    for choice, said in ((allowed(path, "auto", "look", "delete"), "names the function 'delete'"), (allowed(path, "auto"), "allows no tool"),
                         (allowed(path, "maybe", "look"), "is 'maybe'"), ({"type": "custom", "custom": {"name": "look"}}, "is 'custom'"),
                         (["look"], "must be")):
        reply = served.ask(path, body(path, choice))
        assert reply.status == 400 and said in reply.body["error"]["message"], reply.text


@pytest.mark.parametrize(("path", "one"), [
    (CHAT, {"parallel_tool_calls": False}), (RESPONSES, {"parallel_tool_calls": False}),
    (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
])
def test_one_call_at_most(served: Served, path: str, one: dict):
    reply = served.ask(path, body(path) | one)
    assert called(path, reply) == ["look"]


def test_one_call_at_most_in_a_stream(served: Served):
    events = drained(Stream(served.url, body(CHAT, parallel_tool_calls=False)))
    calls = [part for event in events for choice in event["choices"] for part in choice["delta"].get("tool_calls", [])]
    assert {part["index"] for part in calls} == {0} and calls[0]["function"]["name"] == "look"


def test_none_is_none_in_messages_too(served: Served):
    assert called(MESSAGES, served.ask(MESSAGES, body(MESSAGES, {"type": "none"}))) == []


def test_a_choice_changes_no_prompt(served: Served):
    def prompt(**more: object) -> str:
        return served.ask("/apply-template", body(CHAT, **more)).body["prompt"]

    assert prompt() == prompt(choice=function(CHAT, "open")) == prompt(choice=allowed(CHAT, "auto", "open"))
    for name in NAMES:
        assert json.dumps(name) in prompt()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_call_without_tools_is_refused(served: Served, choice: object):
    reply = served.ask(CHAT, body(CHAT, choice) | {"tools": []})
    assert reply.status == 400 and "'tools'" in reply.body["error"]["message"]


HISTORY = [{"role": role, "content": f"The {role}'s turn {turn}."} for turn in range(4) for role in ("user", "assistant")]
ONCE = "{% if tools and tools|length == 1 and messages|length > 6 %}{{ raise_exception('the history again') }}{% endif %}"
THINKS = r"{{- '<|im_start|>assistant\n' }}{% for m in messages %}{% if m.content == '/quiet' %}{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endfor %}"


def test_a_long_history_is_rendered_with_all_tools_alone(tmp_path: Path):
    """The grammar of one tool's calls needs no history, unless the template decides by it how an answer begins."""
    template = ONCE + TEMPLATE.read_text().replace(r"{{- '<|im_start|>assistant\n' }}{%- endif %}", THINKS + "{%- endif %}")
    assert THINKS in template
    last = {"role": "user", "content": "Do it."}
    with stubbed(tmp_path, BOTH, template=template) as served:
        for name in NAMES:
            reply = served.ask(CHAT, body(CHAT, function(CHAT, name), messages=[*HISTORY, last]))
            assert (called(CHAT, reply), "x-edgekv-messages" in reply.headers) == ([name], False)
        quiet = [HISTORY[0], HISTORY[1], {"role": "user", "content": "/quiet"}, HISTORY[3], last]
        assert called(CHAT, served.ask(CHAT, body(CHAT, function(CHAT, "open"), messages=quiet))) == ["open"]
