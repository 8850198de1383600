"""Measures an endpoint with several clients at once: time to the first token, time between tokens, throughput.

Each turn has two parts. In *read* every client sends a prompt of its own that the server has never seen. In *decode* the clients send the
same prompts again, which the server holds, so that decoding takes almost all the time. Any server with OpenAI's completions works;
tokens are counted as they are streamed, one per event.
"""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from http import HTTPStatus

import httpx2 as httpx
import numpy as np
from msgspec import Struct, field

from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.measure import interrupts

CHARACTERS = 3
"""A token of English has about so many characters or more. If the server can count tokens, it cuts longer texts."""

_LOOK_S = 0.2
"""From one look for a signal to the next."""


class Load(Struct, frozen=True):
    """The requests of the clients of one turn."""

    n_clients: int = 4
    n_prompt: int = 1900
    """Tokens of each prompt; exact only if the server can count them."""
    n_answer: int = 64


class Answered(Struct):
    """One client's times, in seconds of the same clock."""

    asked: float
    arrivals: list[float] = field(default_factory=list)
    """The time of each token."""

    @property
    def gaps(self) -> np.ndarray:
        """Seconds between tokens, float64 [token - 1]."""
        return np.diff(self.arrivals)


class LoadPart(Struct, frozen=True):
    """The times of all clients in a part of a turn."""

    answers: tuple[Answered, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the first question to the last token."""
        return max(answer.arrivals[-1] for answer in self.answers) - min(answer.asked for answer in self.answers)

    @property
    def tokens_per_second(self) -> float | None:
        """The throughput of all clients together while all their answers run; None: one ended before another one began."""
        begun = max(answer.arrivals[0] for answer in self.answers)
        ended = min(answer.arrivals[-1] for answer in self.answers)
        n = sum(sum(begun < at <= ended for at in answer.arrivals) for answer in self.answers)
        return n / (ended - begun) if ended > begun else None

    @property
    def first_tokens(self) -> np.ndarray:
        """Seconds until each client had its first token, float64 [client]."""
        return np.array([answer.arrivals[0] - answer.asked for answer in self.answers])

    @property
    def gaps(self) -> np.ndarray:
        """Seconds between successive tokens, over all answers: float64 [n]."""
        return np.concatenate([answer.gaps for answer in self.answers])


class Endpoint:
    """Clients of a server at `url`; each request has a connection of its own."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 1800.0):
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not an address of a server; write one such as http://127.0.0.1:8080")
        self._url = url
        self._http = httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), headers={"Authorization": f"Bearer {key}"} if key else {},
                                  timeout=timeout_s, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, verify=url.startswith("https:"))

    def cut(self, text: str, n_tokens: int) -> str:
        """The beginning of `text` with about `n_tokens` tokens, by the server's own count if it has llama.cpp's /tokenize."""
        text = text[: 8 * n_tokens]
        try:
            reply = self._http.post("/tokenize", json={"content": text, "with_pieces": True})
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if reply.status_code != HTTPStatus.OK:
            return text[: CHARACTERS * n_tokens]
        pieces = [token["piece"] for token in reply.json()["tokens"][:n_tokens]]
        return "".join(piece if isinstance(piece, str) else bytes(piece).decode("utf-8", "ignore") for piece in pieces)

    def ask(self, prompt: str, n_tokens: int, model: str) -> Answered:
        """Stream one completion. Raises EdgeKVError with the server's words if it refuses, and where the stream ends before the answer does: a connection
        that is closed says nothing of it."""
        answered, finished = Answered(time.perf_counter()), False
        body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        try:
            with self._http.sse("/v1/completions", method="POST", json=body) as events:
                if events.response.status_code != HTTPStatus.OK:
                    raise EdgeKVError(f"the server answered with HTTP {events.response.status_code}: {events.response.read()[:500].decode('utf-8', 'replace')}")
                for event in events:
                    if event.data == "[DONE]":
                        finished = True
                        break
                    said = json.loads(event.data)
                    if "error" in said:
                        raise EdgeKVError(f"the server broke off: {said['error'].get('message', said['error'])}")
                    finished |= any(choice.get("finish_reason") for choice in said.get("choices", ()))
                    if any(choice.get("text") for choice in said.get("choices", ())):
                        answered.arrivals.append(time.perf_counter())
        except httpx.ConnectError as error:
            raise self._unreachable(error) from None
        except httpx.HTTPError as error:
            raise EdgeKVError(f"the server broke off after {len(answered.arrivals)} tokens: {error}") from None
        if not finished:
            raise EdgeKVError("the server broke off in the middle of an answer: its stream ended without a finish_reason")
        if not answered.arrivals:
            raise EdgeKVError("the server answered without a token")
        return answered

    def _unreachable(self, error: Exception) -> EdgeKVError:
        return EdgeKVError(f"{self._url} cannot be reached: {error or type(error).__name__}; `edgekv serve` starts one, --url names another")

    def together(self, prompts: Sequence[str], n_tokens: int, model: str) -> LoadPart:
        """Send all prompts at the same time, one client each. Raises KeyboardInterrupt after Ctrl-C (`edgekv.measure.interrupts`)."""
        start = threading.Barrier(len(prompts))

        def one(prompt: str) -> Answered:
            start.wait()
            return self.ask(prompt, n_tokens, model)

        pool = ThreadPoolExecutor(len(prompts))
        try:
            asked = [pool.submit(one, prompt) for prompt in prompts]
            while wait(asked, timeout=_LOOK_S).not_done:
                interrupts.check()
            interrupts.check()  # a server that broke off may have received the signal too
            return LoadPart(tuple(answer.result() for answer in asked))
        finally:
            pool.shutdown(wait=False)  # clients that are left end with their server


def prompts_for(text: str, load: Load, turn: int) -> list[str]:
    """A text for each client, about twice as long as needed. Texts of different turns and clients begin differently."""
    length = 8 * load.n_prompt
    found = []
    for client in range(load.n_clients):
        number = turn * load.n_clients + client
        first = number * 1009 * 7 % max(1, len(text) - length)
        found.append(f"Part {number}. " + text[first:first + length])
    return found
