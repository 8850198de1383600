"""The HTTP side of a chat: messages go out, pieces of the answer come in. Any llama.cpp server will do, in any process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx2 as httpx

from edgekv.errors import ContextOverflow, EdgeKVError

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

_QUICK_S = 60.0  # for what is no more than text processing


@dataclass(frozen=True)
class Progress:
    """How much of the prompt has been read, in tokens; `n_cached` were known from the turn before and cost nothing."""

    n_total: int
    n_cached: int
    n_processed: int  # n_cached included


@dataclass(frozen=True)
class Timings:
    """Timings of one request: tokens and milliseconds, upstream's own measurement."""

    n_cached: int
    n_prompt: int  # without the cached ones
    prompt_ms: float
    n_predicted: int
    predicted_ms: float

    @property
    def n_context(self) -> int:
        """Tokens in the context after the answer."""
        return self.n_cached + self.n_prompt + self.n_predicted

    @property
    def prefill_tps(self) -> float | None:
        return 1e3 * self.n_prompt / self.prompt_ms if self.n_prompt > 1 and self.prompt_ms > 0 else None

    @property
    def decode_tps(self) -> float | None:
        # The first token comes out of the prefill: n tokens are n - 1 decoded ones.
        return 1e3 * (self.n_predicted - 1) / self.predicted_ms if self.n_predicted > 1 and self.predicted_ms > 0 else None


@dataclass(frozen=True)
class Piece:
    """What one event of the stream brought; most bring only `text`."""

    text: str = ""
    thought: str = ""  # of a reasoning model
    progress: Progress | None = None
    timings: Timings | None = None
    finish_reason: str | None = None  # "stop", or "length" where a limit cut the answer


class ChatClient:
    """Talks to the chat endpoint below `url` (without /v1). `sampling` are request fields, e.g. {"temperature": 0}."""

    def __init__(self, url: str, api_key: str | None = None, sampling: dict[str, Any] | None = None):
        self.sampling = sampling or {}
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(10.0, read=None),  # a prompt can take minutes to read
            trust_env=False,  # a proxy has no business between this process and itself
            verify=False,  # plain HTTP; saves loading the certificates
        )

    def stream(self, messages: list[Message]) -> Iterator[Piece]:
        """The answer to `messages`, piece by piece. Leaving the iteration early stops the server's work on it.

        Raises ContextOverflow if the prompt does not fit, EdgeKVError if the server refuses, fails or is gone.
        """
        body = {**self.sampling, "messages": messages, "stream": True, "return_progress": True, "timings_per_token": True}
        try:
            with self._http.sse("/v1/chat/completions", method="POST", json=body) as events:
                if events.response.status_code != HTTPStatus.OK:
                    raise _refusal(events.response.read())
                for event in events:
                    if event.data == "[DONE]":
                        return
                    yield _piece(json.loads(event.data))
        except (httpx.TransportError, json.JSONDecodeError) as error:
            raise EdgeKVError(f"the server stopped in the middle of an answer ({error or type(error).__name__})") from None

    def prompt(self, messages: list[Message]) -> str:
        """The text that the model's chat template makes of `messages`. Raises EdgeKVError where the template refuses them."""
        return self._post("/apply-template", {"messages": messages})["prompt"]

    def n_tokens(self, text: str) -> int:
        """How many tokens a prompt that begins with `text` begins with."""
        return len(self._post("/tokenize", {"content": text, "add_special": True})["tokens"])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = self._http.post(path, json=body, timeout=_QUICK_S)
        except httpx.TransportError as error:
            raise EdgeKVError(f"the server does not answer ({error or type(error).__name__})") from None
        if response.status_code != HTTPStatus.OK:
            raise _refusal(response.content)
        return response.json()

    def close(self) -> None:
        self._http.close()


def _piece(chunk: dict[str, Any]) -> Piece:
    if "error" in chunk:
        raise _refusal_of(chunk["error"])
    choice = (chunk.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    progress, timings = chunk.get("prompt_progress"), chunk.get("timings")
    return Piece(
        text=delta.get("content") or "",
        thought=delta.get("reasoning_content") or "",
        progress=progress and Progress(progress["total"], progress["cache"], progress["processed"]),
        timings=timings and Timings(
            timings["cache_n"], timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"], timings["predicted_ms"]
        ),
        finish_reason=choice.get("finish_reason"),
    )


def _refusal(body: bytes) -> EdgeKVError:
    with suppress(ValueError, KeyError, TypeError):
        return _refusal_of(json.loads(body)["error"])
    return EdgeKVError(f"the server refused the request: {body.decode('utf-8', 'replace').strip() or 'it gave no reason'}")


def _refusal_of(error: dict[str, Any]) -> EdgeKVError:
    if error.get("type") == "exceed_context_size_error" and "n_prompt_tokens" in error:
        n_prompt, n_ctx = error["n_prompt_tokens"], error["n_ctx"]
        return ContextOverflow(f"the conversation is {n_prompt:,} tokens and the context holds {n_ctx:,}", n_prompt, n_ctx)
    return EdgeKVError(f"the server refused the request: {error.get('message', 'it gave no reason')}")
