"""Writes to a place in the background, on its own thread."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from edgekv.common.units import size
from edgekv.prefix_cache.blocks import KeptBlock, Link
from edgekv.prefix_cache.place import Outcome, Place, log

RETRY_S = 0.5
"""Between two looks at whether a place that failed can be tried again."""

TIDY_S = 60.0
"""Between two tidyings of a place, also while there is nothing to write."""

PAUSE_S = 2.0
"""A block waits this long for the end of the answers, because writing it takes a core and memory from them: a server that always answers also writes
what it reads."""

POLL_S = 0.05

MOST_CHAINS = 64
"""Used chains that the place was not told of yet; older ones are forgotten."""


class Writer:
    """`lock`: the store's. It guards all attributes, and is held when `block_of`, `written` and `pauses` are called. `pauses`: whether writes wait now."""

    def __init__(self, place: Place, lock: threading.Condition, block_of: Callable[[bytes], KeptBlock | None],
                 written: Callable[[Link, Outcome], None], pauses: Callable[[], bool] = lambda: False):
        self.place = place
        self._lock, self._block_of, self._written, self._pauses = lock, block_of, written, pauses
        self._pending: OrderedDict[bytes, None] = OrderedDict()
        self._used: deque[Sequence[Link]] = deque(maxlen=MOST_CHAINS)
        self._passed: list[Link] = []
        self._pins: dict[bytes, float] = {}
        self._tidied = time.monotonic()
        self._busy = self._closing = self._said = False
        self._thread: threading.Thread | None = None

    def __contains__(self, key: bytes) -> bool:
        """Whether a block waits to be written, and can be."""
        return key in self._pending and self.place.writable

    def pending(self) -> list[bytes]:
        """Keys of the blocks that wait."""
        return list(self._pending)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, or nothing that can be done now."""
        return not self._busy and not (self.place.writable and self._has_work)

    @property
    def _untidy(self) -> bool:
        return time.monotonic() >= self._tidied + TIDY_S

    @property
    def _has_work(self) -> bool:
        return bool(self._pending or self._used or self._pins)

    def add(self, key: bytes) -> None:
        self._pending[key] = None
        self._wake()

    def discard(self, key: bytes) -> None:
        """The block was evicted."""
        self._pending.pop(key, None)

    def used(self, chain: Sequence[Link]) -> None:
        """Tell the place that a chain was used, from its root on, and write the blocks that it lacks."""
        self._used.append(chain)
        self._wake()

    def pass_over(self, links: Sequence[Link]) -> None:
        """Tell the place that snapshots are superfluous, before the next write."""
        self._passed += links

    def pin(self, key: bytes, expires: float) -> None:
        """Tell the place how long the chain to a block stays, in seconds since 1970."""
        self._pins[key] = expires
        self._wake()

    def close(self) -> None:
        """End after the write that is under way. The log tells what waited in vain."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=10)
        with self._lock:
            lost = [block for key in self._pending if (block := self._block_of(key)) is not None]
        if lost:
            log.warning("%d block%s of prefixes (%s) were not written to %s before the end, and are lost there", len(lost), "s" * (len(lost) > 1),
                        size(sum(block.n_bytes for block in lost)), self.place.name)

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"edgekv-write-{self.place.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many now; the next block tries again
                self.place.stats.n_errors += 1
                return
            self._thread = thread
        self._lock.notify_all()

    def _run(self) -> None:
        while self._wait():
            try:
                self._do_next()
            except BaseException:  # a place's fault, or a lack of memory: what waits behind this is written all the same
                self.place.stats.n_errors += 1
                if not self._said:
                    self._said = True
                    log.exception("writing prefixes to %s failed unexpectedly; it goes on with the next block, and more such "
                                  "failures are not reported", self.place.name)
            finally:
                with self._lock:
                    self._busy = False
                    self._lock.notify_all()

    def _wait(self) -> bool:
        """Wait for something that can be done; False: the writer closes."""
        with self._lock:
            while not self._closing and not (self.place.writable and (self._has_work or self._untidy)):
                self._lock.wait(RETRY_S if self._has_work else TIDY_S)
            end = time.monotonic() + PAUSE_S
            while self._pending and not (self._closing or self._used or self._pins) and self._pauses() and time.monotonic() < end:
                self._lock.wait(POLL_S)
            self._busy = not self._closing
            return self._busy

    def _do_next(self) -> None:
        with self._lock:
            pins, self._pins = self._pins, {}
            chain = self._used.popleft() if self._used else None
            key = next(iter(self._pending), None) if chain is None else None
            kept = None if key is None else self._block_of(key)
            passed, self._passed = (self._passed, []) if kept is not None else ([], self._passed)
        if self._untidy:
            self._tidied = time.monotonic()
            self.place.tidy()
        for pinned, expires in pins.items():
            self.place.pin(pinned, expires)
        if chain is not None:
            lacking = self.place.touch(chain)
            with self._lock:
                self._pending.update((link.key, None) for link in lacking if self._block_of(link.key) is not None)
        elif kept is not None:
            outcome = Outcome.DECLINED  # after an unknown failure a block is not tried again until it is used again
            try:
                self.place.pass_over(passed)
                if (block := kept.whole()) is not None:  # else the slot took its rows meanwhile
                    outcome = self.place.write(block)
            finally:
                with self._lock:
                    if outcome is not Outcome.LATER:
                        self._pending.pop(kept.link.key, None)
                    self._written(kept.link, outcome)
