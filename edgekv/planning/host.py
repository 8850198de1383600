"""Rates of this machine's processor with weights and caches, kept by kind of processor, kernels and version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import edgekv
from edgekv.common import json_file
from edgekv.common.json_file import Rate
from edgekv.common.machine import cpu_family
from edgekv.common.units import MIB
from edgekv.config import KvOptions
from edgekv.models.geometry import Geometry, ModelFile
from edgekv.models.traffic import EXPERTS, Traffic, experts_used, traffic
from edgekv.planning.kept import Kept

_LARGEST_GROUP = 16
_MEASURED = (64, 80, 96, 112, 128, 192, 256)
NEAR, MIDDLE = 2048, 4096
"""Cells of a layer beyond which one more cell costs more."""

_PROMPT_TOKENS = 256
"""So many tokens make a step's fixed time a small part, as in a real prompt."""

_UBATCH = 512
"""llama.cpp's default, of which each expert gets a part."""

_MOST_EXPERTS = 32
"""Of more a stand-in has fewer, and reads a shorter prompt: each gets the same part."""

_FEWEST_MIB = 16  # of weights: fewer take too short a time

_LEAST_SHARE = 0.05
"""A kind of weights is measured from this share of a token's bytes on; others count as the slowest."""


def memory_gain(n_threads: int) -> float:
    """The speed-up of reading memory with n threads: a guess, in which each thread adds less than the one before."""
    return n_threads**0.75


class WeightRates(Struct, frozen=True, forbid_unknown_fields=True):
    """The rates of one ggml type of weights."""

    decode_stock: Rate
    """Decoding one token with ggml: bytes of weights a second."""
    decode_exact: Rate
    """The same in EdgeKV's modes, which have their own kernels for some types."""
    prompt_stock: Rate
    """Reading a prompt with ggml: weights a second, times the tokens of the batch."""
    prompt_exact: Rate
    """The same in EdgeKV's modes."""

    def spread(self, n_threads: int) -> WeightRates:
        """The rates of n_threads, guessed from one thread's."""
        gain = memory_gain(n_threads)
        return WeightRates(self.decode_stock * gain, self.decode_exact * gain, self.prompt_stock * n_threads, self.prompt_exact * n_threads)


