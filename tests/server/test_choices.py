"""Which tools are called: the one that a request names, only those that it allows, and no second one where it wants one call at most."""

import json
from pathlib import Path

import pytest
from support.clients import CHAT, Reply, Stream, drained
from support.dialects import DIALECTS, MESSAGES, RESPONSES, refusal, request, said, tool
from support.serve_process import Served
from support.stub import CALLING
from support.stub_server import stub_server, stubbed

NAMES = ("look", "open", "write")
FUNCTIONS = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in NAMES]

BOTH = [piece.encode() for piece in (
    "<tool_call>", "\n{", '"name"', ': "', "look", '", ', '"argum', 'ents":', " {}", "}\n", "</tool_call>",
    "\n<tool", "_call>\n", '{"', 'name"', ': "op', 'en", "', "arguments", '": {', "}}\n", "</tool_", "call>")]
"""Calls of `look` and `open` at once, if the model may."""

served = stub_server(BOTH, template=CALLING)


def body(path: str, choice: object = None, **more: object) -> dict:
    return request(path, "Do it.", 300, FUNCTIONS, **({} if choice is None else {"tool_choice": choice}), **more)


def called(path: str, reply: Reply) -> list[str]:
    return [name for name, _ in said(path, reply).calls]


def allowed(path: str, mode: str, *names: str) -> dict:
    choice = {"mode": mode, "tools": [tool(path, {"name": name}) for name in names]}
    return {"type": "allowed_tools", **({"allowed_tools": choice} if path == CHAT else choice)}


def function(path: str, name: str) -> dict:
    return {"type": "tool", "name": name} if path == MESSAGES else tool(path, {"name": name})


@pytest.mark.parametrize("path", DIALECTS)
def test_the_named_function_is_called_and_no_other(served: Served, path: str):
    assert called(path, served.ask(path, body(path))) == ["look", "open"], "the stub's own choice"
    for name in NAMES:
        assert called(path, served.ask(path, body(path, function(path, name)))) == [name]
    sentence = refusal(served.ask(path, body(path, function(path, "delete"))))
    assert sentence == "the field 'tool_choice' names the function 'delete'; 'tools' has look, open, write"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_only_allowed_tools_are_called(served: Served, path: str):
    assert set(called(path, served.ask(path, body(path, allowed(path, "required", "open"))))) == {"open"}
    assert set(called(path, served.ask(path, body(path, allowed(path, "auto", "write", "open"))))) <= {"open", "write"}
    assert called(path, served.ask(path, body(path, allowed(path, "auto", "look", "open")))) == ["look", "open"]
    for choice, why in ((allowed(path, "auto", "look", "delete"), "names the function 'delete'"), (allowed(path, "auto"), "allows no tool"),
                        (allowed(path, "maybe", "look"), "is 'maybe'"), ({"type": "custom", "custom": {"name": "look"}}, "is 'custom'"),
                        (["look"], "must be")):
        assert why in refusal(served.ask(path, body(path, choice)))


@pytest.mark.parametrize(("path", "one"), [
    (CHAT, {"parallel_tool_calls": False}), (RESPONSES, {"parallel_tool_calls": False}),
    (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
])
def test_one_call_at_most(served: Served, path: str, one: dict):
    assert called(path, served.ask(path, body(path) | one)) == ["look"]


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
    assert "'tools'" in refusal(served.ask(CHAT, body(CHAT, choice) | {"tools": []}))


HISTORY = [{"role": role, "content": f"The {role}'s turn {turn}."} for turn in range(4) for role in ("user", "assistant")]
ONCE = "{% if tools and tools|length == 1 and messages|length > 6 %}{{ raise_exception('the history again') }}{% endif %}"
THINKS = r"{{- '<|im_start|>assistant\n' }}{% for m in messages %}{% if m.content == '/quiet' %}{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endfor %}"


def test_a_long_history_is_rendered_with_all_tools_alone(tmp_path: Path):
    """The grammar of one tool's calls needs no history, unless the template decides by it how an answer begins."""
    template = ONCE + CALLING.replace(r"{{- '<|im_start|>assistant\n' }}{%- endif %}", THINKS + "{%- endif %}")
    assert THINKS in template
    last = {"role": "user", "content": "Do it."}
    with stubbed(tmp_path, BOTH, template=template) as served:
        for name in NAMES:
            reply = served.ask(CHAT, body(CHAT, function(CHAT, name), messages=[*HISTORY, last]))
            assert (called(CHAT, reply), "x-edgekv-messages" in reply.headers) == ([name], False)
        quiet = [HISTORY[0], HISTORY[1], {"role": "user", "content": "/quiet"}, HISTORY[3], last]
        assert called(CHAT, served.ask(CHAT, body(CHAT, function(CHAT, "open"), messages=quiet))) == ["open"]
