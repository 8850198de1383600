"""K and V of whole tokens, and snapshots, through cffi: taken out of a context's home, and put back."""

import itertools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, _keep, raising
from edgekv.common.errors import NativeError

log = logging.getLogger("edgekv")


def token_bytes(handle: Handle) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of a token's row of K and of V in each layer that keeps any. Raises NativeError if the context keeps something else than rows
    and snapshots."""
    n_layer = lib.edgekv_n_layer(handle)
    k_bytes, v_bytes = ffi.new("size_t[]", n_layer), ffi.new("size_t[]", n_layer)
    _check(lib.edgekv_token_bytes(handle, k_bytes, v_bytes))
    kept = [il for il in range(n_layer) if k_bytes[il] or v_bytes[il]]
    return tuple(int(k_bytes[il]) for il in kept), tuple(int(v_bytes[il]) for il in kept)


def describe(handle: Handle, adapter: int, into: Callable[[bytes], None]) -> None:
    """Tell `into`, in pieces, what K and V depend on besides the weights in the model's file and the tokens; with the LoRA adapter at an
    address at scale 1, with none at 0. Raises as `token_bytes`."""
    user = ffi.new_handle(into)
    with raising():  # a signal's handler may run inside
        _check(lib.edgekv_describe(handle, adapter, lib.edgekv_py_described, user))


@ffi.def_extern(onerror=_keep)
def edgekv_py_described(user, data, n):
    ffi.from_handle(user)(ffi.buffer(data, n)[:])


def read_tokens(handle: Handle, stream: int, cells: np.ndarray, n_bytes: int) -> np.ndarray:
    """The block of the tokens in `cells` (uint32 [n]) of a stream: uint8 [n_bytes], for each layer K rows and then V rows."""
    block = np.empty(n_bytes, np.uint8)
    _check(lib.edgekv_read_tokens(handle, stream, _cells(cells), len(cells), ffi.cast("void *", block.ctypes.data)))
    return block


class HeldTokens:
    """Computed tokens in `cells` (uint32 [n]) of a stream: whatever would move or remove them, or free the context, first calls `needed`, and waits
    until they are released. Or, where the tokens leave their cells, the rows are parked: they leave with the memory that they have, `needed` is told, and
    they can be read until the release. Made by the thread that decodes; then any thread's, one at a time. Raises NativeError if rows are not in host
    memory."""

    parks = True
    """Whether the rows may be parked; of one that is held: whether this machine, the cache and its cells allow it."""

    def __init__(self, handle: Handle, stream: int, cells: np.ndarray, parks: bool = True):
        """parks: they are worth being parked."""
        out, number = ffi.new("edgekv_hold **"), next(_numbers_of_holds)
        _check(lib.edgekv_hold_tokens(handle, stream, _cells(cells), len(cells), parks and self.parks, lib.edgekv_py_needed, ffi.cast("void *", number), out))
        self._hold = ffi.gc(out[0], lib.edgekv_free_hold)
        self.n = len(cells)
        self.parks = bool(lib.edgekv_may_park(self._hold))
        self.parked = False
        """The rows lie in no cells. The decoding thread changes it."""
        self.needed: Callable[..., object] | None = None
        """Is to release them soon, unless they are parked; its parameter, time.monotonic() when the wait for room began. None: somebody does so anyway."""
        _holds[number] = self

    def take_out(self, *since: float) -> None:
        """Call `needed`. After an exception they are released, or the decoding thread would wait for ever."""
        try:
            if self.needed is not None:
                self.needed(*since)
        except BaseException:
            log.exception("rows whose cells a slot needs could not be kept")
            self.release()

    def read(self, layers: range, n_bytes: int) -> np.ndarray:
        """The part of their block that some of the layers with a cache have: uint8 [n_bytes]."""
        if self._hold is None:
            raise NativeError("the tokens are no longer held")
        rows = np.empty(n_bytes, np.uint8)
        _check(lib.edgekv_read_held_tokens(self._hold, layers.start, layers.stop, ffi.cast("void *", rows.ctypes.data)))
        return rows

    def release(self) -> None:
        self._hold, self.parked = None, False  # freed with the last reference: native code may be reading it on another thread


_numbers_of_holds = itertools.count(1)
_holds: weakref.WeakValueDictionary[int, HeldTokens] = weakref.WeakValueDictionary()


@ffi.def_extern()
def edgekv_py_needed(users, n, parked):
    since = (time.monotonic(),) if parked else ()
    for i in range(n):
        held = _holds.get(int(ffi.cast("uintptr_t", users[i])))
        if held is not None:  # else it is being released
            held.parked = parked
            held.take_out(*since)


def must_copy(handle: Handle, seq_id: int, held: Sequence[tuple[HeldTokens, bool]]) -> list[HeldTokens]:
    """Those whose rows somebody must copy before a sequence loses tokens, of each all (true) or some: they lie in its cells, in no other sequence's, and
    would not be parked. Decoding thread."""
    those = [(one, one._hold, whole) for one, whole in held if one._hold is not None]
    whole, copied = np.array([whole for *_, whole in those], np.uint8), np.zeros(len(those), np.uint8)
    _check(lib.edgekv_must_copy(handle, seq_id, [hold for _, hold, _ in those], len(those), ffi.from_buffer("uint8_t[]", whole),
                                ffi.cast("uint8_t *", copied.ctypes.data)))
    return [one for (one, *_), is_copied in zip(those, copied) if is_copied]


def unpark(handle: Handle, stream: int, held: Sequence[HeldTokens], cells: Sequence[np.ndarray]) -> list[bool]:
    """Bring parked rows back into cells that were placed for them (uint32 [n] each), with their memory. False: they stay parked, because their pages do
    not fit there. Decoding thread."""
    holds, at, back = [one._hold for one in held], np.concatenate([*cells, np.empty(0, np.uint32)]), np.zeros(len(held), np.uint8)
    _check(lib.edgekv_unpark_tokens(handle, stream, holds, len(holds), _cells(at), len(at), ffi.cast("uint8_t *", back.ctypes.data)))
    for one, is_back in zip(held, back):
        one.parked = not is_back
    return back.astype(bool).tolist()


def keeps_snapshots(handle: Handle) -> bool:
    return bool(lib.edgekv_keeps_snapshots(handle))


def read_snapshot(handle: Handle, seq_id: int) -> np.ndarray:
    """A sequence's data besides rows, after its newest token: uint8 [bytes]. Raises NativeError if the context keeps only rows."""
    n_bytes = ffi.new("size_t *")
    _check(lib.edgekv_read_snapshot(handle, seq_id, ffi.NULL, 0, n_bytes))
    snapshot = np.empty(n_bytes[0], np.uint8)
    _check(lib.edgekv_read_snapshot(handle, seq_id, ffi.cast("void *", snapshot.ctypes.data), snapshot.nbytes, n_bytes))
    return snapshot


