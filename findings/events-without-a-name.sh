#!/usr/bin/env bash
# anthropic 2.14.0: events of a stream that have no `event:` line are skipped, although their data says the same ("type"). A server that
# sends data alone, as OpenAI's does, gives an empty stream without an error.
# Seen:  with names: ['message_start', 'content_block_start', 'message_stop']; without: []
source "$(dirname "$0")/common.sh" anthropic==2.14.0
seen - <<'PY'
import json

import anthropic
import httpx2
from seen import check

MESSAGE = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
           "usage": {"input_tokens": 1, "output_tokens": 1}}
events = [{"type": "message_start", "message": MESSAGE}, {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello"}}, {"type": "message_stop"}]
for names in (True, False):
    body = "".join((f"event: {event['type']}\n" if names else "") + f"data: {json.dumps(event)}\n\n" for event in events).encode()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body))
    client = anthropic.Anthropic(api_key="none", http_client=httpx2.Client(transport=transport), max_retries=0)
    found = [event.type for event in client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}], stream=True)]
    check(f"with names: {names}; events", found, [event["type"] for event in events] if names else [])
PY
