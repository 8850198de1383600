"""What a native context is asked for and told, without the hierarchy of a policy (`wiring`): most contexts have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgekv._native import core, device_calls
from edgekv._native import paging as native
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import ConfigError
from edgekv.common.reports import SelectionReport
from edgekv.config import KvOptions
from edgekv.runtime.cells import Cells

if TYPE_CHECKING:
    from edgekv.arrays.ops import Ops

RUN_UBATCHES = 16
"""Most decoded ubatches in one run of the policy; their attention mass adds up meanwhile."""


def operations(handle: core.Handle) -> Ops:
    """Array operations for the data plane of a context. Raises CudaUnavailable if it runs on a GPU that CuPy cannot use."""
    from edgekv.arrays import backend

    plane = device_calls.plane(handle)
    if plane is None or plane.kind is not DeviceKind.CUDA:
        return backend.choose()
    return backend.choose(plane.kind, plane.index, plane.stream, plane.runtime, device_calls.folder())


def has_tiers(handle: core.Handle, options: KvOptions) -> bool:
    """Whether a context has a policy in this mode."""
    return tiers_in(options, on_device=device_calls.plane(handle) is not None)


def tiers_in(options: KvOptions, on_device: bool) -> bool:
    """The same: where tokens are dropped, and on a device, where pages have slots."""
    return options.mode is KvMode.EVICT or options.mode is not KvMode.OFF and on_device


def runs_per_plan(options: KvOptions) -> int:
    return -(-options.placement.plan_every // RUN_UBATCHES)


def keep_rows(handle: core.Handle, budget: int, before: int | None) -> int:
    """Give copies of the rows of a KV file that are read most lately this much memory, at most what K and V take; returns the bytes. before: as it
    returned them the last time: if they are the same, the copies stay. Raises DoesNotFit."""
    pages = native.page_arrays(handle)
    n_heads = sum(layer.n_head_kv for layer in core.layers(handle) if layer.index >= 0)
    n_bytes = min(budget, n_heads * pages.shape[2] * pages.slot_bytes)
    if n_bytes != before:
        native.set_hot_rows(handle, n_bytes)
    return n_bytes


def begins_with(options: KvOptions) -> tuple:
    """The options that a policy is made with; if one changes, the policy starts again."""
    chosen, placed = options.selection, options.placement
    return placed.policy, placed.prefetch, placed.plan_every, chosen.sink_tokens, chosen.recent_tokens


def selection_report(handle: core.Handle, n_layers: int, n_heads: int, sequence: int | None = None) -> SelectionReport:
    """Sums over all hooked layers and KV heads. sequence: None: all."""
    of = native.selected(handle, n_layers, n_heads, sequence)
    count = {name: int(of[name].sum()) for name in ("n_tokens", "n_visible", "n_read", "n_certain", "n_hits", "n_errors", "n_covered")}
    total = {name: float(of[name].sum()) for name in ("mass", "mass_hits", "error", "covered")}
    return SelectionReport(
        n_selections=count["n_tokens"], n_visible=count["n_visible"], n_read=count["n_read"], n_certain=count["n_certain"], n_hits=count["n_hits"],
        mass=total["mass"], mass_hits=total["mass_hits"], error_sum=total["error"], n_errors=count["n_errors"], covered=total["covered"],
        n_covered=count["n_covered"])


def check_evict(handle: core.Handle, options: KvOptions, cells: Cells) -> None:
    """Raise ConfigError if the context cannot keep what these options ask of mode evict."""
    if options.mode is not KvMode.EVICT:
        return
    from edgekv.tiering import eviction

    limits = core.limits(handle)
    if not any(layer.index >= 0 for layer in core.layers(handle)):
        raise ConfigError("mode evict needs layers that EdgeKV attends, and there are none here; `edgekv doctor MODEL` says why")
    if cells.n_stream < limits.n_seq_max:
        raise ConfigError(f"mode evict bounds each sequence, and the {limits.n_seq_max} of this context share one cache; make it without kv_unified")
    eviction.check_keep(options.keep_tokens, limits.n_kept or cells.n_cells, limits.n_batch, options.always_kept, frees=limits.n_kept > 0)


def set_resolutions(handle: core.Handle, options: KvOptions, n_heads: int) -> None:
    """Let each head sample at its resolution for the wanted error. Another model, such as a draft model beside the measured one, samples at
    `sample_budget`. n_heads: columns of the native table."""
    table = options.selection.resolutions
    hooked = [layer for layer in core.layers(handle) if layer.index >= 0]
    if table is None or any(layer.il >= len(table) or len(table[layer.il]) != layer.n_head_kv for layer in hooked):
        native.set_resolutions(handle, None)
        return
    own = np.zeros((len(hooked), n_heads), np.float32)
    for layer in hooked:
        own[layer.index, : layer.n_head_kv] = table[layer.il]
    native.set_resolutions(handle, own)


def described(handle: core.Handle) -> str:
    """A context in one line."""
    memory, layers = core.memory(handle), core.layers(handle)
    return (f"mode {core.get_params(handle)[0].value}, {sum(layer.index >= 0 for layer in layers)} of {len(layers)} layers served, "
            f"{memory.n_cells_used:,} of {memory.n_cells:,} cells used")
