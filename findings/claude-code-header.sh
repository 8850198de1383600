#!/usr/bin/env bash
# Package @anthropic-ai/claude-code 2.1.197 (npm), asked once in each of two fresh conversations, through the interface that it documents for other
# servers (ANTHROPIC_BASE_URL). Its first block of the system prompt is no instruction but a header of values, `x-anthropic-billing-header: cc_version=...;`,
# and the last part of cc_version is another one in each conversation, also with one version, one folder and one user. A server that keeps prompts by their
# beginnings, as all do, finds nothing of the 100 KB behind it. A server must leave the block out, or make it constant.
# Seen:  blocks of the system prompt: 3; the first: x-anthropic-billing-header: cc_version=2.1.197.XXX; cc_entrypoint=XXX
#        its values that differ: cc_version; other blocks that differ: none
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-fund --no-audit --prefix "$folder" @anthropic-ai/claude-code@2.1.197
mkdir "$folder/home" "$folder/work"
python3 - "$folder" <<'PY'
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder, systems = sys.argv[1], []


def events(model):
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None, "stop_sequence": None,
               "usage": {"input_tokens": 1, "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes."}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if isinstance(body.get("system"), list) and body.get("tools"):
            systems.append([block["text"] for block in body["system"]])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events(body.get("model", "")):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
env = {"PATH": os.environ["PATH"], "HOME": f"{folder}/home", "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}", "ANTHROPIC_API_KEY": "none",
       "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
for question in ("Is it late?", "Does it rain?"):
    subprocess.run([f"{folder}/node_modules/.bin/claude", "-p", question], env=env, cwd=f"{folder}/work", stdin=subprocess.DEVNULL, check=True, timeout=300,
                   stdout=subprocess.DEVNULL)
first, second = systems[0], systems[-1]
values = [dict(re.findall(r"(\w+)=([^;]*)", blocks[0])) for blocks in (first, second)]
differing = sorted(name for name in values[0] if values[0][name] != values[1].get(name))
others = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if i and a != b]
shown = re.sub(r"(2\.1\.197)\.[0-9a-f]+", r"\1.XXX", re.sub(r"(cc_entrypoint=).*", r"\1XXX", first[0]))
print(f"blocks of the system prompt: {len(first)}; the first: {shown}")
print(f"its values that differ: {', '.join(differing) or 'none'}; other blocks that differ: {others or 'none'}")
assert first[0].startswith("x-anthropic-billing-header: cc_version=2.1.197.") and differing == ["cc_version"] and not others, (first[0], second[0])
PY
