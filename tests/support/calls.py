"""Calls inside the product that a test sees, holds or lets fail."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


def watch(patch: pytest.MonkeyPatch, where: object, name: str, call: Callable[..., object]) -> None:
    """`call` runs before each call of `where.name`, with its arguments. Its caller gets what it raises."""
    works = getattr(where, name)

    def watched(*arguments: Any, **more: Any) -> Any:
        call(*arguments, **more)
        return works(*arguments, **more)

    patch.setattr(where, name, watched)


class Held:
    """Calls of `where.name`, or those of them that `which` says by their arguments, wait until they may go on."""

    def __init__(self, patch: pytest.MonkeyPatch, where: object, name: str, which: Callable[..., bool] = lambda *_: True):
        self.go_on, self.begun, self._which = threading.Event(), threading.Event(), which
        self.threads: list[str] = []
        """Names of those that call."""
        watch(patch, where, name, self._hold)

    def _hold(self, *arguments: Any) -> None:
        if self._which(*arguments):
            self.threads.append(threading.current_thread().name)
            self.begun.set()
            self.go_on.wait(60)
