"""Errands of other threads for the one that decodes: only that one may look at the cache or change the settings of attention."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Errands:
    """Functions that wait until nothing is computed. `ask` on any thread, `run` on the one that decodes, between two ubatches."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def ask(self, function: Callable[[], Result]) -> Future[Result]:
        """Asks for one call of `function`; the future has its result or exception. One that is cancelled before is not called."""
        future: Future[Result] = Future()
        self._waiting.append((future, function))
        return future

    def run(self) -> None:
        """Call the waiting functions, in their order."""
        while self._waiting:
            future, function = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
