"""A proxy that passes requests on, one after the other, and keeps each with what the server made of it."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.serve_process import Served


@dataclass(frozen=True)
class Asked:
    path: str
    """Behind the method."""
    status: int
    fields: dict[str, str]
    """Of its header and, by path, of its JSON."""
    reply: bytes
    prompt: str
    """What the model read; empty where it read nothing. Its length in tokens, and how many of these came from a cache, follow."""
    n_prompt: int
    n_cached: int


def fields(value: Any, name: str) -> dict[str, str]:
    """The leaves of a JSON value by their paths."""
    if not isinstance(value, (dict, list)):
        return {name: str(value)}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: leaf for key, member in members for path, leaf in fields(member, f"{name}.{key}").items()}


@contextmanager
def recording(served: Served) -> Iterator[tuple[str, list[Asked]]]:
    """The proxy's address, and what came so far. The server must show its prompts (LLAMA_SERVER_SLOTS_DEBUG=1)."""
    asked: list[Asked] = []
    one = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection", "accept-encoding")}
            with one, closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=600)) as server:
                before = newest()
                server.request(self.command, self.path, body or None, headers)
                reply = server.getresponse()
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server", "keep-alive"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                data = b""
                while piece := reply.read1():
                    data += piece
                    self.wfile.write(piece)
                slot = newest()
                prompt = slot.get("prompt", "") if slot.get("id_task") != before.get("id_task") else ""
                tokens = served.ask("/tokenize", {"content": prompt, "parse_special": True}).body["tokens"]
                cached = re.findall(rb'"(?:cache_n|cached_tokens|cache_read_input_tokens)":(\d+)', data)
                sent = fields(headers, "header") | (fields(json.loads(body), "body") if body else {})
                asked.append(Asked(f"{self.command} {self.path}", reply.status, sent, data, prompt, len(tokens), int(cached[-1]) if cached else 0))

        do_GET = do_POST = do_HEAD = pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    def newest() -> dict:
        return max(served.ask("/slots").body, key=lambda slot: slot.get("id_task", -1))

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", asked
        finally:
            proxy.shutdown()
