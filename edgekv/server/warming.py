"""Reads texts into a running server's store of prompts, while it has nothing else to do."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.server.sites import is_here

PIECE_CHARACTERS = 8000
"""Characters between two looks at whether others wait: about 2,000 tokens."""

_POLL_S = 0.5
_CONNECT_S = 10.0


class Warmed(Struct, frozen=True):
    """A text that was read."""

    n_tokens: int
    """Of its prompt, with what the chat template puts around it."""
    n_known: int
    """Tokens of these that the server had before."""


def texts_of(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each file with its text; those of a folder and the folders in it by name, without hidden ones and those that are no text. Raises ConfigError
    for a named file that cannot be read or is no text."""
    for path in paths:
        if not path.is_dir():
            yield path, _text_of(path)
            continue
        for file in sorted(path.rglob("*")):
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
                try:
                    yield file, _text_of(file)
                except ConfigError:
                    continue


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{path} is empty")
    return text


class Warmer:
    """Lets the server at `url` (without /v1) read texts as first messages of a role. `space`: the cache_salt of the requests that will begin
    with them; `ttl`: "5m" or "1h", for which each stays; empty: as long as there is room."""

    def __init__(self, url: str, key: str | None = None, role: str = "system", space: str = "", ttl: str = ""):
        import httpx2 as httpx

        timeout = httpx.Timeout(_CONNECT_S, read=None)  # a text may take minutes to read
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=timeout, trust_env=not is_here(url))
        self._error = httpx.HTTPError
        self._url, self._role, self._space, self._ttl = url, role, space, ttl

    def check(self) -> None:
        """Raises EdgeKVError if the server keeps no prompts, or is none of ours."""
        self._ask("GET", "/edgekv/cache")

    def warm(self, text: str, said: Callable[[int], None] = lambda n: None) -> Warmed:
        """Let a text be read, a piece longer each time, so that others wait for a piece at most and what was read is kept if this ends early.
        `said(n)`: the first n characters are read. Raises EdgeKVError."""
        n_read = 0
        for end in [*range(PIECE_CHARACTERS, len(text), PIECE_CHARACTERS), len(text)]:
            while any(slot["is_processing"] for slot in self._ask("GET", "/slots")):
                time.sleep(_POLL_S)
            usage = self._read(text[:end], last=end == len(text))
            n_tokens = usage["prompt_tokens"]
            n_read += n_tokens - usage["prompt_tokens_details"]["cached_tokens"]
            said(end)
        return Warmed(n_tokens, max(0, n_tokens - n_read))

    def _read(self, text: str, last: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self._role, "content": text}
        if last and self._ttl:
            message["cache_control"] = {"type": "ephemeral", "ttl": self._ttl}
        after = [] if self._role == "user" else [{"role": "user", "content": "."}]
        body = {"messages": [message, *after], "max_tokens": 1, "temperature": 0}
        return self._ask("POST", "/v1/chat/completions", body | ({"cache_salt": self._space} if self._space else {}))["usage"]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            response = self._http.request(method, path, json=body)
        except self._error as error:
            raise EdgeKVError(f"there is no server at {self._url}, or it went away ({error or type(error).__name__}); "
                              "`edgekv serve` starts one, --url names another") from None
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise EdgeKVError(f"the server at {self._url} does not let you in (HTTP {response.status_code}); name its key with --api-key")
        try:
            answer = response.json()
        except json.JSONDecodeError:
            answer = None
        if response.status_code != HTTPStatus.OK or answer is None:
            said = answer.get("error") if isinstance(answer, dict) else None
            message = said.get("message") if isinstance(said, dict) else None
            raise EdgeKVError(f"the server at {self._url} answers HTTP {response.status_code} to {path}: {message or 'it is not an EdgeKV server'}")
        return answer
