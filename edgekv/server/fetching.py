"""A thread looks up a prompt's rows on a shared server and reads them into memory; the other slots are answered meanwhile."""

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
