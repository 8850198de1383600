"""Answers that are read as they come."""

from __future__ import annotations

import http.client
import json

CHAT = "/v1/chat/completions"


class Stream:
    """The events of a streamed answer, as they come."""

    def __init__(self, url: str, body: dict, path: str = CHAT):
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        self._connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
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
