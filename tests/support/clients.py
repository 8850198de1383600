"""A running server as its clients see it: requests, streams, raw sockets, and whether it is busy."""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from edgekv.server.server import Server

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """An answer of any status. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    @property
    def body(self) -> Any:
        """The JSON, or the text where it is none."""
        try:
            return json.loads(self.data)
        except ValueError:
            return self.text


def _connect(url: str, timeout: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)


def send(url: str, path: str, body: Any = None, method: str | None = None, timeout: float = 120, **headers: str) -> Reply:
    """One request on a connection of its own. `body` is JSON, or bytes as they are; None asks with GET. Raises OSError or
    http.client.HTTPException where there is no answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with closing(_connect(url, timeout)) as connection:
        connection.request(method or ("GET" if data is None else "POST"), path, data, JSON | headers)
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def shown_at(server: Server, path: str) -> Any:
    """The JSON of a GET, with the server's own key; None if it answers with an error."""
    reply = send(server.url, path, **({"Authorization": f"Bearer {server._keys[0]}"} if server._keys else {}))
    return reply.body if reply.status == 200 else None


def post(url: str, path: str, body: Any, **headers: str) -> Any:
    """The JSON that the server answers, with status 200."""
    reply = send(url, path, body, **headers)
    assert reply.status == 200, f"{path}: {reply.status} {reply.text}"
    return reply.body


def is_up(url: str) -> bool:
    try:
        return send(url, "/health", timeout=5).status == 200
    except OSError:
        return False


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come true in {seconds:g} s"
        time.sleep(0.02)


class Stream:
    """The events of a streamed answer, as they come."""

    def __init__(self, url: str, body: dict, path: str = CHAT):
        self._connection = _connect(url, timeout=120)
        self._connection.request("POST", path, json.dumps({**body, "stream": True}), JSON)
        self._response = self._connection.getresponse()

    def event(self) -> dict | str | None:
        """The next; a string where it is no JSON, None at the end of the stream."""
        while line := self._response.readline():
            if line.startswith(b"data: "):
                text = line[6:].decode().strip()
                return json.loads(text) if text.startswith("{") else text
        return None

    def close(self) -> None:
        self._connection.close()


def drained(stream: Stream) -> list[dict]:
    return [event for event in iter(stream.event, None) if isinstance(event, dict)]


def answering(url: str, prompt: list[int], **more: object) -> threading.Thread:
    """A thread that reads a long answer, which has begun."""
    answer = Stream(url, {"prompt": prompt, "n_predict": 8000, "ignore_eos": True, **more}, "/completion")
    assert answer.event() and answer.event(), "the answer does not begin"
    reader = threading.Thread(target=drained, args=(answer,))
    reader.start()
    return reader


class Endpoint:
    """The slots of a server, and what they answer."""

    def __init__(self, server: Server):
        self.url, self._address = server.url, ("127.0.0.1", server.port)

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """(status, body)"""
        reply = send(self.url, path, body, method, timeout=60, **(headers or {}))
        return reply.status, reply.data

    def complete(self, prompt: Any, n_tokens: int = 4, **more: Any) -> dict[str, Any]:
        return post(self.url, "/completion", {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True, **more})

    @contextmanager
    def stream(self, body: dict[str, Any], path: str = "/completion") -> Iterator[http.client.HTTPResponse]:
        """The response, whose lines come as the tokens do."""
        with closing(_connect(self.url, timeout=600)) as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}), JSON)
            yield connection.getresponse()

    def send(self, data: bytes, timeout: float = 20) -> socket.socket:
        """Raw bytes on a new connection, which stays open."""
        client = socket.create_connection(self._address, timeout=timeout)
        client.sendall(data)
        return client

    def n_busy(self) -> int:
        """Slots at work."""
        reply = send(self.url, "/slots")
        assert reply.status == 200, reply.text
        return sum(slot["is_processing"] for slot in reply.body)

    def seconds_until_idle(self, timeout: float) -> float:
        begun = time.monotonic()
        until(lambda: not self.n_busy(), timeout)
        return time.monotonic() - begun


def request_bytes(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}",
             *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def reset(client: socket.socket) -> None:
    """Close it without a goodbye."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
