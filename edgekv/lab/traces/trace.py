"""Recorded attention: for each decode step (one token) the attention mass on each page, and the part that sampling observed.

`Trace.open` reads a file of `edgekv lab trace record` (`edgekv.lab.traces.file` describes it), chunk by chunk while it is
iterated; `Trace.of` makes a trace from arrays. Both can be written (`write`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from edgekv.common.errors import ConfigError
from edgekv.lab.traces.file import CHUNK_STEPS, KINDS, TraceFile, TraceHeader, TraceWriter, chunk_starts, dtype_of

__all__ = ["Trace", "TraceHeader", "TraceStep"]

_FLOATS = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 by its bits: a lookup is several times as fast as NumPy's conversion."""


class TraceStep(Struct, frozen=True):
    """One decode step. Arrays are [layer, head, page], zero from n_used_end on; masses are float32."""

    mass_sum: np.ndarray
    """Attention mass, summed over the query heads of the group: a head's pages add up to the group size, less the mass on the model's
    own sinks."""
    mass_max: np.ndarray
    """The maximum over the query heads."""
    sampled_sum: np.ndarray
    """mass_sum as mode sparse observes it: a consistent estimate, zero for unread pages."""
    sampled_max: np.ndarray
    """mass_max as mode sparse observes it."""
    n_read: np.ndarray
    """uint16: the number of rows that mode sparse read of the page."""
    position: int
    n_used_end: int
    warmup: bool
    """A step of the warm-up: no policy misses anything in it, and it is not measured."""


class _Arrays:
    """A trace in memory: [step, layer, head, page] of each kind, in the file's type."""

    def __init__(self, header: TraceHeader, arrays: Mapping[str, np.ndarray]):
        self.header, self._arrays = header, arrays

    def chunk(self, kind: str, start: int) -> np.ndarray:
        return self._arrays[kind][start : start + CHUNK_STEPS]

    def close(self) -> None:
        pass


class Trace:
    """Steps in order, beginning with the warm-up; can be iterated repeatedly."""

    def __init__(self, source: TraceFile | _Arrays):
        self._source = source
        self._chunk: Callable[[str, int], np.ndarray] = source.chunk
        self.header = source.header
        self._axes = source.header.shape.axes

    @classmethod
    def open(cls, path: Path | str) -> Trace:
        """Open a file. Raises ConfigError if it is not a complete trace of this version."""
        return cls(TraceFile(Path(path)))

    @classmethod
    def of(cls, header: TraceHeader, mass_sum: np.ndarray, sampled_sum: np.ndarray, n_read: np.ndarray, mass_max: np.ndarray | None = None,
           sampled_max: np.ndarray | None = None) -> Trace:
        """A trace from arrays [step, layer, head, page], rounded as in a file. A maximum of None equals its sum, which is right for
        groups of one query head."""
        given = (mass_sum, mass_sum if mass_max is None else mass_max, sampled_sum,
                 sampled_sum if sampled_max is None else sampled_max, n_read)
        axes = (header.n_total, *header.shape.axes)
        arrays = {}
        for kind, array in zip(KINDS, given):
            if array.shape != axes:
                raise ConfigError(f"{kind} is {array.shape}; the header says it is {axes}")
            arrays[kind] = array.astype(dtype_of(kind))
        return cls(_Arrays(header, arrays))

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of steps including the warm-up."""
        return self.header.n_total

    def __iter__(self) -> Iterator[TraceStep]:
        header = self.header
        for start in chunk_starts(header):
            chunks = [self._chunk(kind, start) for kind in KINDS]
            for step in range(start, start + len(chunks[0])):
                mass_sum, mass_max, sampled_sum, sampled_max, n_read = (self._wide(chunk[step - start]) for chunk in chunks)
                yield TraceStep(mass_sum, mass_max, sampled_sum, sampled_max, n_read, header.position(step), header.n_used_end(step),
                                step < header.n_warmup)

    def _wide(self, array: np.ndarray) -> np.ndarray:
        """The array with all pages, and float32 in place of float16."""
        masses = array.dtype == np.float16
        wide = np.zeros(self._axes, np.float32 if masses else array.dtype)
        wide[:, :, : array.shape[2]] = np.take(_FLOATS, array.view(np.uint16), mode="clip") if masses else array
        return wide

    def keep(self) -> None:
        """Keep what is read in memory, at most `n_bytes`, for many simulations."""
        self._chunk = cache(self._chunk)

    @property
    def n_bytes(self) -> int:
        header = self.header
        return 2 * len(KINDS) * header.n_total * header.n_layers * header.n_heads * header.n_pages

    def write(self, path: Path | str) -> None:
        """Write the trace to a file. On failure raises ConfigError or EdgeKVError and leaves no file."""
        header = self.header
        with TraceWriter(Path(path), header) as writer:
            for start in chunk_starts(header):
                for kind in KINDS:
                    chunk = self._chunk(kind, start)
                    writer.chunk(kind, start, chunk[..., : header.n_used_end(start + len(chunk) - 1)])
