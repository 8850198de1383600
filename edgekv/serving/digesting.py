"""The digest of a model's files, computed by a thread of its own while others read the same bytes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from pathlib import Path

from edgekv.store.digests import digest_of_model, stamps_of_model


class Digesting:
    """Begins at once. Any thread may ask."""

    def __init__(self, model: Path):
        self.model = model
        self._found: Future[tuple[bytes, tuple]] = Future()
        threading.Thread(target=self._compute, name="edgekv-digest", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, well or not, after so many seconds at most."""
        return bool(wait([self._found], seconds).done)

    @property
    def done(self) -> bool:
        return self._found.done()

    @property
    def digest(self) -> bytes:
        """32 bytes. Raises ModelError where a file cannot be read."""
        return self._found.result()[0]

    @property
    def unchanged(self) -> bool:
        """Whether the files are still those that were read. Raises ModelError."""
        return stamps_of_model(self.model) == self._found.result()[1]

    def _compute(self) -> None:
        try:
            stamps = stamps_of_model(self.model)
            self._found.set_result((digest_of_model(self.model), stamps))
        except BaseException as error:  # raised for whoever asks
            self._found.set_exception(error)
