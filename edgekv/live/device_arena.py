"""The arena in device memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from edgekv.arrays.order import Event, Stream
from edgekv.errors import TierError
from edgekv.hierarchy.transport import Transport


@dataclass(frozen=True)
class _Copy:
    ticket: int
    ids: np.ndarray
    slots: np.ndarray
    event: Event | None
    """None: a prompt is to leave the pages in their slots."""


class DeviceArena(Transport):
    """A transport that copies on a side stream and publishes what has arrived: nothing here waits but `close`.

    Two orders keep the bytes right. A copy begins after all that stands in the ubatches' stream when it is queued: a ubatch may still
    read a slot that was released before, and what it stored in home must have arrived there. And a page is published only when the
    event behind its copy is over.

    While a prompt is read (`in_prompt`) nothing is copied at once: its next ubatch brings every page to the device anyway, and leaves
    these in their slots. What it did not, because the prompt was at its end, is copied then.

    begin(ids, slots) tells the native side which copies come now, so that it can say later which pages changed meanwhile;
    gather(ids, slots, stream) queues them; publish(ids, slots) enters copied pages in the page table and returns bool [n], False for
    those that changed since begin; release(ids) takes them out; resize(n_slots). fill(ids, slots) asks the next ubatch for these pages,
    and filled(ids, slots) says after it, bool [n] each, whether it is over and which pages it left in their slots. `errors`: what the
    device raises when it fails.
    """

    def __init__(self, ubatches: Stream, side: Stream, begin: Callable[[np.ndarray, np.ndarray], None],
                 gather: Callable[[np.ndarray, np.ndarray, Stream], None], publish: Callable[[np.ndarray, np.ndarray], np.ndarray],
                 release: Callable[[np.ndarray], None], resize: Callable[[int], None], fill: Callable[[np.ndarray, np.ndarray], None],
                 filled: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], errors: tuple[type[Exception], ...] = ()):
        self._ubatches, self._side = ubatches, side
        self._begin, self._gather = begin, gather
        self._publish, self._release, self._resize = publish, release, resize
        self._fill, self._filled = fill, filled
        self._errors = errors
        self.in_prompt = False
        """Whether another part of a prompt is expected next."""
        self._copies: list[_Copy] = []
        self._n_tickets = 0
        self.last_error = ""
        """The sentence of the last copy that the device lost."""

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        if self.in_prompt:
            self._fill(ids, slots)
            event = None
        else:
            event = self._copy(ids, slots)
        self._n_tickets += 1
        self._copies.append(_Copy(self._n_tickets, ids, slots, event))
        return self._n_tickets

    def _copy(self, ids: np.ndarray, slots: np.ndarray) -> Event:
        try:
            self._begin(ids, slots)
            self._side.wait_for(self._ubatches.record())
            self._gather(ids, slots, self._side)
            return self._side.record()
        except self._errors as error:
            raise TierError(f"the device refused to copy {len(ids)} pages: {error}") from error

    def finished(self) -> list[tuple[int, np.ndarray]]:
        ended, under_way = [], []
        for copy in self._copies:
            try:
                copy, done = self._after_prompt(copy) if copy.event is None else (copy, copy.event.done())  # noqa: PLW2901 (begun only now)
                arrived = True
            except (TierError, *self._errors) as error:
                self.last_error = f"the device lost the copies of {len(copy.ids)} pages: {error}"
                done, arrived = True, False
            if not done:
                under_way.append(copy)
            elif arrived:
                ended.append((copy.ticket, self._publish(copy.ids, copy.slots)))
            else:
                ended.append((copy.ticket, np.zeros(len(copy.ids), bool)))
        self._copies = under_way
        return ended

    def _after_prompt(self, copy: _Copy) -> tuple[_Copy, bool]:
        """What became of pages that a prompt was asked for, and whether all have arrived."""
        over, filled = self._filled(copy.ids, copy.slots)
        if not over.all():
            return copy, False
        if filled.all():
            return copy, True
        return replace(copy, event=self._copy(copy.ids[~filled], copy.slots[~filled])), False

    def release(self, ids: np.ndarray) -> None:
        self._release(ids)

    def resize(self, n_slots: int) -> None:
        self._resize(n_slots)

    def close(self) -> None:
        try:
            self._side.synchronize()
        except self._errors as error:
            self.last_error = f"the device failed with copies under way: {error}"
        self._copies.clear()
