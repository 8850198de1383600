"""An OpenAI-compatible server made of paper: lists models, and answers each request with the next entry of a script."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterable


class PaperEndpoint(http.server.ThreadingHTTPServer):
    """`pages` are its GETs by path, (status, body); `script` has a list of events or (status, body) for each POST. With a `key`, requests
    without it are answered with 401."""

    def __init__(self, models: Iterable[str] = ("paper",), pages: dict[str, tuple[int, bytes]] | None = None, key: str | None = None):
        super().__init__(("127.0.0.1", 0), _Handler)
        listed = json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in models]}).encode()
        self.pages = {"/v1/models": (200, listed), **(pages or {})}
        self.key = key
        self.script: list = []
        self.requests: list[dict] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PaperEndpoint

    def do_GET(self) -> None:
        if self._let_in():
            self._answer(*self.server.pages.get(self.path, (404, b"<html>no such page</html>")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._let_in():
            return
        self.server.requests.append(body)
        entry = self.server.script.pop(0)
        if isinstance(entry, tuple):
            self._answer(*entry)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in entry:
            self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def _let_in(self) -> bool:
        if self.server.key is None or self.headers["Authorization"] == f"Bearer {self.server.key}":
            return True
        self._answer(401, b'{"error": {"message": "Invalid API Key"}}')
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def says(*words: str, usage: dict | None = None) -> list:
    """The events of an answer in these pieces, as a server sends them that knows no more than the standard."""
    events: list = [{"choices": [{"delta": {"content": word}, "finish_reason": None}]} for word in words]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    if usage is not None:
        events.append({"choices": [], "usage": usage})
    return [*events, "[DONE]"]
