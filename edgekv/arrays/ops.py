"""The operations on per-page arrays, by NumPy: the reference that any faster backend is tested against.

Arrays are float32 [layer, head, page] unless a docstring says otherwise. They live where the data plane of a context runs: in host memory
(an emulated device's memory is host memory) or on a CUDA device (`cupy_ops`). Policies, prefetchers and planner use only these operations and
the functions of `xp`, so that the same file runs on both. Pins and page states are small and always NumPy arrays.

Work is queued in the order of the calls, on the ubatches' stream: use it inside `with ops:`. Results come to the host as a `Later`, or by
`download`, which waits.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from edgekv.arrays import move
from edgekv.arrays.moving_average import ema, flush, scratch_elements
from edgekv.arrays.order import HostStream, Later, Stream
from edgekv.arrays.rank import HostRanking, Ranking, Top
from edgekv.arrays.topk import largest
from edgekv.pages.residency import Residency, State

Array = Any
"""An array of the backend: numpy.ndarray, or cupy.ndarray."""


class Ops:
    """NumPy. All of it is done when the call returns."""

    xp: ModuleType = np
    """NumPy, or a module with the same functions for arrays of the backend."""
    on_device = False
    """The host cannot read the arrays; use `upload` and `download`."""
    errors: tuple[type[Exception], ...] = ()
    """The exceptions of a device that fails."""

    def __init__(self) -> None:
        self.ubatch_stream: Stream = HostStream()
        """The stream that the data plane computes ubatches on."""
        self._scratch = np.empty(0, np.float32)

    def __enter__(self) -> Ops:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def need_xp(self, what: str) -> None:
        """Whoever uses functions of `xp` or operators of arrays calls this first. `what`: its name. Raises CudaUnavailable where they do not work."""

    def side_stream(self) -> Stream:
        """A second stream, for copies."""
        return HostStream()

    # ---- arrays --------------------------------------------------------------------------------------------------------------

    def view(self, address: int, dtype: np.dtype | type, shape: tuple[int, ...]) -> Array:
        """A writable array over native memory, which must outlive it; nothing is copied."""
        dtype = np.dtype(dtype)
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.asarray(_Memory(address, dtype, shape))

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype | type) -> Array:
        return np.zeros(shape, dtype)

    def upload(self, array: np.ndarray) -> Array:
        """The values as an array of the backend; on the host the array itself."""
        return array

    def download(self, array: Array) -> np.ndarray:
        """The values in host memory; on the host the array itself. On a device this waits for all queued work: do not call it in every run of
        the policy."""
        return array

    # ---- what policies do ----------------------------------------------------------------------------------------------------

    def ema(self, scores: Array, mass: Array, end: int, new: np.float32, old: np.float32, least: float = 0.0) -> None:
        """scores = new * mass + old * scores on the pages before `end` (`moving_average.weights`); results below `least` become 0."""
        if len(self._scratch) < scratch_elements(scores.shape):
            self._scratch = np.empty(scratch_elements(scores.shape), np.float32)
        scores = scores[:, :, :end]
        ema(scores, mass[:, :, :end], new, old, self._scratch)
        if least:
            flush(scores, least)

    def clear(self, scores: Array, pages: np.ndarray) -> None:
        """scores = 0 on these pages (int [n]), for all layers and heads."""
        scores[:, :, pages] = 0

    # ---- what plans ask ------------------------------------------------------------------------------------------------------

    def rank(self, scores: Array | None, pins: np.ndarray | None, residency: Residency, n: int) -> Later[Ranking]:
        """A ranking by score, of n pages of each kind. scores: None: all zero; pins: as `Policy.pins`. On the host the ranking reads the scores
        when it is asked: use it before they change."""
        return Later.now(HostRanking(scores, pins, residency))

    def top(self, values: Array, end: int, n: int, state: np.ndarray | None = None, among: State = State.HOME) -> Later[Top]:
        """The n pages before `end` with the largest values above zero, largest first; of equal ones the lower id first. state: uint8
        [layer, head, page], to take only pages in the state `among`."""
        values, n_pages = values[:, :, :end], values.shape[2]
        mask = values > 0
        if state is not None:
            mask &= state[:, :, :end] == among
        found = np.flatnonzero(mask)
        values = values.reshape(-1)[found]
        best = largest(values, n)
        heads, pages = np.divmod(found[best], max(1, end))
        return Later.now(Top(heads * n_pages + pages, values[best]))

    # ---- what migration does -------------------------------------------------------------------------------------------------

    def gather(self, places: move.Places, moves: np.ndarray, stream: Stream) -> None:
        """Queue `move.gather_pages` on a stream."""
        move.gather_pages(self.view, places, moves)


class _Memory:
    """NumPy's protocol for foreign memory."""

    def __init__(self, address: int, dtype: np.dtype, shape: tuple[int, ...]):
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape,
            "typestr": dtype.str, "descr": dtype.descr}
