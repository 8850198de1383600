"""A Runtime hangs on one llama_context: it observes each step and runs what wants to know.

Contexts created in this process are attached by the native context hook with the defaults in force (`set_defaults`, `defaults`), the
in-process server's included; `Runtime.attach` takes one that already exists.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from edgekv import _native
from edgekv.config import KvOptions, choice
from edgekv.errors import EdgeKVError
from edgekv.stats import Stats
from edgekv.vocab import KvMode

_native.prepare()

from edgekv._native import core  # noqa: E402  (the libraries must be in place first)
from edgekv.cells import Cells  # noqa: E402


@dataclass(frozen=True)
class LayerReport:
    """How one layer of the model is attended."""

    il: int
    hooked: bool
    reason: str
    """Why it is or is not."""
    n_head: int
    n_head_kv: int
    head_dim: int
    type_k: str
    type_v: str


@dataclass(frozen=True)
class MemoryReport:
    """Bytes and cells of one context."""

    home_bytes: int
    """K and V of the layers with a plain KV cache, allocated."""
    observation_bytes: int
    workspace_bytes: int
    n_cells: int
    n_cells_used: int

    @property
    def used_bytes(self) -> int:
        """Home bytes of the cells in use."""
        return self.home_bytes * self.n_cells_used // max(1, self.n_cells)


@dataclass(frozen=True)
class Step:
    """One ubatch, as an observer sees it. The arrays are views that live until the observer returns."""

    layers: tuple[int, ...]
    """Model layer of each row of the mass arrays: the hooked layers."""
    mass_max: np.ndarray
    """float32 [len(layers), kv_head, page]: attention mass, the maximum over the query heads of the group, summed over tokens."""
    mass_sum: np.ndarray
    """The same, summed over the query heads of the group: a head's pages add up to the group size (less what sinks took)."""
    n_tokens: int
    hooked: bool
    """False where the stock nodes ran (prompts, mode off): the mass is zero then."""
    page_tokens: int
    pages_per_stream: int


Observer = Callable[[Step], None]

_lock = threading.Lock()
_live: dict[core.Handle, Runtime] = {}


class Runtime:
    """The KV cache of one context: its mode, layers, cells, memory, and the observers called after each step."""

    def __init__(self, handle: core.Handle):
        self._handle: core.Handle | None = handle
        self.page_tokens: int = core.get_params(handle)[1]
        # the rows of the observation are fixed when the context is attached
        self._rows = tuple(layer.il for layer in core.layers(handle) if layer.row >= 0)
        self.cells = Cells(self._native_handle)
        self.observers: list[Observer] = []
        self.stats = Stats()

    @classmethod
    def attach(cls, address: int, options: KvOptions | None = None) -> Runtime:
        """Attach the llama_context at `address`, or return its Runtime if it has one already (the options then only set the mode)."""
        options = options or KvOptions.from_env()
        handle = core.find(address)
        if handle is None:
            handle = core.attach(address, _effective(options))
        elif core.enabled():
            core.set_mode(handle, options.mode)
        with _lock:
            return _live[handle]

    # ---- what it is ---------------------------------------------------------------------------------------------------------

    def _native_handle(self) -> core.Handle:
        if self._handle is None:
            raise EdgeKVError("this context has been freed; its cells and counters are gone")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def address(self) -> int:
        """Address of the llama_context."""
        return core.llama_address(self._native_handle())

    @property
    def mode(self) -> KvMode:
        """How the next step attends; setting it is allowed from any thread."""
        return core.get_params(self._native_handle())[0]

    @mode.setter
    def mode(self, mode: KvMode | str) -> None:
        core.set_mode(self._native_handle(), choice(KvMode, mode, "KV mode"))

    @property
    def observe(self) -> bool:
        """Whether attention mass is kept."""
        return core.get_params(self._native_handle())[2]

    @observe.setter
    def observe(self, observe: bool) -> None:
        core.set_observe(self._native_handle(), observe)

    @property
    def layers(self) -> list[LayerReport]:
        return [LayerReport(layer.il, layer.hooked, layer.reason, layer.n_head, layer.n_head_kv, layer.head_dim, layer.type_k,
                            layer.type_v) for layer in core.layers(self._native_handle())]

    def memory(self) -> MemoryReport:
        native = core.memory(self._native_handle())
        return MemoryReport(native.home_bytes, native.observation_bytes, native.workspace_bytes, native.n_cells, native.n_cells_used)

    def detach(self) -> None:
        """Leave the context to the stock path. Only while nothing decodes."""
        core.detach(self._native_handle())

    # ---- the step -----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """After each ubatch, on the thread that decoded it: observe, tell the observers, record."""
        began = time.perf_counter()
        seen = self._observe()
        for observer in list(self.observers):
            observer(seen)
        self._record(seen, time.perf_counter() - began)

    def _observe(self) -> Step:
        native = core.observation(self._native_handle())
        return Step(self._rows, native.mass_max, native.mass_sum, native.n_tokens, native.hooked, native.page_tokens,
                    native.pages_per_stream)

    def _record(self, seen: Step, seconds: float) -> None:
        stats = self.stats
        stats.n_steps += 1
        stats.n_tokens += seen.n_tokens
        if seen.hooked:
            stats.n_steps_hooked += 1
            stats.n_tokens_hooked += seen.n_tokens
        stats.python_seconds += seconds

    def _close(self) -> None:
        self._handle = None
        self.observers.clear()


# ---- the contexts of this process -----------------------------------------------------------------------------------------------


def live() -> list[Runtime]:
    """Every attached context, oldest first."""
    with _lock:
        return list(_live.values())


def find(address: int) -> Runtime | None:
    """The Runtime of the llama_context at `address`, or None."""
    handle = core.find(address)
    with _lock:
        return None if handle is None else _live.get(handle)


def set_defaults(options: KvOptions | None) -> None:
    """How contexts created from now on are attached; None: they are not."""
    if options is None:
        core.clear_defaults()
    else:
        core.set_defaults(_effective(options))


@contextlib.contextmanager
def defaults(options: KvOptions) -> Iterator[None]:
    """Defaults for the contexts created inside the block, on any thread."""
    set_defaults(options)
    try:
        yield
    finally:
        set_defaults(None)


def _effective(options: KvOptions) -> KvOptions:
    """With EDGEKV=0 everything is stock, whatever was asked for."""
    return options if core.enabled() else options.with_(mode=KvMode.OFF)


def _attached(handle: core.Handle) -> None:
    with _lock:
        _live[handle] = Runtime(handle)


def _detached(handle: core.Handle) -> None:
    with _lock:
        runtime = _live.pop(handle, None)
    if runtime is not None:
        runtime._close()


def _stepped(handle: core.Handle) -> None:
    with _lock:
        runtime = _live.get(handle)
    if runtime is not None:
        runtime.step()


core.set_callbacks(_attached, _detached, _stepped)
