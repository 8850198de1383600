"""The mode of a context on a GPU where nobody asked for one: its plan's estimate decides between exact and sparse, by depth."""

import logging
from pathlib import Path

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import DoesNotFit, EdgeKVError
from edgekv.config import KvOptions
from edgekv.models.geometry import ModelFile, open_model
from edgekv.planning.available import available_bytes
from edgekv.planning.device import calibrate
from edgekv.planning.device_fit import choose_device_context
from edgekv.planning.device_roofline import DeviceRoofline, prefers_sparse
from edgekv.planning.devices import Placement, measured_mode
from edgekv.planning.proven import proven, why_stock

log = logging.getLogger("edgekv")


def chosen_mode(placement: Placement, model: Path, kv: KvOptions, n_ctx: int | None, n_sequences: int = 1) -> KvMode:
    """`devices.measured_mode`; on a GPU that `edgekv doctor --gpu` has not proven it is off, on others by estimate, for `n_sequences` sequences of
    `n_ctx` tokens. n_ctx None: as many as the memory allows. Measures the GPU's rates where they were not. Raises ModelError for a file that is no model."""
    if placement.stock or placement.kind is not DeviceKind.CUDA or placement.room is None:
        return measured_mode(placement)
    if placement.info is not None and not proven(placement.info):
        log.warning("%s", why_stock(placement.info))
        return KvMode.OFF
    file, available = open_model(model, whole=False), available_bytes()
    depth = _depth(file, kv, n_ctx, placement, n_sequences, available)
    try:
        rates = calibrate(placement.kind, placement.index, available=available)
    except EdgeKVError as error:
        log.warning("the rates of the GPU cannot be measured, so that its mode is exact: %s", error)
        return KvMode.EXACT
    line = DeviceRoofline(file, kv, placement.room, rates, n_sequences)
    if depth <= kv.selection.exact_tokens:
        return KvMode.EXACT
    return KvMode.SPARSE if prefers_sparse(*(line.speed(mode, depth).decode for mode in (KvMode.EXACT, KvMode.SPARSE))) else KvMode.EXACT


def _depth(file: ModelFile, kv: KvOptions, n_ctx: int | None, placement: Placement, n_sequences: int, available: int) -> int:
    """The context that will be opened, in tokens."""
    n_train = file.geometry.n_ctx_train
    if n_ctx is not None:
        return min(n_ctx, n_train)
    assert placement.room is not None
    try:
        return choose_device_context(file.geometry, None, kv.with_(mode=KvMode.SPARSE), placement.room, n_sequences, available).n_ctx
    except DoesNotFit:  # it is told where the context is chosen
        return n_train
