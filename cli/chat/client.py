"""The HTTP side of a chat: messages go out, pieces of the answer come in. It works with any llama.cpp server in any process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httpx2 as httpx
from msgspec import Struct

from edgekv.common.errors import BrokenOff, ContextOverflow, DoesNotFit, EdgeKVError
from edgekv.server.sites import is_here

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

_QUICK_S = 60.0  # for requests that only process text

PLACES = ("slot", "shared", "ram", "disk", "remote")
"""The sources of a prompt's known tokens: the slot's own cache, or a tier of the prefix store."""


class Progress(Struct, frozen=True):
    """Tokens of the prompt that have been read; `n_cached` of them were known from the turn before and cost nothing."""

    n_total: int
    n_cached: int
    n_processed: int  # n_cached included


class Timings(Struct, frozen=True):
    """Timings of one request, in tokens and milliseconds: measured by llama.cpp's servers themselves, for others on this side."""

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


class Usage(Struct, frozen=True):
    """Tokens of one request as the server counts them, and where it knew the prompt's from."""

    n_prompt: int  # the cached ones included
    n_predicted: int
    n_cached: int = 0
    origins: tuple[tuple[str, int], ...] = ()
    """(one of PLACES, tokens) of the cached tokens, where the server tells."""
    left: tuple[tuple[int, int], ...] = ()
    """(first, n) of the tokens that have left the context, by their positions in the whole conversation."""
    back: tuple[tuple[int, int], ...] = ()
    """Those of them that came back before the newest message."""
    back_before: int = 0
    """The position of that message in the whole conversation."""

    @property
    def n_left(self) -> int:
        return sum(n for _, n in self.left)

    @property
    def n_back(self) -> int:
        return sum(n for _, n in self.back)

    @classmethod
    def parse(cls, usage: dict[str, Any]) -> Usage | None:
        """The usage of an answer; None if it does not look like one."""
        details = usage.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        ours = usage.get("edgekv")
        ours = ours if isinstance(ours, dict) else {}
        places, left, back = (one if isinstance(one := ours.get(name), dict) else {} for name in ("cached_tokens", "left", "back"))
        origins = tuple((place, n) for place in PLACES if isinstance(n := places.get(place), int) and n > 0)
        n_prompt, n_predicted, n_cached = (
            n if isinstance(n, int) else None
            for n in (usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens") or 0))
        if n_prompt is None or n_predicted is None or n_cached is None:
            return None
        return cls(n_prompt, n_predicted, n_cached, origins, _ranges(left), _ranges(back), int(back.get("before", 0)))


def _ranges(told: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(n)) for first, n in told.get("ranges", ()))


class AnswerPiece(Struct, frozen=True):
    """The content of one event of the stream; most have only `text`."""

    text: str = ""
    thought: str = ""  # of a reasoning model
    progress: Progress | None = None
    timings: Timings | None = None
    finish_reason: str | None = None  # "stop", or "length" where a limit cut the answer
    usage: Usage | None = None


class ChatClient:
    """Talks to the chat endpoint below `url` (without /v1). `sampling` are request fields, e.g. {"temperature": 0}.

    elsewhere: the server is not this process's: a proxy may be needed, certificates count, and llama.cpp's own fields are left out until
    `is_llama` says that the server knows them.
    """

    def __init__(self, url: str, api_key: str | None = None, sampling: dict[str, Any] | None = None, elsewhere: bool = False):
        self.sampling = sampling or {}
        self.is_llama = not elsewhere
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(10.0, read=None),  # a prompt can take minutes to read
            trust_env=elsewhere and not is_here(url),  # loading the certificates takes time
            verify=url.startswith("https:"),
        )

    def stream(self, messages: list[Message], pinned: Sequence[int] = ()) -> Iterator[AnswerPiece]:
        """The answer to `messages`, piece by piece. Leaving the iteration early stops the server's work. pinned: numbers of the messages that stay
        in a full context.

        Raises ContextOverflow if the prompt does not fit, BrokenOff if the stream ends before the answer, EdgeKVError if the server refuses,
        fails or is gone.
        """
        body = {**self.sampling, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        if self.is_llama:
            body |= {"return_progress": True, "timings_per_token": True, **({"edgekv_pinned": list(pinned)} if pinned else {})}
        watch, calls, finished = _Watch(), _Calls(), False
        try:
            with self._http.sse("/v1/chat/completions", method="POST", json=body) as events:
                if events.response.status_code != HTTPStatus.OK:
                    raise _refusal(events.response.read())
                for event in events:
                    if event.data == "[DONE]":
                        finished = True
                        break
                    chunk = json.loads(event.data)
                    piece = _piece(chunk)
                    finished |= piece.finish_reason is not None
                    watch.saw(piece)
                    calls.saw(chunk)
                    yield piece
                if shown := calls.shown():
                    yield AnswerPiece(text=shown)
                if not finished:
                    raise BrokenOff("the server stopped in the middle of an answer (its stream ended without a finish_reason)")
                if (timings := watch.timings()) is not None:
                    yield AnswerPiece(timings=timings)
        except httpx.ConnectError as error:
            raise EdgeKVError(f"the server does not answer ({error or type(error).__name__})") from None
        except (httpx.HTTPError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            kind = BrokenOff if isinstance(error, httpx.HTTPError) else EdgeKVError
            raise kind(f"the server stopped in the middle of an answer ({error or type(error).__name__})") from None

    def prompt(self, messages: list[Message]) -> str:
        """`messages` as text, by the model's chat template. Raises EdgeKVError if the template refuses them."""
        return self._post("/apply-template", {"messages": messages})["prompt"]

    def n_tokens(self, text: str) -> int:
        """The number of tokens of `text` at the start of a prompt."""
        return len(self._post("/tokenize", {"content": text, "add_special": True})["tokens"])

    def get(self, path: str, timeout: float = _QUICK_S) -> tuple[int, Any]:
        """(status, JSON) of a GET; None instead of anything that is not JSON. Raises httpx.HTTPError if nothing answers."""
        response = self._http.get(path, timeout=timeout)
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

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


class _Watch:
    """Measures on this side the timings that a server does not tell."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self._first: float | None = None
        self._told = False
        self._usage: Usage | None = None

    def saw(self, piece: AnswerPiece) -> None:
        self._told |= piece.timings is not None
        self._usage = piece.usage or self._usage
        if piece.text or piece.thought:
            self._last = time.monotonic()
            self._first = self._first or self._last

    def timings(self) -> Timings | None:
        """The measured timings; None if the server told its own, or did not count its tokens."""
        if self._told or self._usage is None:
            return None
        first, usage = self._first or self._last, self._usage
        return Timings(usage.n_cached, usage.n_prompt - usage.n_cached, 1e3 * (first - self._begun), usage.n_predicted,
                       1e3 * (self._last - first))


class _Calls:
    """The tool calls of an answer, which come in pieces. A chat has no tools, so a call is shown as a line of the answer."""

    def __init__(self) -> None:
        self._calls: dict[Any, list[str]] = {}  # [name, arguments] by the call's number
        self._behind = ""

    def saw(self, chunk: dict[str, Any]) -> None:
        delta = _delta(chunk)
        self._behind = _texts(delta.get("content"))[0][-1:] or self._behind
        old = delta.get("function_call")  # of servers that know no tools yet
        for i, call in enumerate([*(delta.get("tool_calls") or []), *([{"function": old}] if old else [])]):
            said, found = call.get("function") or {}, self._calls.setdefault(call.get("index", i), ["", ""])
            given = said.get("arguments")
            found[0] = found[0] or said.get("name") or ""
            found[1] += given if isinstance(given, str) else json.dumps(given) if given else ""

    def shown(self) -> str:
        """A line for each call; empty if there was none."""
        lines = [f"(tool call) {name}({arguments})" for name, arguments in self._calls.values()]
        return "\n" * bool(lines and self._behind.strip("\n")) + "\n".join(lines)


def _delta(chunk: dict[str, Any]) -> dict[str, Any]:
    return ((chunk.get("choices") or [{}])[0]).get("delta") or {}


def _texts(content: Any) -> tuple[str, str]:
    """(text, thought) of a delta's content: a text, or a list of parts. Raises TypeError for anything else."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise TypeError("content is neither a text nor a list")
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    thoughts = [text for part in parts for text in _texts(part.get("thinking"))]
    return "".join(part.get("text") or "" for part in parts), "".join(thoughts)


def _piece(chunk: dict[str, Any]) -> AnswerPiece:
    if chunk.get("error"):
        raise _refusal_of(chunk["error"])
    choice, delta = (chunk.get("choices") or [{}])[0], _delta(chunk)
    text, thought = _texts(delta.get("content"))
    progress, timings, usage = chunk.get("prompt_progress"), chunk.get("timings"), chunk.get("usage")
    return AnswerPiece(
        text=text or delta.get("refusal") or "",
        thought=thought or delta.get("reasoning_content") or delta.get("reasoning") or "",
        progress=progress and Progress(progress["total"], progress["cache"], progress["processed"]),
        timings=timings and Timings(
            timings["cache_n"], timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"], timings["predicted_ms"]
        ),
        finish_reason=choice.get("finish_reason"),
        usage=Usage.parse(usage) if isinstance(usage, dict) else None,
    )


def _refusal(body: bytes) -> EdgeKVError:
    with suppress(ValueError, KeyError, TypeError):
        return _refusal_of(json.loads(body)["error"])
    return EdgeKVError(f"the server refused the request: {body.decode('utf-8', 'replace').strip() or 'it gave no reason'}")


def _refusal_of(error: Any) -> EdgeKVError:
    if not isinstance(error, dict):
        return EdgeKVError(f"the server refused the request: {error or 'it gave no reason'}")
    if error.get("type") == "exceed_context_size_error" and "n_prompt_tokens" in error:
        n_prompt, n_ctx = error["n_prompt_tokens"], error["n_ctx"]
        return ContextOverflow(f"the conversation is {n_prompt:,} tokens and the context holds {n_ctx:,}", n_prompt, n_ctx)
    if error.get("code") == "context_length_exceeded":
        return ContextOverflow(f"the conversation does not fit into the context ({error.get('message', 'it gave no figures')})")
    if error.get("type") == "unavailable_error" and "no memory" in str(error.get("message")):
        return DoesNotFit(str(error["message"]))
    return EdgeKVError(f"the server refused the request: {error.get('message', 'it gave no reason')}")
