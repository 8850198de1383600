"""The ways to run a context that `bench kv` compares."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekv.registry import Registry
from edgekv.runtime import Runtime
from edgekv.vocab import KvMode


@dataclass(frozen=True)
class BenchMode:
    """A KV mode with its options; `figures` are those it has by its nature, e.g. attended_fraction."""

    kv: KvMode
    observe: bool = False
    flash_attn: bool = True
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def alternates(self) -> bool:
        """Whether a context can switch to it. One that cannot has a context of its own, and only its predictions are compared."""
        return self.flash_attn

    def select(self, runtime: Runtime) -> None:
        runtime.mode, runtime.observe = self.kv, self.observe


STOCK = "off"
"""What all others are compared with."""

MODES: Registry[BenchMode] = Registry("bench mode")

_ALL_PAGES = {"coverage": 1.0, "attended_fraction": 1.0}

MODES.add(STOCK, BenchMode(KvMode.OFF), "stock llama.cpp with flash attention, always measured for comparison")
MODES.add("off-noflash", BenchMode(KvMode.OFF, flash_attn=False),
          "stock without flash attention, its predictions only: how far apart two correct kernels are on this model")
MODES.add("exact", BenchMode(KvMode.EXACT, observe=True, figures=_ALL_PAGES), KvMode.EXACT.description)
MODES.add("exact-unobserved", BenchMode(KvMode.EXACT, figures=_ALL_PAGES), "exact without measuring attention mass")
