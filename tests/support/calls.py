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
    """Calls of `where.name` wait until they may go on."""

    def __init__(self, patch: pytest.MonkeyPatch, where: object, name: str):
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.threads: list[str] = []
        """Names of those that call."""
        watch(patch, where, name, self._hold)

    def _hold(self, *_: Any) -> None:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        self.go_on.wait(60)
