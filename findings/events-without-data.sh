#!/usr/bin/env bash
# openai 3.57.0: an event without data ends a stream with a JSONDecodeError: `retry: 3000`, which servers send first, or `event: ping`
# alone. The description of server-sent events says that such an event is not dispatched (anthropic 2.14.0 skips it). A comment (`: ping`)
# keeps a connection alive without harm.
# Seen:  ': ping': Hi; 'retry: 3000': JSONDecodeError; 'event: ping': JSONDecodeError
source "$(dirname "$0")/common.sh" openai==3.57.0
seen - <<'PY'
import json

import httpx2
from openai import OpenAI
from seen import check, outcome

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
         "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}


def answer(before: str) -> str:
    body = f"{before}\n\ndata: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body))
    client = OpenAI(base_url="http://server/v1", api_key="none", max_retries=0, http_client=httpx2.Client(transport=transport))
    return "".join(chunk.choices[0].delta.content for chunk in client.chat.completions.create(model="m", messages=[], stream=True))


for before, expected in ((": ping", "Hi"), ("retry: 3000", "JSONDecodeError"), ("event: ping", "JSONDecodeError")):
    check(repr(before), outcome(lambda: answer(before)), expected)
PY
