"""The mean norm of each page's keys, for policies that look at keys."""

import numpy as np

from edgekv._native import core, native_arrays
from edgekv.arrays.norms import page_norms
from edgekv.pages.shape import PageShape


class KeyNorms:
    """values: float32 [layer, head, page], mean L2 norms; 0: the page is empty. It reads home, in host memory."""

    def __init__(self, handle: core.Handle, shape: PageShape):
        self._shape = shape
        layers = [layer for layer in core.layers(handle) if layer.index >= 0]
        self._keys = [(layer.index, layer.n_head_kv, native_arrays.rows(handle, layer.il, value=False)) for layer in layers]
        self._positions = [native_arrays.cells(handle, stream).positions for stream in range(shape.n_streams)]
        self.values = np.zeros(shape.axes, np.float32)

    def update(self, pages: np.ndarray) -> None:
        """Read the keys of these pages again (int [n], ascending)."""
        if not len(pages):
            return
        size = self._shape.page_tokens
        # neighbours are read at once: a prompt changes hundreds of pages
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            stream, first = divmod(int(run[0]), self._shape.pages_per_stream)
            n = min(len(run), self._shape.pages_per_stream - first)
            cells = slice(first * size, (first + n) * size)
            valid = self._positions[stream][cells] >= 0
            for index, n_heads, keys in self._keys:
                self.values[index, :n_heads, run[0] : run[0] + n] = page_norms(keys[stream, cells], valid, size).T
            if n < len(run):  # the run goes on in the next stream
                self.update(run[n:])
