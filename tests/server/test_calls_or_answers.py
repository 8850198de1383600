"""Tools and a schema in one request: the model calls a tool, or answers by the schema, in every API and each kind of template."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.clients import CHAT, post
from support.dialects import DIALECTS, MESSAGES, RESPONSES, read, refusal, request
from support.serve_process import Served
from support.stub import CALLING, CHANNELS, THINKING
from support.stub_server import stub_server, stubbed

ARGUMENTS = b'{"path": "a.txt"}'
CALL = b'<tool_call>\n{"name": "look", "arguments": ' + ARGUMENTS + b"}\n"
ANSWERS = {  # by the last letter of the prompt; behind thinking a call, an answer that breaks the schema, and prose
    "t": [b"So it", b" is.\n</think>\n\n", CALL, b"</tool", b"_call>"],
    "a": [b"I see", b".\n</th", b"ink>\n\n", b'{"word": "', b'no"}', b" and prose"],
    "p": [b"Hm", b"m.</think>", b"\n\nPlain", b" prose."],
    "": [CALL + b"</tool_call>"],  # without thinking
}
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
"""Where no other token may follow than the one that the tokenizer would write, the stub's long ones do not come, and only a schema of one text ends it."""
WORD = {"type": "object", "properties": {"word": {"const": "ok"}}, "required": ["word"], "additionalProperties": False}
ONE_OF_TWO = {"enum": ["a.txt", "b.txt"], "not": {"const": "a.txt"}}

# Templates by what tells a call; llama.cpp reads them by these marks.
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
ENDED = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TOOLS = "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}"
PLAIN = TOOLS + TURNS + CALLS + """{{ '{"name": "' + c.function.name + '", "parameters": ' + (c.function.arguments | tojson) + '}' }}{% endfor %}""" + ENDED
LISTED = TOOLS + TURNS + ("{% if m.tool_calls %}{{ '[TOOL_CALLS][' }}" + CALLS +
                          """{{ '{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}' }}"""
                          "{{ ', ' if not loop.last }}{% endfor %}{{ ']' }}{% endif %}") + ENDED
TAGGED = TOOLS + TURNS + CALLS + ("{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments.items() %}"
                                  "{{ '<parameter=' + k + '>\n' + v + '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}") + ENDED
SECTIONS = ("{% for m in messages %}{{'<|im_user|>' + m['content'] + '<|im_end|>'}}{% endfor %}"
            "{% if add_generation_prompt %}{{'<|im_assistant|>assistant<|im_middle|>'}}{% endif %}{# <|tool_calls_section_begin|><|tool_call_begin|> #}")
