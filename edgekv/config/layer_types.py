"""Types of K and V by layer, and what a coarse type costs a model, as it is measured once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from edgekv.common.enums import CacheType

FINE, COARSE = CacheType.Q8_0, CacheType.Q4_0
"""The types that layers of one cache choose from. llama.cpp turns K and V of a quantised cache in all layers, so f16 goes with no other; over
q8_0 it gains nothing that can be measured."""

NEAR_STOCK = 0
"""In place of a number of bytes: as few as stay near stock's own noise."""

NOISE_FACTOR = 2.0
"""Types that diverge more than so many times as far as stock's own kernels do deserve a warning."""

class LayerTypes(Struct, frozen=True):
    """The types of K and of V by layer of the model, each FINE or COARSE."""

    k: tuple[CacheType, ...]
    v: tuple[CacheType, ...]

    def __post_init__(self) -> None:
        if len(self.k) != len(self.v) or not set(self.k) | set(self.v) <= {FINE, COARSE}:
            raise ValueError(f"each layer has {FINE.value} or {COARSE.value} for K and for V")

    @property
    def codes(self) -> tuple[str, str]:
        """ "84" and "44": K of the first layer in q8_0, of the second in q4_0, and V of both in q4_0."""
        return "".join(kind.value[1] for kind in self.k), "".join(kind.value[1] for kind in self.v)

    def __str__(self) -> str:
        """ "K q8_0 in 12 of 30 layers, V in 3, else q4_0"."""
        k, v = (sum(kind is FINE for kind in kinds) for kinds in (self.k, self.v))
        return f"K {FINE.value} in {k} of {len(self.k)} layers, V in {v}, else {COARSE.value}"


class TypeErrors(Struct, frozen=True):
    """Mean divergences (KLD, nats a token) of a model's predictions from those with a cache in f16."""

    noise: float
    """Of stock llama.cpp with a cache in f16, from the same in mode exact: two correct kernels."""
    whole: Mapping[str, float]
    """By types of all layers, "q8_0/q4_0" for K and V."""
    k: tuple[float, ...] = ()
    """By layer: K in COARSE there and FINE elsewhere, less the divergence of FINE everywhere; 0: none could be measured, or no K is kept."""
    v: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        figures = (self.noise, *self.whole.values(), *self.k, *self.v)
        if len(self.k) != len(self.v) or not all(math.isfinite(one) and one >= 0 for one in figures):
            raise ValueError("divergences are numbers from 0 on, of the same layers")

    def estimate(self, types: LayerTypes) -> float:
        """The divergence of types by layer: small independent errors add up. The layers' own figures share what COARSE costs in all of them."""
        total = self.whole.get(f"{FINE.value}/{FINE.value}", 0.0)
        for value, kinds, own in ((False, types.k, self.k), (True, types.v, self.v)):
            coarse = sum(one for one, kind in zip(own, kinds, strict=True) if kind is COARSE)
            total += self.coarse(value) * coarse / (sum(own) or 1.0)
        return total

    def coarse(self, value: bool) -> float:
        """What COARSE costs in K of all layers, or in V, beside FINE."""
        f, c = FINE.value, COARSE.value
        upper, lower = (f"{f}/{c}", f"{f}/{f}") if value else (f"{c}/{c}", f"{f}/{c}")
        return max(0.0, self.whole.get(upper, 0.0) - self.whole.get(lower, 0.0))
