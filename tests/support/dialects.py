"""The same request in each API, and an answer as each API writes it."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from support.clients import CHAT, Reply

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
DIALECTS = (CHAT, RESPONSES, MESSAGES)
"""Those that know conversations and tools."""


class Answer(NamedTuple):
    text: str
    thinking: str
    calls: list[tuple[str, str]]
    """Name and arguments of each, as JSON."""
    end: str
    """Why it ended."""


def tool(path: str, function: dict[str, Any]) -> dict[str, Any]:
    """A function with its `parameters` as the path's API writes it."""
    if path == MESSAGES:
        return {"input_schema" if name == "parameters" else name: value for name, value in function.items()}
    return {"type": "function", "function": function} if path == CHAT else {"type": "function", **function}


def request(path: str, text: str = "?", limit: int = 64, tools: Sequence[dict[str, Any]] = (), form: Any = None, **more: Any) -> dict[str, Any]:
    """A person's text, functions that may be called, and the form of the answer. `more`: other fields."""
    asked: dict[str, Any] = {"input": text} if path == RESPONSES else {"prompt": text} if path == COMPLETIONS else {
        "messages": [{"role": "user", "content": text}]}
    asked["max_output_tokens" if path == RESPONSES else "max_tokens"] = limit
    if tools:
        asked["tools"] = [tool(path, one) for one in tools]
    if form is not None:
        asked |= {"text": {"format": form}} if path == RESPONSES else {"output_config": {"format": form}} if path == MESSAGES else {
            "response_format": form}
    return asked | {"temperature": 0} | more


def read(path: str, body: dict[str, Any]) -> Answer:
    if path in (CHAT, COMPLETIONS):
        choice = body["choices"][0]
        message = choice.get("message", {"content": choice.get("text")})
        calls = [call["function"] for call in message.get("tool_calls") or []]
        return Answer(message["content"] or "", message.get("reasoning_content", ""), [(one["name"], one["arguments"]) for one in calls],
                      choice["finish_reason"])
    if path == RESPONSES:
        texts = {kind: "".join(part["text"] for item in body["output"] if item["type"] == kind for part in item["content"])
                 for kind in ("message", "reasoning")}
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        return Answer(texts["message"], texts["reasoning"], [(one["name"], one["arguments"]) for one in calls], body["status"])
    blocks = body["content"]
    return Answer("".join(block.get("text", "") for block in blocks), "".join(block.get("thinking", "") for block in blocks),
                  [(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"], body["stop_reason"])


def said(path: str, reply: Reply) -> Answer:
    """The answer that a reply of status 200 has."""
    assert reply.status == 200, reply.text
    return read(path, reply.body)


def refusal(reply: Reply) -> str:
    """The sentence of a reply of status 400."""
    assert reply.status == 400, reply.text
    return reply.body["error"]["message"]
