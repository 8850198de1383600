"""Order of work: streams, events, and values that are known later. On the host all work is done at once, and all of it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether all work before it is over; asks, does not wait."""

    def wait(self) -> None:
        """Until it is."""


class Stream(Protocol):
    """Work in order. What is queued in two streams has none, but through events."""

    def record(self) -> Event:
        """The point after all that was queued so far."""

    def wait_for(self, event: Event) -> None:
        """What is queued from now on begins after the event; the caller does not wait."""

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
        """The value; waits for it."""
        self._event.wait()
        return self._read()

    def then(self, function: Callable[[T], U]) -> Later[U]:
        """The value, worked on by the host once it is asked for."""
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