class StepRates(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step that computes next to nothing: threads wait for each other, and a graph is built."""

    token: Rate
    """Besides the layers."""
    layer: Rate
    """A layer of next to no weights and next to nothing in its cache."""


class KernelRates(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a kernel that attends every cell."""

    layer: Rate
    """A layer with nothing in its cache and next to no weights."""
    near: Rate
    """One more cell for a decoded token, for one KV head and its query heads, up to NEAR cells of a layer."""
    middle: Rate
    """The same from NEAR to MIDDLE: a layer's K and V no longer fit into a core's cache."""
    far: Rate
    """The same beyond MIDDLE: nor do the addresses of its pages."""
    prompt: Rate
    """One more cell for one prompt token, for such a head."""

    def spread(self, n_threads: int) -> KernelRates:
        """The rates of n_threads, guessed from one thread's."""
        gain = memory_gain(n_threads)
        return KernelRates(self.layer, self.near / gain, self.middle / gain, self.far / gain, self.prompt / n_threads)

    def cells(self, n: int) -> float:
        """Seconds of a head that decodes behind `n` cells."""
        return self.near * min(n, NEAR) + self.middle * max(0, min(n, MIDDLE) - NEAR) + self.far * max(0, n - MIDDLE)


class AttentionRates(Struct, frozen=True, forbid_unknown_fields=True):
    """The rates of one shape of attention. row and scan: seconds for one KV head and its query heads."""

    exact: KernelRates
    flash: KernelRates
    """Stock's, with flash attention."""
    plain: KernelRates
    """Stock's, without; if it cannot run, the same as `flash`."""
    row: Rate
    """Mode sparse: reading one more row."""
    scan: Rate
    """Mode sparse: scanning one more cell's sketch."""

    def spread(self, n_threads: int) -> AttentionRates:
        """The rates of n_threads, guessed from one thread's."""
        gain = memory_gain(n_threads)
        return AttentionRates(self.exact.spread(n_threads), self.flash.spread(n_threads), self.plain.spread(n_threads), self.row / gain,
                              self.scan / gain)


class AttentionShape(Struct, frozen=True):
    """The key of attention's rates: all that they depend on."""

    head_dim: int
    group: int
    """Query heads of a KV head."""
    n_head_kv: int = 2
    """KV heads of a layer, which set how far apart a head's rows lie."""
    type_k: str = "f16"
    type_v: str = "f16"

    @property
    def name(self) -> str:
        return f"{self.head_dim}x{self.group}x{self.n_head_kv} {self.type_k}/{self.type_v}"


class MatrixShape(Struct, frozen=True):
    """The sizes that the rates of weights depend on besides the type, because a product starts again for each row."""

    n_embd: int
    n_ff: int
    n_mib: int = 64
    """Of all weights, a power of two: the more there are, the smaller the part that a processor's caches hold."""
    n_tokens: int = _PROMPT_TOKENS
    n_expert: int = 1
    n_used: int = 1
    """Experts that a token goes to."""

    @property
    def name(self) -> str:
        return f"{self.n_embd}x{self.n_ff} {self.n_mib} {self.n_tokens} {self.n_used}/{self.n_expert}"


_LONGEST = MatrixShape(2048, 8192, n_mib=512)
"""A byte of longer rows, and of more weights, takes no longer."""


class HostRates(Struct, frozen=True, forbid_unknown_fields=True):
    """All rates for one model, on this processor with n_threads."""

    n_threads: int
    read: float
    """Bytes a second, reading memory in sequence."""
    step: StepRates
    weights: Mapping[str, WeightRates]
    attention: AttentionRates
    busy: float = 0.0
    """Cores that other programs kept busy during a measurement: then the rates are a guess, and not kept. 0.0: none."""


class KeptRates:
    """The measured rates of this machine's processor."""

    def __init__(self, n_threads: int, isa: str, path: Path | None = None):
        self.n_threads = n_threads
        self.file = Kept("host-rates.json", "the measured rates", path=path)
        self._machine = f"{cpu_family()}; {isa} kernels; {n_threads} threads; EdgeKV {edgekv.__version__}; quiet, 2"  # 2: the way of measuring

    def read(self) -> float | None:
        return self._made(Rate, "read")

    def step(self) -> StepRates | None:
        return self._made(StepRates, "step")

    def weights(self, kind: str, matrices: MatrixShape) -> WeightRates | None:
        return self._made(WeightRates, f"weights {kind} {matrices.name}")

    def attention(self, shape: AttentionShape) -> AttentionRates | None:
        return self._made(AttentionRates, f"attention {shape.name}")

    def keep(self, name: str, value: Any) -> None:
        """name: "read", "step", "weights TYPE MATRICES" or "attention SHAPE"; value: a number or rates."""
        self.file.keep(self._machine, self._mine() | {name: value})

    def _mine(self) -> dict[str, Any]:
        return self.file.find(self._machine, dict) or {}

    def _made(self, kind: Any, name: str) -> Any:
        return json_file.made(kind, self._mine().get(name))


def kept_for(model: ModelFile, kv: KvOptions, kept: KeptRates) -> HostRates | None:
    """All rates that a model needs; None if one was never measured."""
    read, step, attention = kept.read(), kept.step(), kept.attention(attention_shape(model.geometry, kv))
    measured = measured_weights(model)
    weights = {kind: rates for kind, matrices in measured.items() if (rates := kept.weights(kind, matrices)) is not None}
    if read is None or step is None or attention is None or len(weights) < len(measured):
        return None
    return HostRates(kept.n_threads, read, step, weights, attention)


def attention_shape(model: Geometry, kv: KvOptions) -> AttentionShape:
    """Of the first layer with a KV cache; a model without any counts as a small one."""
    types = (kv.cache.type_k.value, kv.cache.type_v.value)
    il = next((il for il, n in enumerate(model.n_head_kv) if n), None)
    if il is None:
        return AttentionShape(64, 1, 2, *types)
    group = min(_LARGEST_GROUP, max(1, model.n_head[il] // model.n_head_kv[il]))
    return AttentionShape(measured_head_dim(model.head_dim_k, model.head_dim_v), group, model.n_head_kv[il], *types)


def _matrix_shape(model: ModelFile, of: Traffic, of_experts: bool = False) -> MatrixShape:
    """The sizes that most of a model's weights have, or of its experts', up to those where a row's start no longer counts."""
    arch, n_embd = model.geometry.architecture, model.geometry.n_embd
    found = of_experts and model.header.value(f"{arch}.expert_feed_forward_length", 0) or model.header.value(f"{arch}.feed_forward_length", 0)
    n_ff = max(map(int, found), default=0) if isinstance(found, list) else int(found)
    n_mib = 2 ** round(math.log2(max(_FEWEST_MIB, of.kept_bytes / MIB)))
    dense = MatrixShape(min(n_embd, _LONGEST.n_embd), min(n_ff or 2 * n_embd, _LONGEST.n_ff), min(n_mib, _LONGEST.n_mib))
    if not of_experts:
        return dense
    n_used, n_expert = experts_used(model)
    n = min(n_expert, max(_MOST_EXPERTS, 2 * n_used))
    return replace(dense, n_tokens=max(1, _UBATCH * n // n_expert), n_expert=n, n_used=n_used)


def measured_head_dim(head_dim_k: int, head_dim_v: int) -> int:
    """The head size to measure in place of this one: itself, or one that our kernels serve."""
    if head_dim_k == head_dim_v and head_dim_k in _MEASURED:
        return head_dim_k
    return 256 if min(head_dim_k, head_dim_v) >= 256 else 128


def measured_weights(model: ModelFile) -> dict[str, MatrixShape]:
    """Kinds of weights (`Traffic`) that take their share of a token's bytes, the largest in any case, each with the sizes to measure it in."""
    of = traffic(model)
    ordered = sorted(of.decode_bytes, key=lambda kind: -of.decode_bytes[kind])
    return {kind: _matrix_shape(model, of, kind.endswith(EXPERTS)) for i, kind in enumerate(ordered)
            if i == 0 or of.decode_bytes[kind] >= _LEAST_SHARE * of.active_bytes}
