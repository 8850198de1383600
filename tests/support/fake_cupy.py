"""As much of cupy as edgekv uses, without a GPU: our own kernels run on the emulated device, everything else is NumPy.

It is stricter than cupy. An array never becomes a NumPy array by itself, nor does a NumPy array become one of the device's, so that a
copy over the link that nobody asked for is an error; work outside of a stream is one too. Streams are queues: what is queued runs when
somebody waits for it, or a little at a time when somebody asks whether it is done (`Device.eager`: at once).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.native_build import NATIVE


@pytest.fixture(scope="session")
def emulated_kernels(emulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the kernels on the emulated device."""
    library = tmp_path_factory.mktemp("kernels") / "libemulated-kernels.so"
    folders = [NATIVE, NATIVE / "src", NATIVE / "include"]
    done = subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-shared", *(f"-I{path}" for path in folders),
                           str(Path(__file__).with_name("emulated_kernels.cpp")), str(emulator), f"-Wl,-rpath,{emulator.parent}", "-o", str(library)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return library


class DeviceError(RuntimeError):
    """A CUDARuntimeError."""


# ---- streams ------------------------------------------------------------------------------------------------------------------


class Batch(list):
    """Work that is done at once."""

    def __call__(self) -> bool:
        for work in self:
            work()
        return True


class Stream:
    current: list[Stream] = []

    def __init__(self, device: Device, address: int = 0):
        self.device = device
        self.address = address
        self.queue: list[Callable[[], bool]] = []  # each says whether it is over
        self.broken = ""

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert Stream.current.pop() is self, "streams are left in another order than they were entered"

    def push(self, work: Callable[[], object]) -> None:
        self.queue.append(lambda: (work(), True)[1])
        if self.device.eager:
            self.synchronize()

    def push_small(self, work: Callable[[], object]) -> None:
        """Queue array arithmetic. A policy has dozens of such operations in a step: consecutive ones count as one."""
        if not self.device.compiles:
            raise RuntimeError('Failure finding "libnvrtc.so.13": No such file\n  searched in: ...')
        self.append_small(work)
        if self.device.eager:
            self.synchronize()

    def append_small(self, work: Callable[[], object]) -> None:
        if not self.queue or not isinstance(self.queue[-1], Batch):
            self.queue.append(Batch())
        self.queue[-1].append(work)

    def run(self, n: int) -> None:
        """n operations at most."""
        while self.queue and n:
            if self.broken:
                raise DeviceError(self.broken)
            if not self.queue[0]():
                return
            self.queue.pop(0)
            n -= 1

    def synchronize(self) -> None:
        while self.queue:
            before = len(self.queue)
            self.run(1 << 30)
            assert len(self.queue) < before, "the stream waits for what never comes"

    def wait_event(self, event: Event) -> None:
        self.queue.append(lambda: event.over or (event.stream.run(1 << 30), event.over)[1])

    @staticmethod
    def now() -> Stream:
        assert Stream.current, "work outside of a stream"
        return Stream.current[-1]


class Event:
    def __init__(self, disable_timing: bool):
        self.over = False
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.push(lambda: setattr(self, "over", True))

    @property
    def done(self) -> bool:
        if not self.over:
            self.stream.run(self.stream.device.n_at_a_time)
        return self.over

    def synchronize(self) -> None:
        while not self.over:
            self.stream.run(1)


class Device:
    """How the device behaves."""

    def __init__(self) -> None:
        self.eager = False
        self.n_at_a_time = 1
        """Operations that run when somebody asks whether an event is over."""
        self.n_downloads = 0
        """Copies to the host that waited."""
        self.launched: list[str] = []
        """Kernels."""
        self.depth = 0
        self.id = 0
        self.compiles = True
        """Functions of arrays run; without NVRTC they do not."""

    def __enter__(self) -> Device:
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


# ---- arrays -------------------------------------------------------------------------------------------------------------------


def _value(x: object) -> object:
    if isinstance(x, Array):
        return x.memory
    assert not isinstance(x, np.ndarray) or x.ndim == 0, "a NumPy array would go to the device by itself"
    return x


def _index(index: object) -> object:
    return tuple(_value(i) for i in index) if isinstance(index, tuple) else _value(index)


class Allocation:
    """An allocation of cupy's pool: it is free for others once the stream has done the work queued before."""

    def __init__(self, memory: np.ndarray):
        self.memory, self.stream = memory, Stream.now()

    def __del__(self) -> None:
        self.stream.append_small(lambda memory=self.memory: None)


