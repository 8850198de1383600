"""Order of work: streams, events, and values that are known later. On the host all work is over at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether all work before it is over; does not wait."""

    def wait(self) -> None:
        """Wait until all work before it is over."""


class Stream(Protocol):
    """Work that runs in order. Only events order the work of two streams."""

    def record(self) -> Event:
        """The point after all work queued so far."""

    def wait_for(self, event: Event) -> None:
        """Begin later work after the event; the caller does not wait."""

    def synchronize(self) -> None:
        """Wait until all work is over."""


class HostEvent:
    """A point that has been passed."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class HostStream:
    """Work that is over when the call that queues it returns."""

    def record(self) -> Event:
        return HostEvent()

    def wait_for(self, event: Event) -> None:
        event.wait()

    def synchronize(self) -> None:
        pass


class Later(Generic[T]):
    """A value that is known when an event is over."""

    def __init__(self, event: Event, read: Callable[[], T]):
        self._event = event
        self._read = read

    @classmethod
    def now(cls, value: T) -> Later[T]:
        return cls(HostEvent(), lambda: value)

    def done(self) -> bool:
        return self._event.done()

    def get(self) -> T:
        """Wait for the value, and return it."""
        self._event.wait()
        return self._read()

    def then(self, function: Callable[[T], U]) -> Later[U]:
        """`function` of the value; the host computes it in `get`."""
        return Later(self._event, lambda: function(self._read()))


class _Both:
    def __init__(self, one: Event, other: Event):
        self._events = one, other

    def done(self) -> bool:
        return all(event.done() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.wait()


def both(one: Later[T], other: Later[U]) -> Later[tuple[T, U]]:
    """Two values, known when both are."""
    return Later(_Both(one._event, other._event), lambda: (one._read(), other._read()))
