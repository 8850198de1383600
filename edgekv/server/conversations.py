"""What each slot does: how far its prompt is read, how fast it answers, and what came back instead of being read again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from edgekv._native.http_server import Request
    from edgekv.server.figures import Figures

WINDOW_S = 2.0
"""An answer's speed is that of its newest seconds."""


class Conversation(Struct, frozen=True):
    """A slot at one moment, with its newest request."""

    doing: Literal["idle", "prefill", "answering"] = "idle"
    n_prompt: int = 0
    found_in: dict[str, int] | None = None
    """Tokens of the prompt that were not computed, by tier."""
    tokens_per_second: float | None = None
    """Of the prompt or the answer; None: unknown yet."""
    seconds_left: float | None = None
    """Of the prompt."""


class Conversations:
    """Follows the requests of each slot. For the decoding thread."""

    def __init__(self) -> None:
        self._now: dict[int, tuple[Request, float]] = {}  # by slot: the newest request, and the time.time() at which it was told
        self._lengths: dict[int, deque[tuple[float, int]]] = {}  # by slot: an answer's (time.time(), tokens in the slot)
        self.seconds_saved = 0.0
        """What reading the tokens that were found would have taken, where the speed of reading was known."""

    def told(self, request: Request, saved_s: float, now: float) -> None:
        """A request's prompt begins, or the request ended. saved_s: seconds that its found tokens would have taken. now: `time.time()`."""
        self._now[request.slot] = request, now
        self._lengths.pop(request.slot, None)
        if not request.ended:
            self.seconds_saved += saved_s

    def of(self, figures: Figures) -> list[Conversation]:
        """By slot."""
        return [self._of(slot, max(one.n_tokens, one.n_positions), figures.taken) for slot, one in enumerate(figures.sequences)]

    def _of(self, slot: int, n_tokens: int, now: float) -> Conversation:
        if slot not in self._now:
            return Conversation()
        request, began = self._now[slot]
        n_prompt, found_in = request.n_prompt, request.by_tier
        if request.ended:
            return Conversation("idle", n_prompt, found_in)
        if n_tokens < n_prompt:
            speed = max(0, n_tokens - request.n_found) / max(now - began, 1e-3)
            return Conversation("prefill", n_prompt, found_in, speed or None, (n_prompt - n_tokens) / speed if speed else None)
        lengths = self._lengths.setdefault(slot, deque())
        lengths.append((now, n_tokens))
        while now - lengths[0][0] > WINDOW_S and len(lengths) > 2:
            lengths.popleft()
        seconds, n_new = now - lengths[0][0], n_tokens - lengths[0][1]
        return Conversation("answering", n_prompt, found_in, n_new / seconds if seconds > 0 and n_new > 0 else None)
