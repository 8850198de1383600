"""Copies of whole streams, as `llama_memory_seq_cp` makes them between sequences with cells of their own."""

from edgekv._native import core, native_arrays


class Copies:
    """Finds the streams of a context that were copied since it was last asked."""

    def __init__(self, handle: core.Handle, n_streams: int):
        self._handle = handle
        self._copied = [native_arrays.cells(handle, stream).copied for stream in range(n_streams)]

    def since_last(self) -> tuple[tuple[int, int], ...]:
        """`Observation.copies`. A copy of a copy is left out: it is not known which of the two came first."""
        sources = {}
        for stream, before in enumerate(self._copied):
            copied = native_arrays.cells(self._handle, stream).copied
            if copied != before:
                self._copied[stream] = copied
                sources[stream] = copied[1]
        return tuple((stream, source) for stream, source in sources.items() if source not in sources)
