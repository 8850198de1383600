"""The arena in device memory."""

from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv.arrays.order import Event, Stream
from edgekv.common.errors import TierError
from edgekv.tiering.transport import Slots, Transport


class DevicePages(Slots, Protocol):
    """The native calls that the arena needs; ids and slots are int [n]."""

    def begin(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Announce copies of these pages: native code then notes which of them change meanwhile."""

    def gather(self, ids: np.ndarray, slots: np.ndarray, stream: Stream) -> None:
        """Queue these copies."""

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Enter copied pages in the page table; bool [n], False for those that changed since `begin`."""

    def fill(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Ask the next ubatch to leave these pages in their slots."""

    def filled(self, ids: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """bool [n] each: whether that ubatch is over, and whether it left the page in its slot."""


class Streams(Protocol):
    """The array operations that the arena needs."""

    ubatch_stream: Stream
    errors: tuple[type[Exception], ...]
    """The exceptions of a device that fails."""

    def side_stream(self) -> Stream:
        """A second stream, for copies."""


class _Copy(Struct, frozen=True):
    ticket: int
    ids: np.ndarray
    slots: np.ndarray
    event: Event | None
    """None: the next ubatch of a prompt is to leave the pages in their slots."""


class DeviceArena(Transport):
    """Copies on a side stream and publishes the pages that have arrived. Only `close` waits.

    Two rules of order keep the bytes right. A copy begins after the ubatches queued before it: they may still read the slot's last page, or
    store in home. A page is published only when its copy's event is over.

    While a prompt is read (`in_prompt`) nothing is copied at once: the next ubatch brings every page to the device anyway, and leaves the
    wanted ones in their slots. Where the prompt ended before that, they are copied then.
    """

    def __init__(self, pages: DevicePages, streams: Streams):
        self.pages = pages
        self._ubatches, self._side = streams.ubatch_stream, streams.side_stream()
        self._errors = streams.errors
        self._failures: tuple[type[Exception], ...] = (TierError, *streams.errors)
        self.in_prompt = False
        """The next ubatch is expected to be another part of a prompt."""
        self._copies: list[_Copy] = []
        self._n_tickets = 0
        self.last_error = ""
        """The reason of the last failed copy."""

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
        """The copy of pages that a prompt was asked for, begun here for those that it did not leave; and whether all have arrived."""
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
