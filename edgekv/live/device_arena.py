"""The arena in device memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgekv.arrays.order import Event, Stream
from edgekv.errors import TierError
from edgekv.hierarchy.transport import Slots, Transport


class DevicePages(Slots, Protocol):
    """What the arena asks of native code."""

    def begin(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Announce copies of these pages, so that native code can say later which of them changed meanwhile."""

    def gather(self, ids: np.ndarray, slots: np.ndarray, stream: Stream) -> None:
        """Queue these copies."""

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Enter copied pages in the page table; bool [n], False for those that changed since `begin`."""

    def fill(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Ask the next ubatch for these pages."""

    def filled(self, ids: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """bool [n] each: whether that ubatch is over, and which pages it left in their slots."""


class Streams(Protocol):
    """What the arena asks of the array operations."""

    ubatch_stream: Stream
    errors: tuple[type[Exception], ...]
    """What the device raises when it fails."""

    def side_stream(self) -> Stream:
        """A stream beside it, for copies."""


@dataclass(frozen=True)
class _Copy:
    ticket: int
    ids: np.ndarray
    slots: np.ndarray
    event: Event | None
    """None: a prompt is to leave the pages in their slots."""


class DeviceArena(Transport):
    """A transport that copies on a side stream and publishes what has arrived. Only `close` waits.

    Two orders keep the bytes right. A copy begins after all that stands in the ubatches' stream when it is queued: a ubatch may still
    read a slot that was released before, and what it stored in home must have arrived there. And a page is published only when the
    event behind its copy is over.

    While a prompt is read (`in_prompt`) nothing is copied at once: its next ubatch brings every page to the device anyway, and leaves
    these in their slots. What it did not, because the prompt was at its end, is copied then.
    """

    def __init__(self, pages: DevicePages, streams: Streams):
        self.pages = pages
        self._ubatches, self._side = streams.ubatch_stream, streams.side_stream()
        self._errors = streams.errors
        self._failures: tuple[type[Exception], ...] = (TierError, *streams.errors)
        self.in_prompt = False
        """Whether another part of a prompt is expected next."""
        self._copies: list[_Copy] = []
        self._n_tickets = 0
        self.last_error = ""
        """Why the device lost the last copy that failed."""

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        if self.in_prompt:
            self.pages.fill(ids, slots)
            event = None
        else:
            event = self._copy(ids, slots)
        self._n_tickets += 1
        self._copies.append(_Copy(self._n_tickets, ids, slots, event))
        return self._n_tickets

    def _copy(self, ids: np.ndarray, slots: np.ndarray) -> Event:
        try:
            self.pages.begin(ids, slots)
            self._side.wait_for(self._ubatches.record())
            self.pages.gather(ids, slots, self._side)
            return self._side.record()
        except self._errors as error:
            raise TierError(f"the device refused to copy {len(ids)} pages: {error}") from error

    def finished(self) -> list[tuple[int, np.ndarray]]:
        ended, under_way = [], []
        for copy in self._copies:
            try:
                copy, done = self._after_prompt(copy) if copy.event is None else (copy, copy.event.done())  # noqa: PLW2901 (begun only now)
                arrived = True
            except self._failures as error:
                self.last_error = f"the device lost the copies of {len(copy.ids)} pages: {error}"
                done, arrived = True, False
            if not done:
                under_way.append(copy)
            elif arrived:
                ended.append((copy.ticket, self.pages.publish(copy.ids, copy.slots)))
            else:
                ended.append((copy.ticket, np.zeros(len(copy.ids), bool)))
        self._copies = under_way
        return ended

    def _after_prompt(self, copy: _Copy) -> tuple[_Copy, bool]:
        """What became of pages that a prompt was asked for, and whether all have arrived."""
        over, filled = self.pages.filled(copy.ids, copy.slots)
        if not over.all():
            return copy, False
        if filled.all():
            return copy, True
        return replace(copy, event=self._copy(copy.ids[~filled], copy.slots[~filled])), False

    def close(self) -> None:
        try:
            self._side.synchronize()
        except self._errors as error:
            self.last_error = f"the device failed with copies under way: {error}"
        self._copies.clear()
