"""Errands of other threads for the decoding thread, which alone may read the cache or change the settings of attention."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Errands:
    """Functions that wait until nothing is computed. Any thread may `ask`; the decoding thread calls `run` between two ubatches."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def ask(self, function: Callable[[], Result]) -> Future[Result]:
        """Ask for one call of `function`; the future gets its result or exception. A call cancelled before it begins is not made."""
        future: Future[Result] = Future()
        self._waiting.append((future, function))
        return future

    def run(self) -> None:
        """Call the waiting functions in order."""
        while self._waiting:
            future, function = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
