"""libedgekv through cffi: contexts, layers, memory. Everything returned is a plain Python value, and NumPy is not needed (`native_arrays`)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekv._native._core import ffi, lib
from edgekv.common.enums import DeviceKind, KvMode, PromptReading
from edgekv.common.errors import AbiMismatch, ConfigError, CudaUnavailable, DoesNotFit, EdgeKVError, NativeError, NotPinned

if TYPE_CHECKING:  # the process that opens headers needs none of them
    from edgekv.common.reports import LayerReport, MemoryReport
    from edgekv.config import KvOptions, LayerTypes

log = logging.getLogger("edgekv")

_DEVICES = {DeviceKind.HOST: lib.EDGEKV_DEVICE_HOST, DeviceKind.CUDA: lib.EDGEKV_DEVICE_CUDA,
            DeviceKind.EMULATED: lib.EDGEKV_DEVICE_EMULATED}
_MODES = {KvMode.OFF: lib.EDGEKV_MODE_OFF, KvMode.EXACT: lib.EDGEKV_MODE_EXACT, KvMode.SPARSE: lib.EDGEKV_MODE_SPARSE,
          KvMode.EVICT: lib.EDGEKV_MODE_EVICT}
_MODE_OF = {number: mode for mode, number in _MODES.items()}
_ERRORS = {
    lib.EDGEKV_INVALID: ConfigError,
    lib.EDGEKV_ABI: AbiMismatch,
    lib.EDGEKV_UNSUPPORTED: NativeError,
    lib.EDGEKV_DISABLED: ConfigError,
    lib.EDGEKV_NO_MEMORY: DoesNotFit,
}
GGML_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}
"""Names of the `enum ggml_type` values a cache can have."""

Handle = object
"""An `edgekv_context *`: opaque outside this package, hashable, valid until its `detached` callback."""


def _check(status: int) -> None:
    """The one place where a status becomes an exception."""
    if status != lib.EDGEKV_OK:
        raise _ERRORS.get(status, NativeError)(ffi.string(lib.edgekv_last_error()).decode())


# ---- the library ----------------------------------------------------------------------------------------------------------------


def version() -> str:
    return ffi.string(lib.edgekv_version()).decode()


def upstream() -> str:
    return ffi.string(lib.edgekv_upstream()).decode()


def init() -> None:
    _check(lib.edgekv_init())
    callbacks = ffi.new("edgekv_callbacks *", {
        "attached": lib.edgekv_py_attached, "detached": lib.edgekv_py_detached, "ubatch": lib.edgekv_py_ubatch,
        "free_bytes": lib.edgekv_py_free_bytes, "user": ffi.NULL})
    _check(lib.edgekv_set_callbacks(callbacks))


def enabled() -> bool:
    """False with EDGEKV=0 in the environment: every context runs stock."""
    return bool(lib.edgekv_enabled())


def isa() -> str:
    return ffi.string(lib.edgekv_isa_name(lib.edgekv_isa())).decode()


def isas() -> list[str]:
    """All that there are, by number."""
    return [ffi.string(name).decode() for name in takewhile(lambda name: name != ffi.NULL, map(lib.edgekv_isa_name, count()))]


def isa_available() -> list[str]:
    return [name for number, name in enumerate(isas()) if lib.edgekv_isa_supported(number)]


# ---- callbacks ------------------------------------------------------------------------------------------------------------------

_on_attached: Callable[[Handle], None] | None = None
_on_detached: Callable[[Handle], None] | None = None
_on_ubatch: Callable[[Handle], None] | None = None


def set_callbacks(attached: Callable[[Handle], None], detached: Callable[[Handle], None], ubatch: Callable[[Handle], None]) -> None:
    """Functions that are called with a handle, on the thread that creates, frees or decodes a context. Their exceptions are logged, but for those
    that `raising` waits for: no other caller above them could catch one."""
    global _on_attached, _on_detached, _on_ubatch
    _on_attached, _on_detached, _on_ubatch = attached, detached, ubatch


_free_bytes: Callable[[], int] | None = None


def set_free_bytes(free_bytes: Callable[[], int]) -> None:
    """The function that tells how many bytes of host memory can be taken. It is asked before a KV cache takes more: some tens of microseconds in
    every thousand tokens or so."""
    global _free_bytes
    _free_bytes = free_bytes


def refused() -> bool:
    """Whether this thread's newest llama_decode failed because there was no memory for its rows. Nothing was placed."""
    return bool(lib.edgekv_refused())


class _Caller(threading.local):
    """Of each thread: whether `raising` waits, and the first exception of a callback."""

    waits = False
    raised: BaseException | None = None


