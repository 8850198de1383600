"""Conversations with tools go on for ten turns, in each API."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from support.stub import CALLING
from support.stub_server import stub_server

USER = {"role": "user", "content": "Do it."}
TURNS = 10
# two calls while results of tools are asked for, then a text: by the letter that ends the prompt
TEMPLATE = (CALLING + "{{ 't' if tools and messages | selectattr('role', 'equalto', 'tool') | list | length < " + str(2 * (TURNS - 1)) + " }}")
ANSWERS = {"t": [b"I", b" look.\n", b'<tool_call>\n{"name": "look", "arguments": {"path": "a.txt"}}\n', b"</tool", b"_call>",
                 b'\n<tool_call>\n{"name": "look", "arguments": {"path": "b \xc3\xa4.txt"}}\n</tool_call>'],
           "": [b"All", b" is", b" well."]}
PATHS = ["a.txt", "b ä.txt"]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LOOK = {"name": "look", "description": "Reads a file.", "parameters": PARAMETERS}

served = stub_server(ANSWERS, "--ctx", "8192", template=TEMPLATE)


def chat_turn(gpt: openai.OpenAI, history: list, streams: bool) -> tuple[str, list[tuple[str, dict]], Callable[[str, str], Any]]:
    """The text, (id, arguments) of the calls, and what makes a result of a tool of (id, text)."""
    asked: dict[str, Any] = {"model": "x", "messages": history, "tools": [{"type": "function", "function": LOOK}]}
    if streams:
        with gpt.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = gpt.chat.completions.create(**asked).choices[0].message
    history.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    calls = [(call.id, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return message.content, calls, lambda at, text: {"role": "tool", "tool_call_id": at, "content": text}


def response_turn(gpt: openai.OpenAI, history: list, streams: bool) -> tuple[str, list[tuple[str, dict]], Callable[[str, str], Any]]:
    asked: dict[str, Any] = {"model": "x", "input": history, "tools": [{"type": "function", **LOOK}]}
    if streams:
        with gpt.responses.stream(**asked) as stream:
            answer = stream.get_final_response()
    else:
        answer = gpt.responses.create(**asked)
    history += [item.model_dump(exclude_none=True) for item in answer.output]
    calls = [(item.call_id, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
    return answer.output_text, calls, lambda at, text: {"type": "function_call_output", "call_id": at, "output": text}


def message_turn(claude: anthropic.Anthropic, history: list, streams: bool) -> tuple[str, list[tuple[str, dict]], Callable[[str, str], Any]]:
    asked: dict[str, Any] = {"model": "x", "max_tokens": 100, "messages": history, "tools": [{"name": "look", "input_schema": PARAMETERS}]}
    if streams:
        with claude.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = claude.messages.create(**asked)
    history.append({"role": "assistant", "content": answer.content})
    calls = [(block.id, block.input) for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == ("tool_use" if calls else "end_turn")
    text = "".join(block.text for block in answer.content if block.type == "text")
    return text, calls, lambda at, text: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": at, "content": text}]}


@pytest.mark.parametrize(("client", "turn"), [("gpt", chat_turn), ("gpt", response_turn), ("claude", message_turn)], ids=["chat", "responses", "messages"])
def test_ten_turns_with_tools(request: pytest.FixtureRequest, client: str, turn: Callable):
    history: list[Any] = [USER]
    ids: list[str] = []
    for n in range(TURNS - 1):
        text, calls, result = turn(request.getfixturevalue(client), history, streams=n % 2 == 1)
        assert text.strip() == "I look." and [arguments["path"] for _, arguments in calls] == PATHS
        ids += [name for name, _ in calls]
        history += [result(name, f"{n}: it is there") for name, _ in calls]
    assert len(set(ids)) == len(ids) == 2 * (TURNS - 1), "each call has a name of its own"
    text, calls, _ = turn(request.getfixturevalue(client), history, streams=True)
    assert (text, calls) == ("All is well.", [])
