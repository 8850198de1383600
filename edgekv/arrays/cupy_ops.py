"""The operations on a CUDA device, by CuPy: the hot ones are kernels of ours (native/cuda/arrays.cu), on memory that libedgekv allocated.

Only `download` waits for the device. Only a context on a CUDA device imports this module, and only the constructor imports cupy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from edgekv.arrays import move
from edgekv.arrays.backend import install
from edgekv.arrays.ops import Array, Ops
from edgekv.arrays.order import Event, Later, Stream, both
from edgekv.arrays.rank import HostRanking, ListedRanking, Ranking, Top
from edgekv.arrays.topk import listed_largest
from edgekv.common.errors import CudaUnavailable, EdgeKVError, NativeError
from edgekv.pages.residency import Residency, State

KERNELS = ("ema", "clear", "search", "list", "gather_pages")
"""Names in the file of our kernels, behind "edgekv_"."""
_THREADS = 256
"""Threads of a block; the search kernels depend on this number."""
_GATHER_BLOCKS = 64
"""They saturate the link and leave most of the device to the ubatch."""

_QUESTION = np.dtype([("values", np.uint64), ("state", np.uint64), ("pins", np.uint64), *((name, np.int32) for name in (
    "pins_stride", "among", "n_heads", "n_pages", "end", "n", "smallest"))], align=True)
"""EdgekvQuestion of scores.cuh."""
_SEARCH_BYTES = 9 * 8 + 9 * 4 + 8 * 256 * 4 + 4
"""EdgekvSearch."""


class CupyOps(Ops):
    """CuPy, on the device `index` and the stream at the address `stream`, with the kernels of `folder`."""

    on_device = True

    def __init__(self, index: int, stream: int, runtime: int, folder: Path | None):
        super().__init__()
        try:
            self._load(index, stream, runtime, folder)
        except EdgeKVError:
            raise
        except Exception as error:  # cupy, its libraries and the compiler have many kinds of errors
            raise CudaUnavailable(f"CuPy cannot load EdgeKV's kernels on GPU {index} ({_first_line(error)}); {install(runtime)}") from error

    def _load(self, index: int, stream: int, runtime: int, folder: Path | None) -> None:
        self._runtime = runtime
        self.xp = self._cupy = cupy = _cupy(index, runtime)
        self.errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.memory.OutOfMemoryError)
        self._device = cupy.cuda.Device(index)
        self._in_flight: list[tuple[Event, np.ndarray]] = []
        with self._device:
            self._stream = cupy.cuda.Stream.from_external(_Borrowed(stream))
            self.ubatch_stream = _Stream(cupy, self._device, self._stream)
            module = cupy.RawModule(path=str(kernels(folder)))
            self._ema, self._clear, self._search, self._list, self._gather = (module.get_function(f"edgekv_{name}") for name in KERNELS)

    def __enter__(self) -> CupyOps:
        self._device.__enter__()
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)
        self._device.__exit__(*error)

    def need_xp(self, what: str) -> None:
        try:
            with self:
                self.xp.add(self.xp.zeros(1, np.float32), np.float32(1))
        except Exception as error:  # NVRTC or CUDA's headers are missing, or of another version
            raise CudaUnavailable(f"{what} runs on a GPU by functions that CuPy compiles there, and CuPy cannot ({_first_line(error)}): "
                                  f"{install(self._runtime)}, or choose one of ema, anchor and recent") from error

    def side_stream(self) -> Stream:
        with self._device:
            return _Stream(self._cupy, self._device, self._cupy.cuda.Stream(non_blocking=True))

    # ---- arrays --------------------------------------------------------------------------------------------------------------

    def view(self, address: int, dtype: np.dtype | type, shape: tuple[int, ...]) -> Array:
        dtype = np.dtype(dtype)
        if 0 in shape:
            return self.zeros(shape, dtype)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, n_bytes, None, self._device.id)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype | type) -> Array:
        with self:
            return self._cupy.zeros(shape, dtype)

    def upload(self, array: np.ndarray) -> Array:
        with self:
            return self._cupy.asarray(np.ascontiguousarray(array))  # through pinned memory: does not wait

    def download(self, array: Array) -> np.ndarray:
        with self:
            return array.get()

    # ---- what policies do ----------------------------------------------------------------------------------------------------

    def ema(self, scores: Array, mass: Array, end: int, new: np.float32, old: np.float32, least: float = 0.0) -> None:
        if end:
            self._per_page(self._ema, scores, end, scores, mass, np.int32(scores.shape[2]), np.int32(end), np.float32(new),
                           np.float32(old), np.float32(least))

    def clear(self, scores: Array, pages: np.ndarray) -> None:
        if len(pages):
            pages = self.upload(np.asarray(pages, np.int32))
            self._per_page(self._clear, scores, len(pages), scores, pages, np.int32(len(pages)), np.int32(scores.shape[2]))

    def _per_page(self, kernel: Callable, scores: Array, n: int, *arguments: object) -> None:
        with self:
            kernel((-(-n // _THREADS), scores.shape[0] * scores.shape[1]), (_THREADS,), arguments)

    # ---- what plans ask ------------------------------------------------------------------------------------------------------

    def rank(self, scores: Array | None, pins: np.ndarray | None, residency: Residency, n: int) -> Later[Ranking]:
        end = residency.n_used_end
        if scores is None or not end or n <= 0:
            return Later.now(HostRanking(None, pins, residency))  # needs no scores from the device
        state = self.upload(residency.state[:, :, :end])
        left_out = None if pins is None else self.upload(pins.view(np.uint8))
        worst = self._find(scores, end, n, state, State.RESIDENT, left_out, smallest=True)
        best = self._find(scores, end, n, state, State.HOME, left_out)
        return both(worst, best).then(lambda found: ListedRanking(found[1].top, found[0].top, found[0].n, found[0].mean))

    def top(self, values: Array, end: int, n: int, state: np.ndarray | None = None, among: State = State.HOME) -> Later[Top]:
        if not end or n <= 0:
            return Later.now(Top.none())
        on_device = None if state is None else self.upload(state[:, :, :end])
        return self._find(values, end, n, on_device, among).then(lambda found: found.ordered())

    def _find(self, values: Array, end: int, n: int, state: Array | None, among: State, pins: Array | None = None,
              smallest: bool = False) -> Later[_Found]:
        """Queue the search and the copy of its result to the host. Arguments as for `Ops.top`; pins: pages that are left out."""
        n_layers, n_heads, n_pages = values.shape
        n_blocks = max(1, min(512, n_layers * n_heads * end // (8 * _THREADS)))
        question = np.zeros(1, _QUESTION)
        question["values"] = values.data.ptr
        for name, array in (("state", state), ("pins", pins)):
            if array is not None:
                question[name] = array.data.ptr
        question["pins_stride"] = 0 if pins is None or pins.ndim == 1 else n_pages
        for name, value in (("among", among), ("n_heads", n_layers * n_heads), ("n_pages", n_pages), ("end", end), ("n", n),
                            ("smallest", smallest)):
            question[name] = value
        result = _result(n_blocks, n)
        with self:
            asked = self.upload(question.view(np.uint8))
            work = self._cupy.zeros(_SEARCH_BYTES + result.itemsize, np.uint8)
            at = {name: np.uint64(work.data.ptr + _SEARCH_BYTES + offset) for name, (_, offset, *_) in (result.fields or {}).items()}
            for step in range(8):
                self._search((n_blocks,), (_THREADS,), (asked, work, np.int32(step), at["n_asked"], at["sums"]))
            self._list((n_blocks,), (_THREADS,), (asked, work, at["n_listed"], at["ids"], at["values"]))
            copy = self._pinned(result.itemsize)
            work[_SEARCH_BYTES:].get(out=copy, blocking=False)
            done = self.ubatch_stream.record()
        self._in_flight = [(event, kept) for event, kept in self._in_flight if not event.done()]
        self._in_flight.append((done, copy))  # keeps the memory of a copy under way, even if no caller waits for it
        return Later(done, lambda: _Found(copy.view(result)[0], n))

    def _pinned(self, n_bytes: int) -> np.ndarray:
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes)

    # ---- what migration does -------------------------------------------------------------------------------------------------

    def gather(self, places: move.Places, moves: np.ndarray, stream: Stream) -> None:
        with self._device, stream.cupy:  # type: ignore[attr-defined]  # a stream of this device
            queued = self._cupy.asarray(np.ascontiguousarray(moves).view(np.int32))
            self._gather((_GATHER_BLOCKS,), (_THREADS,), (
                np.uint64(places.layers), queued, np.int32(len(moves)), np.uint64(places.arena), np.uint64(places.slot_bytes),
                np.int32(places.page_tokens), np.int32(places.n_cells), np.int32(places.pages_per_stream)))


# ---- what a search found --------------------------------------------------------------------------------------------------------


def _result(n_blocks: int, n: int) -> np.dtype:
    return np.dtype([("sums", np.float64, (n_blocks,)), ("n_asked", np.uint32, (n_blocks,)), ("n_listed", np.uint32),
                     ("ids", np.uint32, (n,)), ("values", np.float32, (n,))])


class _Found:
    """The listed pages, in any order, and the number and mean value of all pages that were searched."""

    def __init__(self, result: np.void, n: int):
        n_listed = min(int(result["n_listed"]), n)
        self.top = Top(result["ids"][:n_listed].astype(np.int64), result["values"][:n_listed].copy())
        self.n = int(result["n_asked"].sum())
        self.mean = float(result["sums"].sum() / self.n) if self.n else 0.0

    def ordered(self) -> Top:
        return self.top[listed_largest(self.top.values, self.top.ids, len(self.top))]


# ---- order ----------------------------------------------------------------------------------------------------------------------


class _Borrowed:
    """The native library's stream, by CUDA's stream protocol."""

    def __init__(self, address: int):
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address  # the protocol's version, and the cudaStream_t


class _Event:
    def __init__(self, event):
        self.cupy = event

    def done(self) -> bool:
        return bool(self.cupy.done)

    def wait(self) -> None:
        self.cupy.synchronize()


class _Stream:
    def __init__(self, cupy: ModuleType, device, stream):
        self._module = cupy
        self._device = device
        self.cupy = stream

    def record(self) -> Event:
        with self._device:
            event = self._module.cuda.Event(disable_timing=True)
            event.record(self.cupy)
        return _Event(event)

    def wait_for(self, event: Event) -> None:
        self.cupy.wait_event(event.cupy)  # type: ignore[attr-defined]  # an event of this device

    def synchronize(self) -> None:
        self.cupy.synchronize()


# ---- the library and the kernels ------------------------------------------------------------------------------------------------


def _cupy(index: int, runtime: int) -> ModuleType:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise CudaUnavailable("EdgeKV needs CuPy for a context on a GPU, and CuPy cannot be loaded "
                              f"({_first_line(error)}): {install(runtime)}") from None
    try:
        n_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise CudaUnavailable(f"CuPy {cupy.__version__} finds no GPU that it can use ({error}); install the CuPy for this driver: "
                              f"{install(runtime)}") from None
    if index >= n_devices:
        raise CudaUnavailable(f"this context runs on GPU {index}, and CuPy finds {n_devices} of them; set CUDA_VISIBLE_DEVICES "
                              "before the program starts, not later")
    return cupy


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def kernels(folder: Path | None) -> Path:
    """The file of our kernels, in GPU code: a build with CUDA has made it beside its libraries in `folder`. Raises NativeError."""
    name = "edgekv-arrays.fatbin"
    if folder is not None and (path := folder / name).is_file():
        return path
    raise NativeError(f"the GPU's kernels {name} are missing from the installed package; reinstall it: pip install --force-reinstall edgekv")
