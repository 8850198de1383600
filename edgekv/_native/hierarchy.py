"""Selection, page table and arena of a context through cffi."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, _view, selection
from edgekv.config import KvOptions
from edgekv.kernels.move import MOVE
from edgekv.kernels.select import Selection

SELECTED = np.dtype([(name, np.float64) for name in ("n_tokens", "n_visible", "n_selected", "n_hits", "mass", "mass_hits", "coverage",
                                                     "n_fallbacks")])
"""One edgekv_selected: sums since the context was attached, of one KV head."""


@dataclass(frozen=True)
class NativeHierarchy:
    """Arrays live until the context is freed."""

    shape: tuple[int, int, int]
    """[row, kv_head, page] of the arrays by page."""
    priority: int
    """Address, on the device that the data plane runs on, of float32 [shape], writable between ubatches: what the policy says a page
    is worth."""
    pinned: int
    """The same of uint8 [shape]."""
    slots: np.ndarray
    """int32 [row, kv_head, page]: the page table, -1 where a page is only in home."""
    newest: np.ndarray
    """int32 [page]: newest position in the page, -1 where it is empty."""
    dropped: np.ndarray | None
    """uint8 [shape], mode evict: not zero where the head does not attend the page. None on a device."""
    estimates: np.ndarray | None
    """float32 [shape]: attention mass that the sketches estimated for the last token, summed over the query heads; with
    `KvOptions.keep_estimates`. None on a device."""
    n_slots: int
    slot_bytes: int


def hierarchy(handle: Handle) -> NativeHierarchy:
    out = ffi.new("edgekv_hierarchy *")
    _check(lib.edgekv_get_hierarchy(handle, out))
    shape = (out.n_rows, out.n_heads, out.n_pages)
    priority, pinned = (int(ffi.cast("uintptr_t", pointer)) for pointer in (out.priority, out.pinned))
    return NativeHierarchy(shape, priority, pinned, _view(out.slots, np.int32, shape), _view(out.newest, np.int32, (out.n_pages,)),
                           _view(out.dropped, np.uint8, shape) if out.dropped != ffi.NULL else None,
                           _view(out.estimates, np.float32, shape) if out.estimates != ffi.NULL else None,
                           out.n_slots, out.slot_bytes)


def set_selection(handle: Handle, options: KvOptions) -> None:
    _check(lib.edgekv_set_selection(handle, ffi.new("edgekv_selection *", selection(options))))


def limit_arena(handle: Handle, n_slots: int) -> None:
    """Empty the arena on a device and give back its memory beyond so many slots; while nothing decodes, with no copy under way."""
    _check(lib.edgekv_limit_arena(handle, n_slots))


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


def begin_copies(handle: Handle, moves: np.ndarray) -> None:
    """Tell that pages (MOVE [n]) are copied from now on, by the caller's own kernels: `publish_pages` then knows which changed."""
    _check(lib.edgekv_begin_copies(handle, *_moves(moves)))


def fill_pages(handle: Handle, moves: np.ndarray) -> None:
    """In place of copies: if the next ubatch is a prompt, which brings all pages to the device, it leaves these (MOVE [n]) in their
    slots too."""
    _check(lib.edgekv_fill_pages(handle, *_moves(moves)))


def filled_pages(handle: Handle, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] each: whether that ubatch is over, and whether it left the page in its slot; what it did not is to be copied."""
    over, filled = np.zeros(len(moves), np.bool_), np.zeros(len(moves), np.bool_)
    _check(lib.edgekv_filled_pages(handle, *_moves(moves), ffi.from_buffer("bool *", over), ffi.from_buffer("bool *", filled)))
    return over, filled


def publish_pages(handle: Handle, moves: np.ndarray) -> np.ndarray:
    """Enter copied pages in the page table; bool [n], False for those that changed since they were copied."""
    ok = np.zeros(len(moves), np.bool_)
    _check(lib.edgekv_publish_pages(handle, *_moves(moves), ffi.from_buffer("bool *", ok)))
    return ok


def release_pages(handle: Handle, moves: np.ndarray) -> None:
    """Take pages out of the page table."""
    _check(lib.edgekv_release_pages(handle, *_moves(moves)))


def drop_pages(handle: Handle, moves: np.ndarray) -> None:
    """From now on these heads do not attend these pages (MOVE [n], slots are not looked at), in mode evict, until their cells change."""
    _check(lib.edgekv_drop_pages(handle, *_moves(moves)))


def free_pages(handle: Handle, pages: np.ndarray) -> int:
    """Empty the cells of these pages (int [n]), of all layers and heads; how many cells that were."""
    pages = np.ascontiguousarray(pages, np.int32)
    n_cells = ffi.new("int *")
    _check(lib.edgekv_free_pages(handle, ffi.from_buffer("int32_t *", pages), len(pages), n_cells))
    return n_cells[0]


def last_pages(handle: Handle, row: int, head: int, token: int = 0) -> np.ndarray:
    """int32 [n]: the pages that a query token of the last ubatch attended in one KV head, ascending; none where it had no such token
    or did not select. Raises ConfigError for a row, head or token that there cannot be."""
    n = ffi.new("int *")
    _check(lib.edgekv_last_pages(handle, row, head, token, ffi.NULL, 0, n))
    pages = np.zeros(n[0], np.int32)
    _check(lib.edgekv_last_pages(handle, row, head, token, ffi.from_buffer("int32_t *", pages), len(pages), n))
    return pages


@dataclass(frozen=True)
class NativeCheck:
    n_strips_wrong: int
    n_strips: int
    n_slots_wrong: int
    n_slots: int


def check(handle: Handle) -> NativeCheck:
    """Compare every sketch with one built anew, and every slot in the page table with home."""
    out = lib.edgekv_check(handle)
    return NativeCheck(out.n_strips_wrong, out.n_strips, out.n_slots_wrong, out.n_slots)


def select(estimates: np.ndarray | None, standing: np.ndarray, priority: np.ndarray, pinned: np.ndarray, n_budget: int,
           threshold: float = -1.0, coverage: float = 0.0, floor: float = 0.0, blend: float = 0.5, isa: int = 0) -> Selection:
    """`edgekv.kernels.select.select`, by the kernel of an instruction set."""
    arrays = [np.ascontiguousarray(a, t) for a, t in ((standing, np.float32), (priority, np.float32), (pinned, np.uint8))]
    scores = None if estimates is None else np.ascontiguousarray(estimates, np.float32)
    group, n = 1 if scores is None else len(scores), len(standing)
    pages, covered, missed = np.zeros(n, np.int32), np.zeros(group, np.float32), np.zeros(n, np.float32)

    def pointer(kind: str, array: np.ndarray | None):
        return ffi.NULL if array is None else ffi.from_buffer(f"{kind} *", array)

    args = ffi.new("edgekv_select_args *", {
        "n_pages": n, "group": group, "estimates": pointer("float", scores), "standing": pointer("float", arrays[0]),
        "priority": pointer("float", arrays[1]), "pinned": pointer("uint8_t", arrays[2]), "n_budget": n_budget,
        "threshold": threshold, "coverage": coverage, "floor": floor, "blend": blend, "pages": pointer("int32_t", pages),
        "covered": pointer("float", covered), "missed": pointer("float", missed)})
    _check(lib.edgekv_select(args, isa))
    return Selection(pages[: args.n_taken], covered, missed, bool(args.fell_back))
