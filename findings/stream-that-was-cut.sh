#!/usr/bin/env bash
# openai 3.57.0 and anthropic 2.14.0: a stream whose connection was closed in the middle of an answer, without an end of its own, ends like
# a whole one: no exception, a half text. (HTTP/1.0 or "Connection: close", as small servers and some proxies answer.) Look at finish_reason
# and stop_reason, which are None then.
# Seen:  openai: text, finish_reason: ('Hel', None); its final completion: the same; anthropic, its final message: ('Hel', None)
source "$(dirname "$0")/common.sh" openai==3.57.0 anthropic==2.14.0
seen - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from anthropic import Anthropic
from openai import OpenAI
from seen import check

OPENAI = [{"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
           "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]}]
MESSAGE = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
           "usage": {"input_tokens": 1, "output_tokens": 1}}
ANTHROPIC = [{"type": "message_start", "message": MESSAGE},
             {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
             {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}]


class Cut(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in ANTHROPIC if self.path.endswith("/messages") else OPENAI:
            self.wfile.write(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Cut)
threading.Thread(target=server.serve_forever, daemon=True).start()
url, asked = f"http://127.0.0.1:{server.server_port}", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
chunks = list(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).chat.completions.create(**asked, stream=True))
check("openai: text, finish_reason", (chunks[-1].choices[0].delta.content, chunks[-1].choices[0].finish_reason), ("Hel", None))
with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).chat.completions.stream(**asked) as stream:
    choice = stream.get_final_completion().choices[0]
check("openai, its final completion", (choice.message.content, choice.finish_reason), ("Hel", None))
with Anthropic(base_url=url, api_key="none", max_retries=0).messages.stream(**asked, max_tokens=9) as stream:
    message = stream.get_final_message()
check("anthropic, its final message: text, stop_reason", (message.content[0].text, message.stop_reason), ("Hel", None))
PY
