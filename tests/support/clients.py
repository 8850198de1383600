"""A running endpoint as its clients see it: requests, streams, raw sockets, and whether it is busy."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekv.serving.server import Server, ServerOptions


def options(model: Path, n_slots: int, **more: Any) -> ServerOptions:
    return ServerOptions(model, n_slots=n_slots, **{"n_threads": 1, **more})


class Endpoint:
    """One connection for each request."""

    def __init__(self, server: Server):
        self.port = server.port

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, timeout: float = 60) -> tuple[int, bytes]:
        """(status, body). Raises OSError or http.client.HTTPException where there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, prompt: Any, n_tokens: int = 4, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True, **more}
        status, answer = self.ask("POST", "/completion", json.dumps(body).encode())
        assert status == 200, answer
        return json.loads(answer)

    @contextmanager
    def stream(self, body: dict[str, Any], path: str = "/completion") -> Iterator[http.client.HTTPResponse]:
        """The response, whose lines come as the tokens do."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            yield connection.getresponse()
        finally:
            connection.close()

    def send(self, data: bytes, timeout: float = 20) -> socket.socket:
        """Raw bytes on a new connection, which stays open."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        client.sendall(data)
        return client

    def n_busy(self) -> int:
        """Slots at work."""
        status, answer = self.ask("GET", "/slots")
        assert status == 200, answer
        return sum(slot["is_processing"] for slot in json.loads(answer))

    def seconds_until_idle(self, timeout: float) -> float:
        begun = time.monotonic()
        while self.n_busy():
            assert time.monotonic() - begun < timeout, f"slots are still at work after {timeout} s"
            time.sleep(0.02)
        return time.monotonic() - begun


def request_bytes(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}",
             *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def reset(client: socket.socket) -> None:
    """Close it without a goodbye."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
