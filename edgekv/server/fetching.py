"""A thread looks up a prompt's rows on a shared server and reads them into memory; the other slots are answered meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
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
    """The fetch of one prompt, for the decoding thread."""

    def __init__(self, asked: Conversation, store: PrefixStore, look_up: Callable[[], PrefixHit], worth: Callable[[PrefixHit], int],
                 alone: bool = False):
        """`worth` gives the number of pieces that load faster than they are computed. alone: as for `PrefixStore.fetch`. Raises RuntimeError if no thread
        can be started."""
        self.asked, self._alone = asked, alone
        self._store, self._look_up, self._worth = store, look_up, worth
        self._found: Future[PrefixHit] = Future()
        self._left = False
        self._thread = threading.Thread(target=self._run, name="edgekv-fetch", daemon=True)
        self._thread.start()

    def ready(self, alone: bool) -> bool:
        """Whether the result is ready. alone: no slot is being answered, so the call may wait a moment."""
        return bool(wait([self._found], POLL_S if alone else 0).done)

    def take(self) -> PrefixHit:
        """The found rows that could be read."""
        return self._found.result()

    def leave(self) -> None:
        """Give the result up, once."""
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
    """Fetches of prompts that wait for a slot. For the decoding thread. What is too old is given up when the next prompt comes: only then room is needed."""

    def __init__(self) -> None:
        self._fetches: deque[tuple[Fetch, float]] = deque()  # and until when they are held, the oldest first

    def has_more_of(self, asked: Conversation) -> bool:
        """Whether a fetch brings the first block of a prompt, or more."""
        self._leave_old()
        return any(fetch.asked.has_more_of(asked, 0) for fetch, _ in self._fetches)

    def add(self, fetch: Fetch) -> None:
        """Hold a fetch until `take`, for EXPECTED_S at most. The oldest of more than MOST_EXPECTED is given up."""
        self._fetches.append((fetch, time.monotonic() + EXPECTED_S))
        self._leave_old()

    def take(self, asked: Conversation) -> Fetch | None:
        """The fetch of this prompt, which the caller leaves or uses from now on."""
        self._leave_old()
        found = next((one for one in self._fetches if one[0].asked.same(asked)), None)
        if found is None:
            return None
        self._fetches.remove(found)
        return found[0]

    def close(self) -> list[Fetch]:
        """Give all up; returns them."""
        fetches = [fetch for fetch, _ in self._fetches]
        for fetch in fetches:
            fetch.leave()
        return fetches

    def _leave_old(self) -> None:
        while self._fetches and (len(self._fetches) > MOST_EXPECTED or self._fetches[0][1] < time.monotonic()):
            self._fetches.popleft()[0].leave()