_caller = _Caller()


@contextmanager
def raising(handle: Handle | None = None) -> Iterator[None]:
    """What a callback raises on this thread inside the block ends llama_decode, if `handle` decodes, and is raised at the block's end. Python runs
    the handlers of signals inside callbacks too."""
    before, _caller.waits = _caller.waits, True  # an observer may ask another model
    try:
        yield
    finally:
        _caller.waits = before
        error, _caller.raised = _caller.raised, None
        if error is not None:
            if handle is not None:
                lib.edgekv_stop(handle, False)
            raise error from None


def _keep(_kind, error, _trace) -> None:
    if not _caller.waits:
        log.error("an EdgeKV callback failed", exc_info=error)
    elif _caller.raised is None:
        _caller.raised = error


def _stop(*failure) -> bool:
    _keep(*failure)
    return _caller.raised is not None


@ffi.def_extern(onerror=_keep)
def edgekv_py_attached(handle, _user):
    if _on_attached is not None:
        _on_attached(handle)


@ffi.def_extern(onerror=_keep)
def edgekv_py_detached(handle, _user):
    if _on_detached is not None:
        _on_detached(handle)


@ffi.def_extern(error=False, onerror=_stop)
def edgekv_py_ubatch(handle, _user):
    if _on_ubatch is not None:
        _on_ubatch(handle)
    return _caller.raised is not None


@ffi.def_extern(error=-1, onerror=_keep)
def edgekv_py_free_bytes(_user):
    return -1 if _free_bytes is None else _free_bytes()


# ---- contexts -------------------------------------------------------------------------------------------------------------------


def selection(options: KvOptions) -> dict:
    """The fields of an edgekv_selection."""
    chosen, eviction = options.selection, options.eviction
    return {
        "resolution": chosen.sample_budget, "exact_tokens": chosen.exact_tokens, "sink_tokens": chosen.sink_tokens,
        "recent_tokens": chosen.recent_tokens, "error_every": chosen.error_every, "keep_rows": chosen.keep_rows,
        "keep_tokens": options.keep_tokens, "positions": eviction.positions or 0, "sample_kept": eviction.sample,
        "prompt_resolution": chosen.prompt_sample_budget if chosen.prompts is PromptReading.SPARSE else 0.0,
    }


def _placement(options: KvOptions, kind: DeviceKind) -> dict:
    if kind is not DeviceKind.HOST and options.mode is KvMode.SPARSE and options.selection.prompts is PromptReading.SPARSE:
        raise ConfigError("sparse prompts work on the processor only; use prompts exact, or device cpu")
    return {"kind": _DEVICES[kind], "index": 0, "vram_bytes": options.placement.kv_vram or 0}


def _params(options: KvOptions, kind: DeviceKind):
    return ffi.new("edgekv_params *", {
        "mode": _MODES[options.mode], "page_tokens": options.cache.page_size, "observe": options.placement.observe,
        "observe_prompts": options.placement.observe_prompt, "selection": selection(options), "placement": _placement(options, kind)})


def device_problem(handle: Handle) -> EdgeKVError | None:
    """The reason why a context that was to be placed on a device is not: DoesNotFit, NotPinned or CudaUnavailable; NativeError: the disk of its
    home failed. None: neither."""
    sentence = ffi.new("char const **")
    status = lib.edgekv_device_problem(handle, sentence)
    if status == lib.EDGEKV_OK:
        return None
    kind = {lib.EDGEKV_NO_MEMORY: DoesNotFit, lib.EDGEKV_NOT_PINNED: NotPinned, lib.EDGEKV_DISK: NativeError}.get(status, CudaUnavailable)
    return kind(ffi.string(sentence[0]).decode())


def set_defaults(options: KvOptions, kind: DeviceKind) -> None:
    """Attach contexts that are created from now on with these options: by any thread that has no `own_defaults`, or by this one if it has. kind: the
    device of their attention; a context whose model lies on the processor stays there too."""
    _check(lib.edgekv_set_defaults(_params(options, kind)))


@contextmanager
def own_defaults() -> Iterator[None]:
    """Inside the block `set_defaults`, `set_layer_types` and `set_home` concern this thread alone; it begins with none."""
    lib.edgekv_own_defaults(True)
    try:
        yield
    finally:
        lib.edgekv_own_defaults(False)


def clear_defaults() -> None:
    """Attach no contexts that are created from now on."""
    _check(lib.edgekv_set_defaults(ffi.NULL))


