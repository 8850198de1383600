"""The KV options of one context: `KvOptions`, its four groups and their values."""

from edgekv.config.groups import (
    AUTO_DEVICE,
    DEVICES,
    CacheOptions,
    EvictionOptions,
    PlacementOptions,
    SelectionOptions,
)
from edgekv.config.options import KvOptions, option_kind, option_names
from edgekv.config.values import Attend, Keep, choice, parse_resolution

__all__ = ["AUTO_DEVICE", "DEVICES", "Attend", "CacheOptions", "EvictionOptions", "Keep", "KvOptions", "PlacementOptions",
           "SelectionOptions", "choice", "option_kind", "option_names", "parse_resolution"]
