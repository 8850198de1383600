#!/usr/bin/env bash
# openai 3.57.0: client.chat.completions.stream() joins strings of the pieces of an answer, not only its texts: a server that names the role in
# each piece, or the id and the name of a tool call, gives a role "assistantassistant", an id and a name that nobody knows. Without
# an index a tool call is a TypeError. create(stream=True) gives the pieces as they come.
# Seen:  (role, id, name, arguments) of a call in two pieces, id and name in the first: ('assistantassistant', 'c1', 'f', '{"a": 1}')
#        in each: ('assistantassistant', 'c1c1', 'ff', '{"a": 1}'); without an index: TypeError
source "$(dirname "$0")/common.sh" openai==3.57.0
seen - <<'PY'
import json

import httpx2
from openai import OpenAI
from seen import check, outcome


def final(*calls: dict):
    """What stream() makes of a tool call that comes in these pieces."""
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [{"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": None}]} for call in calls]
    events = [*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
    body = "".join(f"data: {json.dumps(chunk | event)}\n\n" for event in events).encode()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body))
    client = OpenAI(base_url="http://server/v1", api_key="none", max_retries=0, http_client=httpx2.Client(transport=transport))
    with client.chat.completions.stream(model="m", messages=[]) as stream:
        message = stream.get_final_completion().choices[0].message
    call = message.tool_calls[0]
    return message.role, call.id, call.function.name, call.function.arguments


first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
then = {"index": 0, "function": {"arguments": ": 1}"}}
repeated = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ": 1}"}}
check("(role, id, name, arguments) of a call in two pieces, id and name in the first", final(first, then), ("assistantassistant", "c1", "f", '{"a": 1}'))
check("in each", final(first, repeated), ("assistantassistant", "c1c1", "ff", '{"a": 1}'))
check("without an index", outcome(lambda: final({"id": "c1", "type": "function", "function": first["function"]})), "TypeError")
PY
