"""What multiplies weights fastest is measured once on a machine, with the first model of a kind, and kept.

First how our kernels fetch weights, which changes no result: sixteen rows side by side are sixteen streams, more than some processors follow. Then
our kernels beside llama.cpp's, of which the faster one serves. The two round differently, so `edgekv_describe()` tells which one does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
from msgspec import Struct

from edgekv._native import kept_choice
from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, isa
from edgekv._native.weight_types import WEIGHT_TYPES
from edgekv.common.enums import KvMode
from edgekv.common.errors import EdgeKVError

WAYS = {"stream, 2 near": (2, True), "stream": (0, True), "5 near": (5, False), "none": (0, False)}
"""To fetch weights: `edgekv_fetch`. The first is the kernels' default."""
MAKERS = ("EdgeKV", "llama.cpp")
"""Of products. The first is the default."""
TOKENS = {"up to four tokens": False, "more tokens": True}
"""What a product is chosen for: measured with one, and with 64."""
LEAST_BYTES = 32 << 20
"""Smaller weights lie in caches: there it matters little, and is not measured."""
_MOST_KINDS = 64

log = logging.getLogger("edgekv")

_lock = threading.Lock()
_chosen: dict[str, str] = {}  # of this process


class Kind(Struct, frozen=True):
    """Weights that our kernels multiply."""

    name: str
    """Of WEIGHT_TYPES."""
    layout: str | None
    """Of weight_types.layouts()."""

    @property
    def walk(self) -> str:
        """The order in which kernels read them."""
        native, _alive = self._native()
        return ffi.string(lib.edgekv_walk(native)).decode()

    def _native(self) -> tuple[Any, Any]:
        layout = ffi.NULL if self.layout is None else ffi.new("char[]", self.layout.encode())
        return ffi.new("edgekv_weights *", (WEIGHT_TYPES[self.name], layout))[0], layout  # which must live as long

    def time_ways(self) -> dict[str, float]:
        """Seconds of each way to fetch 64 MiB of them. The last stays in use."""
        native, _alive = self._native()
        ways, seconds = ffi.new("edgekv_fetch[]", list(WAYS.values())), ffi.new("double[]", len(WAYS))
        _check(lib.edgekv_time_fetches(native, ways, len(WAYS), seconds))
        return dict(zip(WAYS, seconds))

    def fetch(self, way: str) -> None:
        """All weights of the same order, from the next ubatch on."""
        native, _alive = self._native()
        _check(lib.edgekv_use_fetch(native, WAYS[way]))

    def time_makers(self, tokens: str) -> dict[str, float]:
        """Seconds of the same product, of ours and of llama.cpp's."""
        native, _alive = self._native()
        seconds = ffi.new("double[]", len(MAKERS))
        _check(lib.edgekv_time_products(native, TOKENS[tokens], seconds))
        return dict(zip(MAKERS, seconds))

    def make(self, tokens: str, maker: str) -> None:
        """By whom products are made, from the next graph on."""
        native, _alive = self._native()
        _check(lib.edgekv_leave_products(native, TOKENS[tokens], maker != MAKERS[0]))


def choice_file() -> Path:
    return Path(platformdirs.user_cache_dir("edgekv")) / "weight-kernels.json"


def kinds_of(handle: Handle) -> list[Kind]:
    """The kinds of the model's weights that our kernels multiply."""
    found = ffi.new("edgekv_weights[]", _MOST_KINDS)
    names = {number: name for name, number in WEIGHT_TYPES.items()}
    return [Kind(names[one.type], None if one.layout == ffi.NULL else ffi.string(one.layout).decode())
            for one in found[0 : lib.edgekv_get_weights(handle, found, _MOST_KINDS)]]


def prepare(handle: Handle, mode: KvMode) -> None:
    """Use what is fastest on this machine, if the model of `handle` is large enough for it to matter. In mode off llama.cpp multiplies."""
    if mode is KvMode.OFF or lib.edgekv_weight_bytes(handle) < LEAST_BYTES:
        return
    with _lock:
        try:
            _choose(kinds_of(handle))
        except EdgeKVError as error:  # no memory for it: what is not chosen yet keeps its default
            log.info("what multiplies weights fastest is not measured: %s", error)


def _choose(kinds: list[Kind]) -> None:
    for kind in kinds:
        if kind.walk not in _chosen:
            _chosen[kind.walk] = kept_choice.choose(choice_file(), f"{isa()}, {kind.walk}", next(iter(WAYS)), list(WAYS), kind.time_ways)
            kind.fetch(_chosen[kind.walk])
        for tokens in TOKENS:
            if (product := _product(kind, tokens)) not in _chosen:
                _chosen[product] = kept_choice.choose(choice_file(), f"{isa()}, {product}", MAKERS[0], list(MAKERS), partial(kind.time_makers, tokens))
                kind.make(tokens, _chosen[product])


def left_to_llama_cpp(kinds: list[Kind]) -> Iterator[tuple[Kind, str]]:
    """The products, of a kind and tokens of TOKENS, that were measured to be slower by our kernels on this machine."""
    for kind in kinds:
        for tokens in TOKENS:
            if kept_choice.kept(choice_file(), f"{isa()}, {_product(kind, tokens)}") == MAKERS[1]:
                yield kind, tokens


def _product(kind: Kind, tokens: str) -> str:
    return ", ".join(filter(None, (kind.name, kind.layout, tokens)))
