"""The KV options of one context: `KvOptions`, its four groups and their values."""

from edgekv.config.groups import AUTO_DEVICE, DEVICES, CacheOptions, EvictionOptions, PlacementOptions, SelectionOptions
from edgekv.config.head_errors import HeadErrors
from edgekv.config.layer_types import LayerTypes, TypeErrors
from edgekv.config.options import INSTEAD_OF, KvOptions, one_of_two, option_kind, option_names
from edgekv.config.values import Keep, choice, parse_kv_dir, parse_sample_budget, parse_token_bytes

__all__ = ["AUTO_DEVICE", "DEVICES", "INSTEAD_OF", "CacheOptions", "EvictionOptions", "HeadErrors", "Keep", "KvOptions", "LayerTypes", "PlacementOptions",
           "SelectionOptions", "TypeErrors", "choice", "one_of_two", "option_kind", "option_names", "parse_kv_dir",
           "parse_sample_budget", "parse_token_bytes"]
