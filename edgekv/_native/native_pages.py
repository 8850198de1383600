"""The pages of one context as arenas ask for them, by ids of its shape: the native calls behind them."""

from __future__ import annotations

import numpy as np

from edgekv._native import core, device_calls, paging
from edgekv.arrays.move import MOVE, Places
from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Stream
from edgekv.errors import DoesNotFit, TierError
from edgekv.pages.shape import PageShape


class NativePages:
    """`HostPages` and `DevicePages` for one context. slot_bytes: bytes of a page in the arena."""

    def __init__(self, handle: core.Handle, shape: PageShape, ops: Ops, slot_bytes: int):
        self._handle = handle
        self._shape = shape
        self._ops = ops
        self._slot_bytes = slot_bytes

    def copy(self, ids: np.ndarray, slots: np.ndarray) -> None:
        paging.copy_pages(self._handle, self._moves(ids, slots))

    def begin(self, ids: np.ndarray, slots: np.ndarray) -> None:
        paging.begin_copies(self._handle, self._moves(ids, slots))

    def gather(self, ids: np.ndarray, slots: np.ndarray, stream: Stream) -> None:
        plane, shape = device_calls.plane(self._handle), self._shape
        if plane is None:
            raise TierError("the context has no device any more")
        places = Places(plane.rows, shape.n_rows, plane.arena, self._slot_bytes, shape.page_tokens, shape.pages_per_stream, plane.n_cells)
        self._ops.gather(places, self._moves(ids, slots), stream)

    def fill(self, ids: np.ndarray, slots: np.ndarray) -> None:
        paging.fill_pages(self._handle, self._moves(ids, slots))

    def filled(self, ids: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return paging.filled_pages(self._handle, self._moves(ids, slots))

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return paging.publish_pages(self._handle, self._moves(ids, slots))

    def release(self, ids: np.ndarray) -> None:
        paging.release_pages(self._handle, self._moves(ids))

    def resize(self, n_slots: int) -> None:
        try:
            paging.set_arena(self._handle, n_slots)
        except DoesNotFit as error:
            raise TierError(str(error)) from error

    def _moves(self, ids: np.ndarray, slots: np.ndarray | int = -1) -> np.ndarray:
        return moves_of(self._shape, ids, slots)


def moves_of(shape: PageShape, ids: np.ndarray, slots: np.ndarray | int = -1) -> np.ndarray:
    """MOVE [n]: pages by id and the slots that they go to, -1 where they go to none."""
    moves = np.empty(len(ids), MOVE)
    moves["row"], moves["head"], moves["page"] = shape.places(ids)
    moves["slot"] = slots
    return moves
