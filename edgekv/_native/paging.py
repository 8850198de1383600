"""Selection, pins and the arrays by page of a context through cffi."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, selection
from edgekv._native.native_arrays import _view
from edgekv.arrays.move import MOVE
from edgekv.config import KvOptions

SELECTED = np.dtype([(name, np.float64) for name in ("n_tokens", "n_visible", "n_read", "n_certain", "n_hits", "mass", "mass_hits", "error",
                                                     "n_errors", "covered", "n_covered")])
"""One edgekv_selected: sums since the context was attached, of one KV head."""


class PageArrays(Struct, frozen=True):
    """Arrays live until the context is freed."""

    shape: tuple[int, int, int]
    """[layer, kv_head, page] of the arrays by page."""
    slots: np.ndarray
    """int32 [layer, kv_head, page]: the page table, -1 if a page is only in home."""
    newest: np.ndarray
    """int32 [page]: newest position in the page, -1 if it is empty."""
    dropped: np.ndarray | None
    """uint8 [shape], mode evict: not zero if the head does not attend the page. None on a device."""
    n_slots: int
    slot_bytes: int


def page_arrays(handle: Handle) -> PageArrays:
    out = ffi.new("edgekv_page_arrays *")
    _check(lib.edgekv_get_page_arrays(handle, out))
    shape = (out.n_layers, out.n_heads, out.n_pages)
    return PageArrays(shape, _view(out.slots, np.int32, shape), _view(out.newest, np.int32, (out.n_pages,)),
                      _view(out.dropped, np.uint8, shape) if out.dropped != ffi.NULL else None, out.n_slots, out.slot_bytes)


def set_selection(handle: Handle, options: KvOptions) -> None:
    """Set what the next ubatch reads."""
    _check(lib.edgekv_set_selection(handle, ffi.new("edgekv_selection *", selection(options))))


def set_resolutions(handle: Handle, resolutions: np.ndarray | None) -> None:
    """From the next ubatch on, sample each hooked layer's KV head at its own resolution: float32 [hooked layer, kv_head], 0 for the
    selection's; None: the selection's for all. Decoding thread. Raises ConfigError for another shape or an invalid resolution."""
    if resolutions is None:
        _check(lib.edgekv_set_resolutions(handle, ffi.NULL, 0, 0))
        return
    resolutions = np.ascontiguousarray(resolutions, np.float32)
    _check(lib.edgekv_set_resolutions(handle, ffi.from_buffer("float const *", resolutions), *resolutions.shape))


def set_pins(handle: Handle, spans: Sequence[tuple[int, int, int]]) -> None:
    """Spans (seq_id, first position, last position) that mode sparse always reads, in place of those before; their tokens may come later.
    Raises ConfigError for a sequence or positions that there cannot be. Decoding thread."""
    _check(lib.edgekv_set_pins(handle, ffi.new("edgekv_span[]", list(spans)), len(spans)))


def limit_arena(handle: Handle, n_slots: int) -> None:
    """Empty the arena on a device and give back its memory beyond so many slots; while nothing decodes, with no copy under way."""
    _check(lib.edgekv_limit_arena(handle, n_slots))


def set_hot_rows(handle: Handle, n_bytes: int) -> None:
    """Memory for copies of the rows that are read most lately; 0: none. With K and V in a file also a second file, in which a head's rows lie together;
    on a device a part of the arena, behind the slots in use. While nothing decodes. Raises NativeError if K and V lie in memory and there is no device,
    DoesNotFit if there is no memory or no such file (`core.home_failure`)."""
    _check(lib.edgekv_set_hot_rows(handle, n_bytes))


def selected(handle: Handle, n_layers: int, n_heads: int, sequence: int | None = None) -> np.ndarray:
    """SELECTED [layer, kv_head]: a copy. sequence: None: all; else see edgekv_get_selected."""
    out = np.zeros((n_layers, n_heads), SELECTED)
    if out.size:
        lib.edgekv_get_selected(handle, -1 if sequence is None else sequence, ffi.from_buffer("edgekv_selected *", out))
    return out


def drop_pages(handle: Handle, moves: np.ndarray) -> None:
    """From now on these heads do not attend these pages (MOVE [n], slots are not looked at), in mode evict, until their cells change."""
    _check(lib.edgekv_drop_pages(handle, ffi.from_buffer("edgekv_move *", np.ascontiguousarray(moves, MOVE)), len(moves)))


def free_pages(handle: Handle, pages: np.ndarray) -> int:
    """Empty the cells of these pages (int [n]), of all layers and heads; how many cells that were."""
    pages = np.ascontiguousarray(pages, np.int32)
    n_cells = ffi.new("int *")
    _check(lib.edgekv_free_pages(handle, ffi.from_buffer("int32_t *", pages), len(pages), n_cells))
    return n_cells[0]


def free_cells(handle: Handle, cells: np.ndarray) -> int:
    """Empty these cells (int [n], counted as `PageShape` counts them), of all layers and heads; how many were not empty."""
    cells = np.ascontiguousarray(cells, np.int32)
    n_cells = ffi.new("int *")
    _check(lib.edgekv_free_cells(handle, ffi.from_buffer("int32_t *", cells), len(cells), n_cells))
    return n_cells[0]


def last_rows(handle: Handle, layer: int, head: int, token: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a query token of the last ubatch read in one KV head, with the option `keep_rows`: int32 [n] cells of stream 0, ascending,
    and float32 [n] their weights; none where it had no such token or attended everything. Raises ConfigError for a layer, head or token that
    there cannot be."""
    n = ffi.new("int *")
    _check(lib.edgekv_last_rows(handle, layer, head, token, ffi.NULL, ffi.NULL, 0, n))
    cells, weights = np.zeros(n[0], np.int32), np.zeros(n[0], np.float32)
    out = ffi.from_buffer("int32_t *", cells), ffi.from_buffer("float *", weights)
    _check(lib.edgekv_last_rows(handle, layer, head, token, *out, len(cells), n))
    return cells, weights
