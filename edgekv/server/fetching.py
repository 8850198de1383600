"""A thread looks up a prompt's rows on a shared server and reads them into memory; the other slots are answered meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edgekv.prefix_cache.blocks import Conversation
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.store import PrefixStore

log = logging.getLogger("edgekv")

POLL_S = 0.005
"""A server with nothing else to do waits this long at a time."""

MOST_EXPECTED = 4
"""Most prompts whose rows come while they wait for a slot."""

EXPECTED_S = 60.0
"""So long the rows of such a prompt are held; its client may be gone."""


class Fetch:
    """The fetch of one prompt. The decoding thread makes it, polls it and leaves it."""

    def __init__(self, asked: Conversation, store: PrefixStore, look_up: Callable[[], PrefixHit], worth: Callable[[PrefixHit], int]):
        """`worth` gives the number of pieces that load faster than they are computed. Raises RuntimeError if no thread can be started."""
        self.asked = asked
        self._store, self._look_up, self._worth = store, look_up, worth
        self._hit = PrefixHit()
        self._lock, self._done = threading.Lock(), threading.Event()
        self._abandoned = self._claimed = False
        self._thread = threading.Thread(target=self._run, name="edgekv-fetch", daemon=True)
        self._thread.start()

    def ready(self, alone: bool) -> bool:
        """Whether the result is ready. alone: no slot is being answered, so the call may wait a moment."""
        return self._done.wait(POLL_S if alone else 0)

    def take(self) -> PrefixHit:
        """The found rows that could be read."""
        self._done.wait()
        return self._hit

    def claim(self) -> bool:
        """Whether the result was not given up. From now on `expire` does not."""
        with self._lock:
            self._claimed = True
            return not self._abandoned

    def expire(self) -> None:
        """Give the result up, unless it is claimed. From any thread."""
        self._give_up(claimed_too=False)

    def leave(self) -> None:
        """Give the result up, once at most. From any thread."""
        self._give_up(claimed_too=True)

    def _give_up(self, claimed_too: bool) -> None:
        with self._lock:
            if self._abandoned or (self._claimed and not claimed_too):
                return
            self._abandoned = True
            done = self._done.is_set()
        if done:
            self._store.release(self._hit)

    def wanted(self) -> bool:
        """Whether the result was not given up."""
        with self._lock:
            return not self._abandoned

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            if not self._abandoned:
                self._hit = self._look_up()
                self._hit = self._store.fetch(self._hit, lambda: 0 if self._abandoned else self._worth(self._hit))
        except Exception:
            log.exception("kept prefixes could not be looked up")
        with self._lock:
            self._done.set()
            abandoned = self._abandoned
        if abandoned:
            self._store.release(self._hit)


class Expected:
    """Fetches of prompts that wait for a slot. The decoding thread calls it."""

    def __init__(self) -> None:
        self._fetches: list[tuple[Fetch, threading.Timer]] = []

    def has_more_of(self, asked: Conversation) -> bool:
        """Whether a fetch brings the first block of a prompt, or more."""
        return any(fetch.asked.has_more_of(asked, 0) and fetch.wanted() for fetch, _ in self._fetches)

    def add(self, fetch: Fetch) -> None:
        """Hold a fetch until `take`, for EXPECTED_S at most. The oldest of more than MOST_EXPECTED is given up."""
        timer = threading.Timer(EXPECTED_S, fetch.expire)
        timer.daemon = True
        timer.start()
        self._fetches.append((fetch, timer))
        if len(self._fetches) > MOST_EXPECTED:
            self._remove(0).leave()

    def take(self, asked: Conversation) -> Fetch | None:
        """The fetch of this prompt, which the caller leaves or uses from now on."""
        for i, (fetch, _) in enumerate(self._fetches):
            if fetch.asked.same(asked):
                self._remove(i)
                return fetch if fetch.claim() else None
        return None

    def close(self) -> list[Fetch]:
        """Give all up; returns them."""
        found = [self._remove(0) for _ in range(len(self._fetches))]
        for fetch in found:
            fetch.leave()
        return found

    def _remove(self, i: int) -> Fetch:
        fetch, timer = self._fetches.pop(i)
        timer.cancel()
        return fetch