def set_layer_types(types: LayerTypes | None) -> None:
    """Give the caches of contexts that are created from now on, and attached, types of K and V by layer; None: those of their parameters."""
    k, v = ([kind.ggml_type for kind in kinds] for kinds in (((), ()) if types is None else (types.k, types.v)))
    _check(lib.edgekv_set_layer_types(k, v, len(k)))


def set_home(folder: Path | None) -> None:
    """The folder in whose files K and V lie of contexts that are created from now on; None: in memory."""
    _check(lib.edgekv_set_home(ffi.NULL if folder is None else os.fsencode(folder)))


def home_failure() -> int:
    """Why the newest such file could not be made, an errno; 0: every one since `set_home` named a folder could."""
    return int(lib.edgekv_home_failure())


def attach(address: int, options: KvOptions, kind: DeviceKind) -> Handle:
    """Attach the llama_context at `address`. kind: as for `set_defaults`."""
    out = ffi.new("edgekv_context **")
    _check(lib.edgekv_attach(ffi.cast("struct llama_context *", address), _params(options, kind), out))
    return out[0]


def detach(handle: Handle) -> None:
    lib.edgekv_detach(handle)


def find(address: int) -> Handle | None:
    handle = lib.edgekv_find(ffi.cast("struct llama_context *", address))
    return None if handle == ffi.NULL else handle


def llama_address(handle: Handle) -> int:
    return int(ffi.cast("uintptr_t", lib.edgekv_llama(handle)))


def get_params(handle: Handle) -> tuple[KvMode, int, bool]:
    """(mode, page_tokens, observe) as they will be at the next ubatch."""
    params = lib.edgekv_get_params(handle)
    return _MODE_OF[params.mode], params.page_tokens, bool(params.observe)


def rope(handle: Handle) -> tuple[int, float, float] | None:
    """(channels turned, base, linear scaling factor) of the rotary embedding; None if the model has none."""
    n_rot, base, scale = ffi.new("int *"), ffi.new("float *"), ffi.new("float *")
    if not lib.edgekv_get_rope(handle, n_rot, base, scale):
        return None
    return n_rot[0], base[0], 1.0 / scale[0] if scale[0] else 1.0


def set_run_every(handle: Handle, n_ubatches: int) -> None:
    """0: no run ends."""
    _check(lib.edgekv_set_run_every(handle, n_ubatches))


def set_watched(handle: Handle, watched: bool) -> None:
    """Whether the ubatch callback comes after each ubatch, or only at the end of a run."""
    _check(lib.edgekv_set_watched(handle, watched))


def set_mode(handle: Handle, mode: KvMode) -> None:
    _check(lib.edgekv_set_mode(handle, _MODES[mode]))


def set_observe(handle: Handle, observe: bool, prompts: bool) -> None:
    """prompts: in modes sparse and evict also the last tokens of each prompt-sized ubatch."""
    _check(lib.edgekv_set_observe(handle, observe, prompts))


def limits(handle: Handle) -> Any:
    """The edgekv_limits that a context was made with."""
    return lib.edgekv_get_limits(handle)


def layers(handle: Handle) -> list[LayerReport]:
    from edgekv.common.reports import LayerReport

    out, found = ffi.new("edgekv_layer *"), []
    for il in range(lib.edgekv_n_layer(handle)):
        _check(lib.edgekv_get_layer(handle, il, out))
        found.append(LayerReport(
            il, hooked=out.state == lib.EDGEKV_LAYER_HOOKED, reason=ffi.string(lib.edgekv_layer_state_text(out.state)).decode(), n_head=out.n_head,
            n_head_kv=out.n_head_kv, head_dim=out.head_dim, type_k=_type_name(out.k_type), type_v=_type_name(out.v_type), index=out.index,
            refused=out.state == lib.EDGEKV_LAYER_NO_MEMORY, whole=out.state in (lib.EDGEKV_LAYER_WINDOW, lib.EDGEKV_LAYER_BIASED)))
    return found


def _type_name(number: int) -> str:
    return "-" if number < 0 else GGML_TYPES.get(number, f"type {number}")


def stream_of(handle: Handle, seq_id: int) -> int:
    return lib.edgekv_stream_of(handle, seq_id)


def memory(handle: Handle) -> MemoryReport:
    from edgekv.common.reports import MemoryReport

    out = lib.edgekv_get_memory(handle)
    return MemoryReport(
        home_bytes=out.home_bytes, observation_bytes=out.observation_bytes, workspace_bytes=out.workspace_bytes, sketch_bytes=out.sketch_bytes,
        arena_bytes=out.arena_bytes, table_bytes=out.table_bytes, n_cells=out.n_cells, n_cells_used=out.n_cells_used,
        device_bytes=out.device_bytes, pinned=bool(out.pinned))
