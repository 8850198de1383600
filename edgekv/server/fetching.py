"""A thread looks up a prompt's rows on a shared server and reads them into memory; the other slots are answered meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

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
    """The fetch of one prompt. The decoding thread makes it and polls it; any thread may leave it."""

    def __init__(self, asked: Conversation, store: PrefixStore, look_up: Callable[[], PrefixHit], worth: Callable[[PrefixHit], int],
                 alone: bool = False):
        """`worth` gives the number of pieces that load faster than they are computed. alone: as for `PrefixStore.fetch`. Raises RuntimeError if no thread
        can be started."""
        self.asked, self._alone = asked, alone
        self._store, self._look_up, self._worth = store, look_up, worth
        self._found: Future[PrefixHit] = Future()
        self._left, self._leaving = False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="edgekv-fetch", daemon=True)
        self._thread.start()

    def ready(self, alone: bool) -> bool:
        """Whether the result is ready. alone: no slot is being answered, so the call may wait a moment."""
        return bool(wait([self._found], POLL_S if alone else 0).done)

    def take(self) -> PrefixHit:
        """The found rows that could be read."""
        return self._found.result()

    def leave(self) -> None:
        """Give the result up, once at most."""
        if self._leaving.acquire(blocking=False):  # and nobody releases it
            self._left = True
            self._found.add_done_callback(lambda found: self._store.release(found.result()))

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        hit = PrefixHit()
        try:
            if not self._left:
                hit = self._look_up()
                hit = self._store.fetch(hit, lambda: 0 if self._left else self._worth(hit), self._alone)
        except Exception:
            log.exception("kept prefixes could not be looked up")
        self._found.set_result(hit)


class Expected:
    """Fetches of prompts that wait for a slot. The decoding thread calls it; a timer gives up what nobody takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetches: dict[Fetch, threading.Timer] = {}  # the oldest first

    def has_more_of(self, asked: Conversation) -> bool:
        """Whether a fetch brings the first block of a prompt, or more."""
        with self._lock:
            return any(fetch.asked.has_more_of(asked, 0) for fetch in self._fetches)

    def add(self, fetch: Fetch) -> None:
        """Hold a fetch until `take`, for EXPECTED_S at most. The oldest of more than MOST_EXPECTED is given up."""
        timer = threading.Timer(EXPECTED_S, self.give_up, [fetch])
        timer.daemon = True
        with self._lock:
            self._fetches[fetch] = timer
            oldest = next(iter(self._fetches)) if len(self._fetches) > MOST_EXPECTED else None
        timer.start()
        if oldest is not None:
            self.give_up(oldest)

    def take(self, asked: Conversation) -> Fetch | None:
        """The fetch of this prompt, which the caller leaves or uses from now on."""
        with self._lock:
            fetch = next((one for one in self._fetches if one.asked.same(asked)), None)
        return fetch if fetch is not None and self._remove(fetch) else None

    def give_up(self, fetch: Fetch) -> None:
        """Leave a fetch, unless it was taken."""
        if self._remove(fetch):
            fetch.leave()

    def close(self) -> list[Fetch]:
        """Give all up; returns them."""
        fetches = list(self._fetches)
        for fetch in fetches:
            self.give_up(fetch)
        return fetches

    def _remove(self, fetch: Fetch) -> bool:
        """False: it was taken, or given up."""
        with self._lock:
            timer = self._fetches.pop(fetch, None)
        if timer is not None:
            timer.cancel()
        return timer is not None