class Array:
    """Memory of the device."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, memory: np.ndarray, owner: Allocation | None = None):
        self.memory, self.owner = memory, owner
        self.shape, self.dtype, self.ndim, self.size = memory.shape, memory.dtype, memory.ndim, memory.size
        self.data = SimpleNamespace(ptr=memory.__array_interface__["data"][0])

    def __getitem__(self, index: object) -> Array:
        picked = self.memory[_index(index)]
        assert isinstance(picked, np.ndarray) and (not picked.size or np.may_share_memory(picked, self.memory)), "only views"
        return Array(picked, self.owner)

    def __setitem__(self, index: object, value: object) -> None:
        index, value = _index(index), _value(value)
        Stream.now().push_small(lambda: self.memory.__setitem__(index, value))

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, dtype: type) -> Array:
        return Array(self.memory.view(dtype), self.owner)

    def astype(self, dtype: type) -> Array:
        return lazily(lambda memory: memory.astype(dtype), self)

    def get(self, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        stream = Stream.now()
        if out is None:
            assert blocking, "a copy that nobody waits for needs memory to go to"
            stream.device.n_downloads += 1
            stream.synchronize()
            return self.memory.copy()
        assert not blocking, "a copy into given memory does not wait"
        assert out.flags.c_contiguous and self.memory.flags.c_contiguous, "a copy over the link is of contiguous memory"
        stream.push(lambda: np.copyto(out, self.memory))
        return out

    def _host(self, *_: object, **__: object):
        raise AssertionError("an array of the device was read by the host")

    __array__ = __array_function__ = __bool__ = __float__ = __int__ = __iter__ = __index__ = __eq__ = _host


def lazily(function: Callable, *inputs: object) -> Array:
    """A new array of the function's result, which is computed when the stream gets to it. The function of zeros tells its shape."""
    values = [_value(x) for x in inputs]
    with np.errstate(all="ignore"):
        like = function(*(np.zeros_like(value) if isinstance(value, np.ndarray) else value for value in values))
    memory = np.full(like.shape, 85, like.dtype)
    Stream.now().push_small(lambda: np.copyto(memory, function(*values)))
    return Array(memory, Allocation(memory))


def ufunc(function: Callable) -> Callable:
    def call(*inputs: object, out: Array | None = None, **options: object) -> Array:
        if out is None:
            return lazily(lambda *values: function(*values, **options), *inputs)
        values = [_value(x) for x in inputs]
        Stream.now().push_small(lambda: function(*values, out=out.memory, **options))
        return out

    return call


def _operators() -> None:
    """a + b, b + a and a += b for arrays of the device, and so on."""
    for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
                           "mod": np.remainder, "and": np.logical_and, "or": np.logical_or}.items():
        setattr(Array, f"__{name}__", lambda self, other, do=ufunc(function): do(self, other))
        setattr(Array, f"__r{name}__", lambda self, other, do=ufunc(function): do(other, self))
        setattr(Array, f"__i{name}__", lambda self, other, do=ufunc(function): do(self, other, out=self))
    for name, function in {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}.items():
        setattr(Array, f"__{name}__", lambda self, other, do=ufunc(function): do(self, other))
    Array.__invert__ = ufunc(np.logical_not)


_operators()


# ---- the module ---------------------------------------------------------------------------------------------------------------


def sources() -> str:
    """The device code of the kernels that Python launches."""
    names = re.findall(r'#include "(.*)"', (NATIVE / "cuda" / "arrays.cu").read_text(encoding="utf-8"))
    return "\n".join((NATIVE / name).read_text(encoding="utf-8") for name in names)