def write_snapshot(handle: Handle, seq_id: int, position: int, snapshot: np.ndarray) -> None:
    """Put in a snapshot (uint8 [bytes]) that was read before the token at `position`. Raises NativeError if it is of another context, and the sequence is
    empty then."""
    assert snapshot.dtype == np.uint8 and snapshot.flags.c_contiguous
    _check(lib.edgekv_write_snapshot(handle, seq_id, position, ffi.cast("void *", snapshot.ctypes.data), snapshot.nbytes))


def add_tokens(handle: Handle, seq_id: int, first_position: int, labels: np.ndarray, tokens: np.ndarray | None, at: np.ndarray | None,
               parked: Sequence[tuple[int, HeldTokens]] = ()) -> np.ndarray:
    """Place n more tokens of a sequence with `labels`, uint8 [n]; their cells, uint32 [n]. tokens: int32 [n], their numbers, or None. at: int32 [3, n],
    their positions, lines and columns, or None if positions count up. Their rows must be written before the next decode, or come while it computes.
    parked: (first of n tokens, rows that are to come back there with their memory: `unpark`). Raises DoesNotFit if too few cells are empty, or too little
    memory is free for the others."""
    n = len(labels)
    cells = np.empty(n, np.uint32)
    assert labels.dtype == np.uint8 and labels.flags.c_contiguous
    assert tokens is None or tokens.shape == (n,)
    assert at is None or at.shape == (3, n)
    _check(lib.edgekv_add_tokens(handle, seq_id, first_position, n, _numbers(tokens), _numbers(at), ffi.cast("uint8_t *", labels.ctypes.data),
                                 [one._hold for _, one in parked], [i for i, _ in parked], len(parked), _cells(cells)))
    return cells


