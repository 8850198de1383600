"""A plan of this machine as it is now: its free memory, its GPU, its measured rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.common.machine import default_threads
from edgekv.config import KvOptions
from edgekv.models.geometry import open_model
from edgekv.planning.allocations import ContextRequest, Slots
from edgekv.planning.available import available_bytes
from edgekv.planning.devices import place
from edgekv.planning.fit import unifies
from edgekv.planning.home import PAGE
from edgekv.planning.later import check_later, check_placed, later_bytes, place_later
from edgekv.planning.plan import Plan, make_plan
from edgekv.planning.roofline import HostRoofline, pages_read
from edgekv.planning.type_choice import with_types
from edgekv.planning.type_costs import type_cost

if TYPE_CHECKING:
    from edgekv.measure.weights import Show
    from edgekv.models.geometry import ModelFile
    from edgekv.planning.host import HostRates


class Measuring(Struct, frozen=True):
    """The measurements of a plan. again: measure kept rates again. show: called before each measurement with (what is done, finished measurements,
    all of them)."""

    show: Show = lambda what, done, total: None
    again: bool = False


class PlanQuestion(Struct, frozen=True):
    """A person's wishes for a context. n_ctx None: as long as memory allows. n_threads None: `machine.default_threads`."""

    kv: KvOptions
    n_ctx: int | None = None
    n_slots: int = 1
    store_bytes: int = 0
    n_threads: int | None = None
    from_disk: bool = False
    later: tuple[str, ...] = ()
    """Options of llama.cpp's server for files that it loads after the model."""


def plan_here(path: Path, asked: PlanQuestion, measuring: Measuring | None = None) -> Plan:
    """The plan for a model's header. measuring None: measure nothing, and estimate speeds from kept rates only.

    Raises ModelError for a file that is not what it should be, CudaUnavailable if the requested GPU cannot be used.
    """
    model = open_model(path, whole=False)
    kv, n_threads = asked.kv, asked.n_threads or default_threads()
    kv, about_types = _typed(path, model, kv)
    placement = place(kv, path)
    kv = placement.in_force(kv)
    slots = Slots(asked.n_slots, unifies(model.geometry, kv, asked.n_slots, placement.room is not None))
    check_later(asked.later)
    check_placed(asked.later, placement)
    room, later = place_later(placement.room, later_bytes(asked.later))
    request = ContextRequest(model, kv, asked.n_ctx, slots, available_bytes(), asked.store_bytes, room, n_threads=n_threads, later_bytes=later,
                             from_disk=asked.from_disk, later=asked.later)
    if placement.room is not None:
        from edgekv.planning.device import calibrate

        again = bool(measuring and measuring.again)
        if placement.kind is not DeviceKind.CUDA:
            return noted(make_plan(request, None), about_types)
        return noted(make_plan(request, None, calibrate(placement.kind, placement.index, again, request.available)), about_types)
    if measuring is None:
        return noted(make_plan(request, kept_rates(model, kv, n_threads)), about_types)
    notes, n_ctx = [*about_types], make_plan(request, None).n_ctx
    if kv.cache.kv_dir is not None:
        notes += _of_disk(kv.cache.kv_dir, request, n_ctx)
    rates: HostRates | None = None
    try:
        rates = measured_rates(model, kv, n_threads, measuring)
    except EdgeKVError as error:  # memory is worth telling without speeds
        notes.append(f"the speeds could not be measured: {error}")
    return noted(make_plan(request, rates), notes)


def _of_disk(home: Path, request: ContextRequest, n_ctx: int) -> list[str]:
    """What a token behind n_ctx others costs whose rows lie on the disk, by its measured rate."""
    from edgekv.measure.disk import scattered_reads_per_s

    notes = ["the speeds are those of K and V in memory"]
    try:
        rate = scattered_reads_per_s(home)
    except EdgeKVError as error:
        return [*notes, str(error)]
    if request.kv.mode is KvMode.SPARSE:
        n_pages = pages_read(request.shape, request.with_hot_rows(n_ctx, request.kv), n_ctx, PAGE)
        notes.append(f"{home} gives {rate:,.0f} scattered pages of 4 KiB a second: where memory holds nothing of K and V, a token at {n_ctx:,} tokens waits "
                     f"about {n_pages / rate:.2g} s for {n_pages:,} of them; what the tokens before it read mostly stays in memory")
    return notes


def noted(plan: Plan, notes: Iterable[str]) -> Plan:
    """The plan with more notes."""
    return replace(plan, notes=(*plan.notes, *notes))


def _typed(path: Path, model: ModelFile, kv: KvOptions) -> tuple[KvOptions, list[str]]:
    """The options with the types for `kv_bytes`, and what is known of their cost. Raises ConfigError."""
    if kv.cache.is_f16:
        return kv, []
    from edgekv.cache_types import check_place, known_errors

    errors, lacked = known_errors(path), kv.cache.lacks_types
    kv = with_types(model.geometry, kv, errors)
    notes = []
    if lacked and kv.cache.layer_types is not None:
        check_place(kv)
        notes.append(f"{model.geometry.kv_bytes_per_token(*kv.cache.kinds):,} bytes of K and V a token: {kv.cache.layer_types}"
                     + ("" if errors is not None else ", for now: what each layer needs is measured when the model is first opened"))
    if (cost := type_cost(model.geometry, kv.cache, errors)) is not None:
        notes.append(f"warning: {cost.text}" if cost.warns else cost.text)
    return kv, notes


def measured_rates(model: ModelFile, kv: KvOptions, n_threads: int, measuring: Measuring) -> HostRates:
    if not measuring.again and (kept := kept_rates(model, kv, n_threads)) is not None:
        return kept
    from edgekv.measure.weights import host_rates

    return host_rates(model, kv, n_threads, measuring.show, measuring.again)


def stock_speed(path: Path, kv: KvOptions, n_threads: int) -> Callable[[int], float] | None:
    """Tokens a second that stock llama.cpp decodes on this processor behind a number of tokens, by estimate. None: its rates were never measured."""
    model = open_model(path, whole=False)
    if (rates := kept_rates(model, kv, n_threads)) is None:
        return None
    roofline = HostRoofline(model, kv, rates)
    return lambda depth: 1 / roofline.decode_seconds(KvMode.OFF, depth)


def kept_rates(model: ModelFile, kv: KvOptions, n_threads: int) -> HostRates | None:
    """The rates for a model; None if one was never measured."""
    from edgekv import _native
    from edgekv.planning.host import KeptRates, kept_for

    return kept_for(model, kv, KeptRates(n_threads, _native.isa()))
