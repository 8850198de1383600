"""Requests to servers of this machine, over HTTP like any client's."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def get_json(url: str, path: str, key: str | None = None) -> Any:
    """The JSON of a GET; None if the server answers with an error. Raises OSError, HTTPException, and ValueError for an answer that is not JSON."""
    server = urlsplit(url)
    connection = http.client.HTTPConnection(server.hostname or "", server.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == http.HTTPStatus.OK else None
    finally:
        connection.close()


def is_here(url: str) -> bool:
    """Whether a server is one of this machine, which no proxy stands before, whatever the variables for proxies say."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