class Kernel:
    """A kernel of the emulated device. The types of its arguments are those that the source declares."""

    WORDS = {"int": np.int32, "float": np.float32, "unsigned long long": np.uint64}

    def __init__(self, library: ctypes.CDLL, device: Device, code: str, name: str):
        declared = re.search(rf"\b{name}\(([^)]*)\) \{{", code)
        assert declared, f"there is no kernel {name}"
        self.library, self.device, self.name = library, device, name
        self.types = [re.sub(r"\s*\w+$", "", part.strip()) for part in declared[1].split(",")]

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple) -> None:
        assert len(arguments) == len(self.types), f"{self.name} takes {len(self.types)} arguments"
        assert all(isinstance(n, int) and n > 0 for n in (*grid, *block)), f"{self.name}: grid {grid}, block {block}"
        words = []
        for kind, value in zip(self.types, arguments):
            if kind.endswith("*"):
                assert isinstance(value, (Array, np.uint64)), f"{self.name}: {kind} from {type(value)}"
                assert not isinstance(value, Array) or value.memory.flags.c_contiguous, f"{self.name}: a view that is not contiguous"
                words.append(np.uint64(value.data.ptr if isinstance(value, Array) else value))
            else:
                assert type(value) is self.WORDS[kind], f"{self.name}: {kind} from {type(value)}"
                words.append(value)
        x, y = (*grid, 1)[:2]

        def run() -> None:
            self.device.launched.append(self.name)
            boxes = [np.array([word]) for word in words]
            pointers = (ctypes.c_void_p * len(boxes))(*(box.ctypes.data for box in boxes))
            assert self.library.edgekv_test_launch(self.name.encode(), x, y, block[0], pointers), self.name

        Stream.now().push(run)


def module(library: Path, device: Device) -> SimpleNamespace:
    """`cupy`."""
    native, code = ctypes.CDLL(str(library)), sources()
    native.edgekv_test_launch.restype = ctypes.c_bool
    native.edgekv_test_launch.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 3, ctypes.POINTER(ctypes.c_void_p)]

    def over(memory: SimpleNamespace, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        from edgekv.arrays.ops import Ops

        return Array(Ops().view(memory.address, dtype, shape))

    def asarray(array: np.ndarray) -> Array:
        assert isinstance(array, np.ndarray), f"{type(array)} is no NumPy array"
        assert array.flags.c_contiguous and array.dtype.names is None, "an upload is of contiguous memory, and of a plain type"
        staged, memory = array.copy(), np.empty_like(array)
        Stream.now().push(lambda: np.copyto(memory, staged))
        return Array(memory, Allocation(memory))

    def zeros(shape: tuple[int, ...] | int, dtype: type) -> Array:
        memory = np.full(shape, 85, dtype)
        Stream.now().push(lambda: memory.fill(0))
        return Array(memory, Allocation(memory))

    class OwnStream(Stream):
        def __init__(self, non_blocking: bool):
            super().__init__(device)

        @staticmethod
        def from_external(lent: Any) -> Stream:
            version, address = lent.__cuda_stream__()
            assert version == 0
            return Stream(device, address)

    def copyto(out: Array, value: np.generic, where: Array) -> None:
        Stream.now().push_small(lambda: np.copyto(out.memory, value, where=where.memory))

    return SimpleNamespace(
        __version__="0", ndarray=lambda shape, dtype, memory: over(memory, shape, dtype), asarray=asarray, zeros=zeros, copyto=copyto,
        **{name: ufunc(getattr(np, name)) for name in (
            "add", "multiply", "true_divide", "greater", "minimum", "maximum", "exp", "floor", "log2", "sum", "max", "cumsum", "where",
            "sort", "partition", "take_along_axis")},
        RawModule=lambda path: SimpleNamespace(get_function=lambda name: Kernel(native, device, code, name)),
        cuda=SimpleNamespace(
            Device=lambda index: device, Event=Event, Stream=OwnStream,
            UnownedMemory=lambda address, n_bytes, owner, index: SimpleNamespace(address=address),
            MemoryPointer=lambda memory, offset: SimpleNamespace(address=memory.address + offset),
            alloc_pinned_memory=bytearray,
            runtime=SimpleNamespace(CUDARuntimeError=DeviceError, getDeviceCount=lambda: 1),
            driver=SimpleNamespace(CUDADriverError=DeviceError), memory=SimpleNamespace(OutOfMemoryError=MemoryError)))


def put_in_place(monkeypatch: pytest.MonkeyPatch, library: Path, device: Device) -> SimpleNamespace:
    """What `import cupy` gives from now on, and its kernels."""
    from edgekv.arrays import cupy_ops

    cupy = module(library, device)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cupy_ops, "kernels", lambda folder: library)
    return cupy


@pytest.fixture
def emulated_cupy(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """(operations on a fake device, the device)."""
    from edgekv.arrays.cupy_ops import CupyOps

    device = Device()
    put_in_place(monkeypatch, emulated_kernels, device)
    return CupyOps(0, 0, 13000, None), device
