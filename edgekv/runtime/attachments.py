"""The contexts of this process that have a Runtime, and the defaults that attach new ones.

The native context hook attaches each context that this process creates, the in-process server's included, with the defaults in force:
those of `set_defaults`, or of the creating thread (`defaults`). `attach` takes a context that exists already. Nothing here needs NumPy: a
server's model begins to load before `runtime.runtime` is imported.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgekv._native import core
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import ConfigError, EdgeKVError, NotPinned
from edgekv.config import AUTO_DEVICE, KvOptions
from edgekv.planning import devices
from edgekv.planning.available import available_bytes
from edgekv.runtime.effective import effective, rates

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime

log = logging.getLogger("edgekv")

_GUEST = "reads the cache of another layer"

_lock = threading.Lock()
_live: dict[core.Handle, Runtime] = {}
_options: KvOptions | None = None
"""The defaults in force."""
_told: Callable[[Runtime], None] | None = None
"""Called with each Runtime that these defaults attach."""
_ready: Callable[[], object] | None = None
"""Called before it is made."""
_last_failure: EdgeKVError | None = None
_attaching = threading.local()
"""Per thread: `options` of the contexts that it creates or attaches itself, `error` of the newest one that failed."""


def live() -> list[Runtime]:
    """Every attached context, oldest first."""
    with _lock:
        return list(_live.values())


def find(address: int) -> Runtime | None:
    """The Runtime of the llama_context at `address`, or None."""
    handle = core.find(address)
    with _lock:
        return None if handle is None else _live.get(handle)


def attach(address: int, options: KvOptions | None = None) -> Runtime:
    """Attach the llama_context at `address`, or reconfigure its Runtime if it has one. options: None: from the environment. Raises EdgeKVError."""
    options = options or KvOptions.from_env()
    handle = core.find(address)
    if handle is None:
        options, kind = _in_force(options)
        with _own(options):
            handle = core.attach(address, options, kind)
        raise_failure()
        return _of(handle)
    found = _of(handle)
    found.configure(options.with_(page_size=found.page_tokens))
    return found


def raise_failure() -> None:
    """Raise the error that kept this thread's newest context from being attached, if there was one."""
    error, _attaching.error = getattr(_attaching, "error", None), None
    if error is not None:
        raise error


def last_failure() -> EdgeKVError | None:
    """The newest such error of any thread since `set_defaults`, for a context that another thread created; or what kept it off its GPU."""
    return _last_failure


def set_defaults(options: KvOptions | None, began: Callable[[Runtime], None] | None = None, ready: Callable[[], object] | None = None) -> None:
    """Attach contexts that are created from now on with `options`; None: leave them alone. The thread that creates a context calls `ready`, which
    may wait, and then `began` with its Runtime. Without `began`, `llama_cpp.Llama` turns flash attention on where nobody says `flash_attn`: no layer
    could be served otherwise. Raises ConfigError for a KV home on disk with EDGEKV=0."""
    global _options, _told, _ready, _last_failure
    kind = DeviceKind.HOST
    _check_home(options)
    if options is not None:
        options, kind = _in_force(options)
    _options, _told, _ready, _last_failure = options, began, ready, None
    if began is None and (options is not None or "llama_cpp" in sys.modules):
        import llama_cpp

        llama_cpp.Llama.__init__.__kwdefaults__["flash_attn"] = options is not None  # type: ignore[index]
    if options is None:
        core.clear_defaults()
        core.set_home(None)
    else:
        _set(options, kind)


def _check_home(options: KvOptions | None) -> None:
    if options is not None and options.cache.kv_dir is not None and not core.enabled():
        raise ConfigError("EDGEKV=0 is set, and stock llama.cpp keeps K and V in memory; unset it, or leave the KV home out")


def _set(options: KvOptions, kind: DeviceKind) -> None:
    core.set_home(options.cache.kv_dir)
    core.set_layer_types(options.cache.layer_types)
    core.set_defaults(options, kind)


def _in_force(options: KvOptions) -> tuple[KvOptions, DeviceKind]:
    """The options for new contexts and the device of their attention, as `devices.place` decides. Raises its errors."""
    placement = devices.place(options)
    if placement.stock:
        log.warning("%s", placement.warning)
    options = effective(placement.in_force(options))
    in_vram = placement.kind is DeviceKind.CUDA and options.mode is KvMode.OFF  # K and V then lie there, out of our reach
    return options, DeviceKind.HOST if in_vram else placement.kind


@contextlib.contextmanager
def defaults(options: KvOptions) -> Iterator[None]:
    """Attach the contexts that this thread creates inside the block with `options`, whatever other threads create."""
    _check_home(options)
    options, kind = _in_force(options)
    with core.own_defaults(), _own(options):
        _set(options, kind)
        yield


@contextlib.contextmanager
def _own(options: KvOptions) -> Iterator[None]:
    before, _attaching.options = getattr(_attaching, "options", None), options
    try:
        yield
    finally:
        _attaching.options = before


def _of(handle: core.Handle) -> Runtime:
    with _lock:
        return _live[handle]


def _attached(handle: core.Handle) -> None:
    global _last_failure
    _attaching.error = None  # drops the failure of an earlier context
    given = getattr(_attaching, "options", None)
    if _ready is not None and given is None:
        _ready()
    options = given or _options or KvOptions()
    try:
        if (problem := core.device_problem(handle)) is not None:
            if options.placement.attention_device != AUTO_DEVICE:
                raise problem
            _last_failure = problem
            if isinstance(problem, NotPinned):
                from edgekv.planning import device as calibration

                log.warning("%s", calibration.pinning_refused(str(problem), rates(DeviceKind.CUDA)))
            else:
                log.warning("EdgeKV does not serve this context on the GPU: %s", problem)
        from edgekv.runtime.runtime import Runtime

        made = Runtime(handle, options)
    except Exception as failure:  # the caller is native code, which cannot catch it
        error = failure if isinstance(failure, EdgeKVError) else EdgeKVError(f"EdgeKV cannot serve this context: {type(failure).__name__}: {failure}")
        error.__cause__ = None if error is failure else failure
        core.set_mode(handle, KvMode.OFF)
        _attaching.error = error
        _last_failure = error
        log.error("a context runs on stock llama.cpp attention: %s", error)
        return
    with _lock:
        _live[handle] = made
    if (given is not None or _told is None) and core.enabled():
        _warn_unserved(made)
    if _told is not None and given is None:
        _told(made)


def _warn_unserved(made: Runtime) -> None:
    """Say why no layer is served, if that is so. Layers that read another context's cache, as a draft model's do, are served there."""
    layers, mode = made.layers, made.mode
    reasons = {layer.reason for layer in layers}
    if mode is not KvMode.OFF and layers and not any(layer.hooked for layer in layers) and reasons != {_GUEST}:
        log.warning("mode %s serves none of the %d layers of this context (%s): stock llama.cpp attends them; flash_attn=True avoids that where V is "
                    "stored transposed", mode.value, len(layers), "; ".join(sorted(map(str, reasons))))


def _detached(handle: core.Handle) -> None:
    with _lock:
        runtime = _live.pop(handle, None)
    if runtime is not None:
        runtime.end()


def _after_ubatch(handle: core.Handle) -> None:
    if (runtime := _live.get(handle)) is not None:  # no lock: Python may end a daemon thread here when it exits, which would keep it
        runtime.step()


core.set_callbacks(_attached, _detached, _after_ubatch)
core.set_free_bytes(available_bytes)
