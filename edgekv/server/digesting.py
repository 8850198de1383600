"""Computes the digest of a model's files on a thread of its own, while others read the same bytes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from pathlib import Path

from edgekv.prefix_cache.digests import digest_of_model, stamps_of_model


class Digesting:
    """Begins at once. Any thread may ask for the digest."""

    def __init__(self, model: Path):
        self.model = model
        self._found: Future[tuple[bytes, tuple]] = Future()
        threading.Thread(target=self._compute, name="edgekv-digest", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds`; return whether it has ended, successfully or not."""
        return bool(wait([self._found], seconds).done)

    @property
    def done(self) -> bool:
        return self._found.done()

    @property
    def digest(self) -> bytes:
        """The digest, 32 bytes. Raises ModelError if a file cannot be read."""
        return self._found.result()[0]

    @property
    def unchanged(self) -> bool:
        """Whether the files are unchanged since they were read. Raises ModelError."""
        return stamps_of_model(self.model) == self._found.result()[1]

    def _compute(self) -> None:
        try:
            stamps = stamps_of_model(self.model)
            self._found.set_result((digest_of_model(self.model), stamps))
        except BaseException as error:  # raised again when a thread asks
            self._found.set_exception(error)