def in_image(handle: Handle, stream: int, cells: np.ndarray) -> np.ndarray:
    """int32 [2, n]: lines and columns of the tokens in cells (uint32 [n]) of a stream; zeros if positions have one dimension."""
    places = np.empty((2, len(cells)), np.int32)
    _check(lib.edgekv_in_image(handle, stream, _cells(cells), len(cells), _numbers(places[0]), _numbers(places[1])))
    return places


class BlockRows(NamedTuple):
    """Tokens of a block, behind its first `skip`, and where their rows go."""

    cells: np.ndarray
    """uint32 [n]."""
    skip: int
    n_block: int
    """Tokens of the block."""
    rows: np.ndarray
    """Of the whole block, in the layers that are written: uint8 [bytes]."""


def write_tokens(handle: Handle, stream: int, blocks: Sequence[BlockRows], layers: range) -> None:
    """Write rows in some of the layers with a cache. Also by the thread that brings rows while a decode waits for them."""
    native = [{"cells": _cells(of.cells), "n": len(of.cells), "skip": of.skip, "n_block": of.n_block, "rows": ffi.cast("void *", of.rows.ctypes.data)}
              for of in blocks]
    _check(lib.edgekv_write_tokens(handle, stream, ffi.new("edgekv_block_rows[]", native), len(native), layers.start, layers.stop))


def labels_in_place(handle: Handle, stream: int) -> np.ndarray:
    """uint8 [cell]: the labels of a stream's cells, to be written while nothing decodes. It lives as long as the context."""
    cells = ffi.new("edgekv_cells *")
    _check(lib.edgekv_get_cells(handle, stream, cells))
    return np.frombuffer(ffi.buffer(cells.labels, cells.n_cells), np.uint8)


class Arrivals:
    """Rows that come while the next decode computes. Everything but `came` and `failed` is the decoding thread's."""

    def __init__(self, handle: Handle):
        self._handle = handle

    @property
    def can_wait(self) -> bool:
        """A decode can wait for its rows layer by layer: on the processor, where nodes of ours serve all layers."""
        return bool(lib.edgekv_can_wait_for_rows(self._handle))

    def expect(self) -> None:
        """Make the next decode wait for rows that a thread brings (`write_tokens`, then `came`, first layers first). It does not end before all have
        come. After `failed` it raises, and has computed nothing."""
        _check(lib.edgekv_expect_rows(self._handle))

    def came(self, end_layer: int) -> None:
        """The rows of the layers with a cache before `end_layer` are there."""
        lib.edgekv_rows_came(self._handle, end_layer)

    def failed(self) -> None:
        lib.edgekv_rows_failed(self._handle)

    def expect_none(self) -> None:
        """End `expect`: the thread that brought rows is done, whether they came or failed."""
        _check(lib.edgekv_expect_no_rows(self._handle))


def _numbers(numbers: np.ndarray | None):
    if numbers is None:
        return ffi.NULL
    assert numbers.dtype == np.int32 and numbers.flags.c_contiguous
    return ffi.cast("int32_t *", numbers.ctypes.data)


def _cells(cells: np.ndarray):
    assert cells.dtype == np.uint32 and cells.flags.c_contiguous
    return ffi.cast("uint32_t *", cells.ctypes.data)


def set_prompts(handle: Handle, seq_ids: Sequence[int]) -> None:
    """Read tokens of these sequences as a prompt's until the next call. Decoding thread."""
    _check(lib.edgekv_set_prompts(handle, ffi.new("int32_t[]", list(seq_ids)), len(seq_ids)))
