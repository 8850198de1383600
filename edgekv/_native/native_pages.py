"""The pages of one context through cffi, by ids of its shape: one call for each question and each change of the page table."""

import numpy as np

from edgekv._native import core, device_calls
from edgekv._native._core import ffi, lib
from edgekv._native.core import _check
from edgekv.arrays.move import MOVE, Places
from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Stream
from edgekv.common.errors import DoesNotFit, TierError
from edgekv.pages.shape import PageShape


class NativePages:
    """`DevicePages` for one context. slot_bytes: bytes of a page in the arena."""

    def __init__(self, handle: core.Handle, shape: PageShape, ops: Ops, slot_bytes: int):
        self._handle = handle
        self._shape = shape
        self._ops = ops
        self._slot_bytes = slot_bytes

    def begin(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Announce copies by `gather`: `publish` then knows which pages changed meanwhile."""
        _check(lib.edgekv_begin_copies(self._handle, *self._moves(ids, slots)))

    def gather(self, ids: np.ndarray, slots: np.ndarray, stream: Stream) -> None:
        """Queue these copies. Raises TierError if the context left its device."""
        plane, shape = device_calls.plane(self._handle), self._shape
        if plane is None:
            raise TierError("the context has no device any more")
        places = Places(plane.layers, shape.n_layers, plane.arena, self._slot_bytes, shape.page_tokens, shape.pages_per_stream, plane.n_cells)
        self._ops.gather(places, moves_of(shape, ids, slots), stream)

    def fill(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Ask the next ubatch for these pages: a prompt brings all pages to the device, and leaves these in their slots."""
        _check(lib.edgekv_fill_pages(self._handle, *self._moves(ids, slots)))

    def filled(self, ids: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """bool [n] each: whether that ubatch is over, and which pages it left in their slots."""
        over, filled = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        _check(lib.edgekv_filled_pages(self._handle, *self._moves(ids, slots), ffi.from_buffer("bool *", over),
                                       ffi.from_buffer("bool *", filled)))
        return over, filled

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Enter copied pages in the page table; bool [n], False for those that changed since."""
        ok = np.zeros(len(ids), np.bool_)
        _check(lib.edgekv_publish_pages(self._handle, *self._moves(ids, slots), ffi.from_buffer("bool *", ok)))
        return ok

    def release(self, ids: np.ndarray) -> None:
        """Take pages out of the page table."""
        _check(lib.edgekv_release_pages(self._handle, *self._moves(ids)))

    def resize(self, n_slots: int) -> None:
        """Give the arena so many slots. Raises TierError if there is no memory."""
        try:
            _check(lib.edgekv_set_arena(self._handle, n_slots))
        except DoesNotFit as error:
            raise TierError(str(error)) from error

    def _moves(self, ids: np.ndarray, slots: np.ndarray | int = -1) -> tuple:
        return ffi.from_buffer("edgekv_move *", moves_of(self._shape, ids, slots)), len(ids)


def moves_of(shape: PageShape, ids: np.ndarray, slots: np.ndarray | int = -1) -> np.ndarray:
    """MOVE [n]: pages by id and the slots that they go to, -1 if they go to none."""
    moves = np.empty(len(ids), MOVE)
    moves["layer"], moves["head"], moves["page"] = shape.places(ids)
    moves["slot"] = slots
    return moves