KINDS: dict[str, tuple[str, list[bytes], tuple[str, ...]]] = {  # a template, a call under it, and its marks
    "tagged JSON": (CALLING, [CALL + b"</tool_call>"], ()),
    "marks that are tokens": (CALLING, [b"<tool_call>", CALL[len(b"<tool_call>"):], b"</tool_call>"],
                              ("<tool_call>", "</tool_call>")),
    "a list": (LISTED, [b'[TOOL_CALLS][{"name": "look", "arguments": ' + ARGUMENTS + b"}]"], ()),
    "tags": (TAGGED, [b"<tool_call>\n<function=look>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"], ()),
    "channels": (CHANNELS, [b" to=functions.look", b"<|channel|>", b"commentary", b"<|message|>", ARGUMENTS],
                 ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>")),
}
ANSWERED = {kind: (template, [b'{"word": "', b'no"}', b" and prose"], marks) for kind, (template, _, marks) in KINDS.items()} | {
    "channels": (CHANNELS, [b"<|channel|>", b"final", b"<|message|>", b'{"word": "', b'no"}', b" and prose"], KINDS["channels"][2]),
    "sections": (SECTIONS, [b'{"word": "', b'no"}', b" and prose"], (
        "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>")),
}


def asked(path: str, letter: str = "", **more: Any) -> dict[str, Any]:
    more = {"parallel_tool_calls": False, "chat_template_kwargs": {"key": letter, "enable_thinking": bool(letter)}, **more}
    if path == MESSAGES:
        more["tool_choice"] = {"type": "auto", **more.get("tool_choice", {}), "disable_parallel_tool_use": not more.pop("parallel_tool_calls")}
    form = {"type": "json_schema", "schema": WORD, **({"name": "w"} if path == RESPONSES else {})}
    return request(path, "Do it.", 200, [{"name": "look", "parameters": PARAMETERS}], form, **more)


def said(path: str, body: dict) -> tuple[str, list]:
    """The text of an answer, and the arguments of its calls."""
    answer = read(path, body)
    return answer.text, [json.loads(arguments) for _, arguments in answer.calls]


served = stub_server(ANSWERS, template=THINKING)


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("letter", ["t", ""])
def test_a_tool_is_called_beside_a_schema(served: Served, path: str, letter: str):
    assert said(path, post(served.url, path, asked(path, letter))) == ("", [{"path": "a.txt"}])


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("letter", ["a", "p"])
def test_no_prose_beside_a_schema(served: Served, path: str, letter: str):
    text, calls = said(path, post(served.url, path, asked(path, letter)))
    assert calls if letter == "p" and not text else json.loads(text) == {"word": "ok"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=str)
def test_a_call_that_is_required_comes(served: Served, choice: object):
    body = asked(CHAT, "t", tool_choice=choice)
    body["tools"][0]["function"]["parameters"] = PARAMETERS | {"properties": {"path": {"const": "a.txt"}}, "additionalProperties": False}
    assert said(CHAT, post(served.url, CHAT, body))[1] == [{"path": "a.txt"}]


def strict(path: str, schema: Any, **more: Any) -> dict[str, Any]:
    """A request with a strict tool, and no form for the answer."""
    body = asked(path, "t", **more)
    for name in ("response_format", "text", "output_config"):
        body.pop(name, None)
    within = body["tools"][0].get("function", body["tools"][0])
    parameters = PARAMETERS | {"properties": {"path": schema}, "additionalProperties": False}
    within |= {"strict": True, "input_schema" if path == MESSAGES else "parameters": parameters}
    return body


@pytest.mark.parametrize("path", DIALECTS)
def test_arguments_of_a_strict_tool_hold_to_its_schema(served: Served, path: str):
    choice: Any = {"type": "any"} if path == MESSAGES else "required"
    body = strict(path, ONE_OF_TWO, tool_choice=choice)
    assert said(path, post(served.url, path, body))[1] == [{"path": "b.txt"}]


def test_arguments_of_a_strict_tool_hold_where_the_call_is_free(tmp_path: Path):
    """Of thinking, and then a call."""
    pieces = [b"Look: <tool_call>\n{}", b"</think>", b"\n\n<tool_", b'call>\n{"name": "look", "arguments": {"path": "', b'a.txt"}}\n', b"</tool_call>"]
    with stubbed(tmp_path, pieces, template=THINKING, marks=("<think>", "</think>")) as started:
        for path in DIALECTS:
            assert said(path, post(started.url, path, strict(path, ONE_OF_TWO))) == ("", [{"path": "b.txt"}])


FREE: dict[str, tuple[list[bytes], bool]] = {  # what is said, and whether it is a call
    "a mark within tokens": ([b"I look.\n<tool", b'_call>\n{"name": "look", "arguments": {"path": "', b'a.txt"}}\n', b"</tool_call>"], True),
    "a mark that is a token": ([b"I look.\n", b"<tool_call>", b'\n{"name": "look", "arguments": {"path": "', b'a.txt"}}\n', b"</tool_call>"], True),
    "no mark": ([b"Nothing to look at: ", b'{"path": "a.txt"}'], False),
    "a mark of no call": ([b"Write <tool_call>", b" before ", b"a call."], False),
}


@pytest.mark.parametrize("kind", FREE)
def test_what_is_said_beside_a_strict_tool_is_free(tmp_path: Path, kind: str):
    pieces, is_call = FREE[kind]
    marks = ("<tool_call>",) if b"<tool_call>" in pieces else ()
    with stubbed(tmp_path, pieces, template=CALLING, marks=marks) as started:
        text, calls = said(CHAT, post(started.url, CHAT, strict(CHAT, ONE_OF_TWO) | {"chat_template_kwargs": {"enable_thinking": False}}))
    assert (text.strip(), calls) == ("I look.", [{"path": "b.txt"}]) if is_call else (text, calls) == (b"".join(pieces).decode(), [])


def test_a_strict_tool_goes_with_several_answers_and_guessed_tokens(tmp_path: Path):
    """The prompt has the call that its schema forbids, so that it is guessed."""
    pieces = FREE["a mark within tokens"][0]
    body = strict(CHAT, ONE_OF_TWO) | {"chat_template_kwargs": {"enable_thinking": False}, "n": 2, "timings_per_token": True}
    body["messages"] = [{"role": "user", "content": b"".join(pieces).decode() * 4}]
    with stubbed(tmp_path, pieces, template=CALLING, marks=()) as started:
        answer = post(started.url, CHAT, body)
    for choice in answer["choices"]:
        text, calls = said(CHAT, {"choices": [choice]})
        assert (text.strip(), calls) == ("I look.", [{"path": "b.txt"}])
    assert answer["timings"]["draft_n"] > 0


@pytest.mark.parametrize("path", DIALECTS)
def test_a_strict_tool_whose_schema_cannot_hold_is_refused(served: Served, path: str):
    sentence = refusal(served.ask(path, strict(path, {"type": "string", "format": "moon"})))
    assert "tools.look.strict" in sentence and "format: moon" in sentence


def test_no_call_where_none_is_allowed(served: Served):
    text, calls = said(CHAT, post(served.url, CHAT, asked(CHAT, tool_choice="none")))
    assert json.loads(text) == {"word": "ok"} and not calls


def test_a_template_whose_calls_have_no_mark_refuses(tmp_path: Path):
    with stubbed(tmp_path, "Prose.", template=PLAIN) as started:
        sentence = refusal(started.ask(CHAT, asked(CHAT)))
    assert sentence.startswith("the field 'response_format' cannot hold") and "leave the tools or the schema out" in sentence


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_template_calls(tmp_path: Path, kind: str):
    template, call, marks = KINDS[kind]
    with stubbed(tmp_path, call, template=template, marks=marks) as started:
        assert said(CHAT, post(started.url, CHAT, asked(CHAT))) == ("", [{"path": "a.txt"}])


@pytest.mark.parametrize("kind", ANSWERED)
def test_each_kind_of_template_answers(tmp_path: Path, kind: str):
    template, answer, marks = ANSWERED[kind]
    with stubbed(tmp_path, answer, template=template, marks=marks) as started:
        text, calls = said(CHAT, post(started.url, CHAT, asked(CHAT)))
        assert json.loads(text) == {"word": "ok"} and not calls


def test_a_template_without_calls_refuses(tmp_path: Path):
    with stubbed(tmp_path, "Prose.") as started:
        assert "tools" in refusal(started.ask(CHAT, asked(CHAT)))
        free = [started.ask(path, {key: value for key, value in asked(path).items() if key not in ("response_format", "text", "output_config")})
                for path in DIALECTS]
        assert "the model's chat template knows no tools" in refusal(started.ask(CHAT, asked(CHAT, tool_choice="required")))
    assert [(reply.status, reply.headers["x-edgekv-ignored"]) for reply in free] == [(200, "tools")] * 3
