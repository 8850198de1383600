"""What a context observes, holds and stores, as NumPy arrays over native memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from edgekv._native._core import ffi, lib
from edgekv._native.core import GGML_TYPES, Handle, _check, _type_name
from edgekv.common.errors import NativeError


def _view(pointer, dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> np.ndarray:
    """A read-only array over native memory."""
    dtype = np.dtype(dtype)
    if 0 in shape:
        return np.zeros(shape, dtype)
    if strides is None:
        n_bytes = int(np.prod(shape)) * dtype.itemsize
    else:
        n_bytes = sum((n - 1) * stride for n, stride in zip(shape, strides)) + dtype.itemsize
    view = np.ndarray(shape, dtype, ffi.buffer(pointer, n_bytes), strides=strides)
    view.flags.writeable = False
    return view


class RunSums(Struct, frozen=True):
    """The sums of native code since the last run of the policy ended: counts of ubatches and tokens, and pages that changed."""

    mass_max: np.ndarray
    mass_sum: np.ndarray
    pages_per_stream: int
    page_tokens: int
    n_ubatches: int
    n_ubatches_hooked: int
    n_tokens: int
    n_tokens_hooked: int
    n_tokens_observed: int  # the tokens whose mass this is; 0: the mass is zero
    n_tokens_prompt: int  # tokens of ubatches that held a prompt's
    changed: np.ndarray
    newest: int
    ends_run: bool  # the newest ubatch was the last of its run: the next one begins at zero
    n_refused: int  # layers that stock nodes attend, because there is no memory for ours
    streams: np.ndarray  # int32 [stream, 3]: tokens, those observed, those of a prompt; empty: there is one stream


class RunReader:
    """Reads the observation of one context; the arrays over its mass are made once, because their memory stays in place: by `view(address,
    dtype, shape)`, if they lie on a device."""

    def __init__(self, handle: Handle, view: Callable[[int, type, tuple[int, ...]], Any] | None = None):
        self._handle = handle
        self._out = out = ffi.new("edgekv_observation *")
        _check(lib.edgekv_get_observation(handle, out))
        shape = (out.n_layers, out.n_heads, out.n_pages)
        mass = [_view(one, np.float32, shape) if view is None else view(int(ffi.cast("uintptr_t", one)), np.float32, shape)
                for one in (out.mass_max, out.mass_sum)]
        self._mass = mass[0], mass[1]

    def read(self) -> RunSums:
        """Attention mass of the run so far: float32 [layer, kv_head, page] views that live until the next ubatch."""
        _check(lib.edgekv_get_observation(self._handle, out := self._out))
        return RunSums(*self._mass, out.pages_per_stream, out.page_tokens, out.n_ubatches, out.n_ubatches_hooked, out.n_tokens, out.n_tokens_hooked,
                       out.n_tokens_observed, out.n_tokens_prompt, _ints(out.changed, out.n_changed), out.newest, bool(out.ends_run),
                       out.n_refused, _ints(out.streams, 3 * out.n_streams).reshape(-1, 3))


def _ints(first: Any, n: int) -> np.ndarray:
    return np.frombuffer(ffi.buffer(first, 4 * n), np.int32) if n else np.empty(0, np.int32)


def run_so_far(handle: Handle) -> RunSums:
    """The sums of a context's run so far, read once."""
    return RunReader(handle).read()


class NativeCells(Struct, frozen=True):
    n_cells: int
    n_stream: int
    n_used: int
    used_end: int
    positions: np.ndarray
    sequence_bits: np.ndarray
    changed: np.ndarray
    now: int
    labels: np.ndarray
    copied: tuple[int, int]  # how often another stream's cells replaced all of these, and that stream, the last time


def cells(handle: Handle, stream: int) -> NativeCells:
    out = ffi.new("edgekv_cells *")
    _check(lib.edgekv_get_cells(handle, stream, out))
    return NativeCells(out.n_cells, out.n_stream, out.n_used, out.used_end, _view(out.pos, np.int32, (out.n_cells,)),
        _view(out.seq, np.uint64, (out.n_cells, out.n_seq_words)), _view(out.changed, np.uint64, (out.n_cells,)), out.now,
        _view(out.labels, np.uint8, (out.n_cells,)), (out.n_copied, out.copied_from))


Q8_0_BLOCK = np.dtype([("scale", np.float16), ("codes", np.int8, 32)])
"""One q8_0 block: 32 values as scale * codes."""

Q4_0_BLOCK = np.dtype([("scale", np.float16), ("codes", np.uint8, 16)])
"""One q4_0 block: 32 values as scale * (code - 8), the codes of values i and i + 16 in the low and high four bits of byte i."""


def rows(handle: Handle, il: int, value: bool) -> np.ndarray:
    """K or V of a layer in place: [stream, cell, kv_head, head_dim] float16, or [stream, cell, kv_head, head_dim / 32] of
    Q8_0_BLOCK or Q4_0_BLOCK."""
    out = ffi.new("edgekv_rows *")
    _check(lib.edgekv_get_rows(handle, il, value, out))
    kind = GGML_TYPES.get(out.type)
    dtype: np.dtype
    if kind == "f16":
        dtype, per_row = np.dtype(np.float16), out.head_dim
    elif kind == "f32":
        dtype, per_row = np.dtype(np.float32), out.head_dim
    elif kind in ("q8_0", "q4_0"):
        dtype, per_row = Q8_0_BLOCK if kind == "q8_0" else Q4_0_BLOCK, out.head_dim // 32
    else:
        raise NativeError(f"rows of type {_type_name(out.type)} cannot be seen as an array; f16, f32, q8_0 and q4_0 can")
    return _view(out.data, dtype, (out.n_stream, out.n_cells, out.n_heads, per_row),
                 (out.stride_stream, out.stride_cell, out.stride_head, dtype.itemsize))
