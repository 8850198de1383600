"""Whatever a model says reaches its client: what the template's parser cannot read, characters that are cut, calls that are cut."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import dialects
from support.clients import CHAT, Stream, drained
from support.dialects import DIALECTS, MESSAGES, RESPONSES, tool
from support.serve_process import Served
from support.stub import CALLING, CHANNELS, THINKING, cut
from support.stub_server import stub_server, stubbed

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>", "analysis")  # one token each in gpt-oss's vocabulary
PLAIN = "A plain answer, without any mark."
FINAL = "and then no mark."
CALL = '<tool_call>\n{"name": "look", "arguments": {"path": "a.txt"}}\n</tool_call>'
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"name": "look", "description": "Shows a file.", "parameters": PARAMETERS}
ENDS = [(CHAT, "stop", "tool_calls"), (RESPONSES, "completed", "completed"), (MESSAGES, "end_turn", "tool_use")]
# by the last letter of the prompt, which requests choose with chat_template_kwargs
ANSWERS = {
    # a closing tag that is text for the vocabulary: the grammar of calls is not asked, as thinking has not ended for it
    "a": [b"hm</th", b"ink>\n\n", b"Ok.\n", CALL.encode(), b"</tool", b"_call>"],
    "b": [b"thinking", b" without", b" an end"],
    "c": [b"prose, ", b"where no", b"body th", b"inks"],
    "d": [b"say 1", b" < 2 or", b" <too"],
    "e": [b"abc", b"de\xe6"],
    "f": [b"xyz", b"EN", b"D\xe7", b"\x94\xb0 more"],
    "g": [b"qr", b"\xe5\xb1", b"\xb1s", b"tu"],
    "h": [b"<tool_", b"call>\n", b'{"name":', b' "look", "arguments":', b' {"pa', b'th":', b' "a.t', b"xt", b'"}}\n', b"</tool_c", b"all>"],
    "i": [b"ok3 <too", b"l_call>nope", b" behind"],
}

channels = partial(stubbed, template=CHANNELS, marks=MARKS)
keyed = stub_server(ANSWERS, template=THINKING)


def asked(path: str, key: str = "", think: bool = True, limit: int = 200, **more: Any) -> dict[str, Any]:
    return dialects.request(path, "Say it.", limit, chat_template_kwargs={"key": key, "enable_thinking": think}, **more)


def read(path: str, body: dict) -> tuple[str, str, list[str], str]:
    """(text, thinking, arguments of calls, why it ended)"""
    answer = dialects.read(path, body)
    return answer.text, answer.thinking, [arguments for _, arguments in answer.calls], answer.end


def streamed(served: Served, path: str, body: dict) -> tuple[str, str, list[str], str]:
    """The same of a stream, put together from its pieces."""
    text, thinking, end = "", "", ""
    calls: dict[Any, str] = {}
    blocks: dict[int, str] = {}
    for event in drained(Stream(served.url, body, path)):
        assert "error" not in event, event
        kind = event.get("type")
        if path == CHAT:
            for choice in event["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                thinking += delta.get("reasoning_content") or ""
                for call in delta.get("tool_calls", []):
                    calls[call["index"]] = calls.get(call["index"], "") + call["function"].get("arguments", "")
                end = choice["finish_reason"] or end
        elif kind == "content_block_start":
            assert event["index"] not in blocks, "a block begins twice"
            blocks[event["index"]] = event["content_block"]["type"]
        elif kind == "content_block_delta":
            delta = event["delta"]
            assert blocks[event["index"]] == {"text_delta": "text", "input_json_delta": "tool_use"}.get(delta["type"], "thinking")
            text += delta.get("text", "")
            thinking += delta.get("thinking", "")
            if "partial_json" in delta:
                calls[event["index"]] = calls.get(event["index"], "") + delta["partial_json"]
        elif kind == "content_block_stop":
            assert blocks.pop(event["index"])
        elif kind == "message_delta":
            end = event["delta"]["stop_reason"]
        elif kind == "response.output_text.delta":
            text += event["delta"]
        elif kind == "response.reasoning_text.delta":
            thinking += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            calls[event["item_id"]] = calls.get(event["item_id"], "") + event["delta"]
        elif kind in ("response.completed", "response.incomplete"):
            end = event["response"]["status"]
            assert kind == f"response.{end}" and read(path, event["response"]) == (text, thinking, list(calls.values()), end)
    assert not blocks
    return text, thinking, list(calls.values()), end


def both(served: Served, path: str, body: dict) -> tuple[str, str, list[str], str]:
    """An answer at once, which is the same as a stream."""
    reply = served.ask(path, body)
    assert reply.status == 200, reply.text
    whole = read(path, reply.body)
    assert streamed(served, path, body) == whole
    return whole


def test_an_answer_without_the_marks_of_its_template_comes_as_content(tmp_path: Path) -> None:
    with channels(tmp_path, cut(PLAIN), "--log-file", "log") as served:
        for path, end, _ in ENDS:
            assert both(served, path, asked(path)) == (PLAIN, "", [], end)
        assert "from character 0 on it came as content" in (tmp_path / "log").read_text()
        constrained = served.ask(CHAT, asked(CHAT, grammar='root ::= "YES" | "NO"'))
        assert constrained.body["choices"][0]["message"]["content"] in ("YES", "NO")


def test_what_was_read_stays_and_the_rest_comes_as_content(tmp_path: Path) -> None:
    thought = [b"<|channel|>", b"analysis", b"<|message|>", b"We", b" think.", b"<|end|>"]
    with channels(tmp_path, [*thought, *cut(FINAL)]) as served:
        for path, end, _ in ENDS:
            assert both(served, path, asked(path)) == (FINAL, "We think.", [], end)


@pytest.mark.parametrize(("path", "end"), [(path, end) for path, _, end in ENDS])
def test_behind_a_call_that_is_closed_twice_the_rest_comes_as_content(keyed: Served, path: str, end: str) -> None:
    text, thinking, calls, why = both(keyed, path, asked(path, "a", tools=[TOOL]))
    assert (text, thinking, why) == ("Ok.\n</tool_call>", "ahm", end)
    assert [json.loads(call) for call in calls] == [{"path": "a.txt"}]


@pytest.mark.parametrize("path", DIALECTS)
def test_an_answer_of_thinking_alone_says_so(keyed: Served, path: str) -> None:
    body = asked(path, "b")
    reply = keyed.ask(path, body).body
    assert read(path, reply)[:2] == ("", "bthinking without an end")
    told = {"only_thinking": True}
    assert (reply["choices"][0] if path == CHAT else reply)["edgekv"] == told
    events = drained(Stream(keyed.url, body, path))
    ends = [event["choices"][0] if path == CHAT else event.get("response", event) for event in events if event.get("choices") != []]
    assert [end["edgekv"] for end in ends if "edgekv" in end] == [told]
    assert "edgekv" not in json.dumps(keyed.ask(path, asked(path, "d", think=False)).body.get("choices"))


FORMS = [{"response_format": {"type": "json_schema", "json_schema": {"schema": EMPTY}}}, {"json_schema": EMPTY}, {"grammar": 'root ::= "{}"'}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["b", "c"])
def test_a_form_holds_for_the_answer_where_thinking_has_no_end(keyed: Served, key: str, form: dict) -> None:
    text, thinking, _, end = both(keyed, CHAT, asked(CHAT, key, **form))
    assert (json.loads(text), thinking.removeprefix(key), end) == ({}, b"".join(ANSWERS[key]).decode(), "stop")


THOUGHT = [b"<|channel|>", b"analysis", b"<|message|>", b"hm so"]


@pytest.mark.parametrize("answer", [[PLAIN.encode()], [b"<|channel|>final", b" <|constrain|>", b"yaml"], THOUGHT,
                                    [*THOUGHT, b"<|end|>", b"<|start|>", b"assistant", b"<|channel|>fin", b"al<|mess", b"age|>", b"Prose"]])
def test_a_form_holds_for_the_channel_of_the_answer(tmp_path: Path, answer: list[bytes]) -> None:
    """Also where the model knows no channels, thinks without an end, or goes on with prose."""
    thoughts = {"hm so"} if answer[:4] == THOUGHT else {"", PLAIN}
    with channels(tmp_path, answer) as served:
        for form in FORMS:
            text, thinking, _, end = both(served, CHAT, asked(CHAT, **form))
            assert (json.loads(text), thinking in thoughts, end) == ({}, True, "stop"), (form, thinking)
        assert both(served, CHAT, asked(CHAT, response_format={"type": "json_object"}))[0].startswith("{")
        named = 'root ::= x # root "\\\nx ::= "root" [root\\]] root-x\nroot-x ::= "]"'
        assert both(served, CHAT, asked(CHAT, grammar=named))[0] in {f"root{letter}]" for letter in "rot]"}


def test_a_token_that_the_grammar_of_calls_forbids_is_text(keyed: Served) -> None:
    for path, end, _ in ENDS:
        assert both(keyed, path, asked(path, "i", think=False, tools=[TOOL])) == ("iok3 <tool_call>nope behind", "", [], end)


def test_a_call_that_is_cut_before_its_name_is_text_in_streams_too(tmp_path: Path) -> None:
    with channels(tmp_path, [b"<|channel|>", b"commentary", b" to=func", b"tions.look"]) as served:
        for path in DIALECTS:
            assert both(served, path, asked(path, limit=3, tools=[TOOL]))[0] == "<|channel|>commentary to=func"


def test_an_answer_of_spaces_ends_no_server(tmp_path: Path) -> None:
    with channels(tmp_path, [b" " * (400 + i) for i in range(100)]) as served:
        assert served.ask(CHAT, asked(CHAT, tools=[TOOL])).status == 200


def test_arguments_nested_deeper_than_the_parsers_go_come_as_content(tmp_path: Path) -> None:
    pieces = [b'<tool_call>\n{"name": "look", "arguments": {"path": ', *(b"[" * n for n in (300, 301, 302))]
    with stubbed(tmp_path, pieces, template=CALLING) as served:
        reply = served.ask(CHAT, asked(CHAT, limit=len(pieces), tools=[{"name": "look", "parameters": {"type": "object"}}]))
        assert reply.status == 200, reply.text
        assert read(CHAT, reply.body) == (b"".join(pieces).decode(), "", [], "length")
        assert served.ask(CHAT, asked(CHAT, limit=1)).status == 200


def test_text_that_ends_like_the_beginning_of_a_mark_is_text(keyed: Served) -> None:
    for path, end, _ in ENDS:
        assert both(keyed, path, asked(path, "d", think=False, tools=[TOOL])) == ("dsay 1 < 2 or <too", "", [], end)


def test_whole_characters_of_a_last_token_arrive(keyed: Served) -> None:
    assert both(keyed, CHAT, asked(CHAT, "e", think=False))[0] == "eabcde"


@pytest.mark.parametrize("stop", ["END", ["never", "END"]])
def test_a_stop_word_ends_an_answer_where_its_last_byte_is_beside_a_begun_character(keyed: Served, stop: str | list[str]) -> None:
    assert both(keyed, CHAT, asked(CHAT, "f", think=False, stop=stop)) == ("fxyz", "", [], "stop")


def test_each_token_has_its_log_probability(keyed: Served) -> None:
    body = asked(CHAT, "g", think=False, logprobs=True, top_logprobs=1)
    reply = keyed.ask(CHAT, body).body
    assert reply["choices"][0]["message"]["content"] == "gqr山stu"
    assert len(reply["choices"][0]["logprobs"]["content"]) == reply["usage"]["completion_tokens"] == len(ANSWERS["g"]) + 1
    told = [choice["logprobs"] for event in drained(Stream(keyed.url, body)) for choice in event["choices"] if choice.get("logprobs")]
    assert sum(len(one["content"]) for one in told) == len(ANSWERS["g"]) + 1


def test_a_call_that_its_limit_cut_is_no_call_that_ended(keyed: Served) -> None:
    cut_at = {"key": "h", "think": False, "limit": 6}
    reply = keyed.ask(RESPONSES, asked(RESPONSES, tools=[TOOL], **cut_at)).body
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in reply["output"] if item["type"] == "function_call"] == ["incomplete"]
    last = drained(Stream(keyed.url, asked(RESPONSES, tools=[TOOL], **cut_at), RESPONSES))[-1]
    assert last["type"] == "response.incomplete" and last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    message = keyed.ask(MESSAGES, asked(MESSAGES, tools=[TOOL], **cut_at)).body
    assert message["stop_reason"] == "max_tokens" and [block["type"] for block in message["content"]] == ["text", "text"]
    assert message["content"][-1]["text"].startswith("look {")
    whole = keyed.ask(RESPONSES, asked(RESPONSES, tools=[TOOL], key="h", think=False)).body
    assert whole["status"] == "completed" and whole["incomplete_details"] is None


@pytest.mark.parametrize(("given", "shown"), [('{"path": "a', '{"arguments": "{\\"path\\": \\"a"}'), ("", "{}"), ("[1]", '{"arguments": "[1]"}'),
                                              ('{"path": "b"}', '{"path": "b"}'), (None, "{}")])
def test_arguments_that_are_no_object_stay_in_a_conversation(keyed: Served, given: str | None, shown: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": given}}
    messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "It was cut."}, {"role": "user", "content": "And now?"}]
    prompt = keyed.ask("/apply-template", {"messages": messages, "tools": [tool(CHAT, TOOL)]}).body["prompt"]
    assert f'{{"name": "look", "arguments": {shown}}}' in prompt
    assert keyed.ask(CHAT, asked(CHAT, "b", tools=[TOOL]) | {"messages": messages}).status == 200
    items = [{"role": "user", "content": "Look."}, {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": given or ""},
             {"type": "function_call_output", "call_id": "call_1", "output": "It was cut."}, {"role": "user", "content": "And now?"}]
    assert keyed.ask(RESPONSES, asked(RESPONSES, "b", tools=[TOOL]) | {"input": items}).status == 200
