"""Selection, page table and arena of a context through cffi."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, _view, selection
from edgekv.config import KvOptions

MOVE = np.dtype([("row", np.int32), ("head", np.int32), ("page", np.int32), ("slot", np.int32)])
"""One edgekv_move."""

SELECTED = np.dtype([(name, np.float64) for name in ("n_steps", "n_visible", "n_selected", "n_hits", "mass", "mass_hits", "coverage",
                                                     "n_fallbacks")])
"""One edgekv_selected: sums since the context was attached, of one KV head."""


@dataclass(frozen=True)
class NativeHierarchy:
    """Arrays live until the context is freed."""

    priority: np.ndarray
    """float32 [row, kv_head, page], writable between steps: what the policy says a page is worth."""
    pinned: np.ndarray
    """uint8 [row, kv_head, page], writable between steps."""
    slots: np.ndarray
    """int32 [row, kv_head, page]: the page table, -1 where a page is only in home."""
    newest: np.ndarray
    """int32 [page]: newest position in the page, -1 where it is empty."""
    n_slots: int
    slot_bytes: int


def hierarchy(handle: Handle) -> NativeHierarchy:
    out = ffi.new("edgekv_hierarchy *")
    _check(lib.edgekv_get_hierarchy(handle, out))
    shape = (out.n_rows, out.n_heads, out.n_pages)
    priority, pinned = (_view(pointer, dtype, shape) for pointer, dtype in ((out.priority, np.float32), (out.pinned, np.uint8)))
    for array in (priority, pinned):
        array.flags.writeable = True
    return NativeHierarchy(priority, pinned, _view(out.slots, np.int32, shape), _view(out.newest, np.int32, (out.n_pages,)),
                           out.n_slots, out.slot_bytes)


def set_selection(handle: Handle, options: KvOptions) -> None:
    _check(lib.edgekv_set_selection(handle, ffi.new("edgekv_selection *", selection(options))))


def set_arena(handle: Handle, n_slots: int) -> None:
    _check(lib.edgekv_set_arena(handle, n_slots))


def selected(handle: Handle, n_rows: int, n_heads: int) -> np.ndarray:
    """SELECTED [row, kv_head]: a copy."""
    out = np.zeros((n_rows, n_heads), SELECTED)
    if out.size:
        lib.edgekv_get_selected(handle, ffi.from_buffer("edgekv_selected *", out))
    return out


def _moves(moves: np.ndarray):
    return ffi.from_buffer("edgekv_move *", np.ascontiguousarray(moves, MOVE)), len(moves)


def copy_pages(handle: Handle, moves: np.ndarray) -> None:
    """Copy pages (MOVE [n]) from home into their slots; nobody reads them there yet."""
    _check(lib.edgekv_copy_pages(handle, *_moves(moves)))


def publish_pages(handle: Handle, moves: np.ndarray) -> np.ndarray:
    """Enter copied pages in the page table; bool [n], False for those that changed since they were copied."""
    ok = np.zeros(len(moves), np.bool_)
    _check(lib.edgekv_publish_pages(handle, *_moves(moves), ffi.from_buffer("bool *", ok)))
    return ok


def release_pages(handle: Handle, moves: np.ndarray) -> None:
    """Take pages out of the page table."""
    _check(lib.edgekv_release_pages(handle, *_moves(moves)))


def last_pages(handle: Handle, row: int, head: int, token: int = 0) -> np.ndarray:
    """int32 [n]: the pages that the last step attended, ascending."""
    n = lib.edgekv_last_pages(handle, row, head, token, ffi.NULL, 0)
    pages = np.zeros(n, np.int32)
    lib.edgekv_last_pages(handle, row, head, token, ffi.from_buffer("int32_t *", pages), n)
    return pages
