"""What is in force for a context: its options, and its device's rates."""

import logging

from edgekv._native import core, device_calls
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.config import KvOptions
from edgekv.tiering.names import check_names

log = logging.getLogger("edgekv")


def effective(options: KvOptions) -> KvOptions:
    """These options, in mode off if EDGEKV=0 is set. Raises ConfigError for an unknown policy or prefetch: no caller could catch that later,
    while a context is attached."""
    check_names(options.placement)
    return options if core.enabled() else options.with_(mode=KvMode.OFF)


def rates(kind: DeviceKind, index: int = 0) -> device_calls.Rates | None:
    """The device's measured rates; None if measuring fails."""
    from edgekv.planning.available import available_bytes
    from edgekv.planning.device import calibrate

    try:
        return calibrate(kind, index, available=available_bytes())
    except EdgeKVError as error:
        log.warning("the rates of the GPU cannot be measured, so that pages move at the least pace: %s", error)
        return None
