"""Copies of whole streams, as `llama_memory_seq_cp` makes them between sequences with cells of their own."""

from edgekv._native import core


class Copies:
    """Finds the streams of a context that were copied since it was last asked."""

    def __init__(self, handle: core.Handle, n_streams: int):
        self._handle = handle
        self._n_copied = [core.cells(handle, stream).n_copied for stream in range(n_streams)]

    def since_last(self) -> tuple[tuple[int, int], ...]:
        """`Observation.copies`. A copy of a copy is left out: it is not known which of the two came first."""
        sources = {}
        for stream, before in enumerate(self._n_copied):
            cells = core.cells(self._handle, stream)
            if cells.n_copied != before:
                self._n_copied[stream] = cells.n_copied
                sources[stream] = cells.copied_from
        return tuple((stream, source) for stream, source in sources.items() if source not in sources)
