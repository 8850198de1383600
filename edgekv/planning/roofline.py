"""The estimated time of a token, before anything is loaded: from the bytes that it reads, its arithmetic and this machine's measured rates."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

from msgspec import Struct

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.models.geometry import Geometry, ModelFile
from edgekv.models.traffic import traffic
from edgekv.planning.fit import sparse_layers, whole_layers
from edgekv.planning.host import HostRates, KernelRates, measured_head_dim

ROWS = ((1800, 322), (7168, 403), (16_000, 503), (32_000, 598))
"""(depth, rows that a KV head reads) in mode sparse at sample budget 2,000, measured on the default model (LOG.md). Texts and models differ."""

_ROWS_RESOLUTION = 2000.0

DEPTHS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)

LEAST_TOKENS_PER_S = 5.0
"""About as fast as a person reads."""


def rows_read(depth: int, resolution: float) -> int:
    """Rows that a KV head reads of `depth` tokens in mode sparse; a power of the depth between and beyond the measured depths."""
    points = [(math.log(d), math.log(n)) for d, n in ROWS]
    x = math.log(max(depth, 1))
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if x <= pair[1][0]), (points[-2], points[-1]))
    rows = math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0)) * math.sqrt(resolution / _ROWS_RESOLUTION)
    return min(depth, round(rows))


class Speed(Struct, frozen=True):
    """Estimated tokens a second of a single sequence at a depth; None: unknown."""

    mode: str
    depth: int
    decode: float | None
    prompt: float | None


class _Layer(Struct, frozen=True):
    """The properties on which a layer's time depends."""

    n_head_kv: int
    row_bytes: int  # K and V of a token and head
    slides: bool
    served: bool
    whole: bool

    def is_stock(self, mode: KvMode) -> bool:
        return mode is KvMode.OFF or not (self.served or self.whole)


class HostRoofline:
    """A model on this processor. A token takes a fixed time, the time of its weights, a fixed time for each layer, and attention: the longer of
    the kernel's time and that of reading the bytes."""

    def __init__(self, model: ModelFile, kv: KvOptions, rates: HostRates):
        self._model, self._kv, self._rates = model, kv, rates
        self._traffic = traffic(model)
        shape = model.geometry
        served, whole = set(sparse_layers(shape)), set(whole_layers(shape))
        types = kv.cache.kinds
        layers = [_Layer(n, shape.layer_kv_bytes(il, *types) // max(1, n), shape.swa[il], il in served, il in whole)
                  for il, n in enumerate(shape.n_head_kv)]
        self._layers = Counter(layers).items()  # most layers are alike
        self._decode_weights_s = self._weights(self._traffic.decode_bytes, "decode")
        self._prompt_weights_s = self._weights(self._traffic.prompt_weights, "prompt")

    def _weights(self, read: Mapping[str, int], rate: str) -> dict[bool, float]:
        """Seconds of weights by type, by whether the mode is stock. rate: "decode" or "prompt"."""
        def seconds(rates: Mapping[str, float]) -> float:
            slowest = min(rates.values(), default=math.inf)
            return sum(n / rates.get(kind, slowest) for kind, n in read.items())

        return {stock: seconds({kind: getattr(of, f"{rate}_{'stock' if stock else 'exact'}") for kind, of in self._rates.weights.items()})
                for stock in (True, False)}

    def decode_seconds(self, mode: KvMode, depth: int) -> float:
        """Seconds of one token behind `depth` others."""
        return self._rates.step.token + self._decode_weights_s[mode is KvMode.OFF] + sum(n * self._layer(layer, depth, mode) for layer, n in self._layers)

    def prompt_seconds(self, mode: KvMode, depth: int) -> float:
        """Seconds of one prompt token in a batch behind `depth` tokens."""
        rates = self._rates.attention
        stock = min(rates.flash.prompt, rates.plain.prompt)
        shape = self._model.geometry
        all_stock = shape.mla or shape.index_rows > 0  # stock nodes read prompts of compressed rows, and of an index, in every mode
        per_cell = [n * (stock if all_stock or layer.is_stock(mode) else rates.exact.prompt) * layer.n_head_kv * self._visible(layer, depth)
                    for layer, n in self._layers]
        return self._prompt_weights_s[mode is KvMode.OFF] + self._scale() * sum(per_cell)

    def speed(self, mode: KvMode, depth: int) -> Speed:
        return Speed(mode.value, depth, 1 / self.decode_seconds(mode, depth), 1 / self.prompt_seconds(mode, depth))

    def _visible(self, layer: _Layer, depth: int) -> int:
        return min(depth, self._model.geometry.sliding_window) if layer.slides else depth

    def _scale(self) -> float:
        """The width of K and V over the width of the measured heads: other shapes take time in proportion."""
        shape = self._model.geometry
        measured = 2 * measured_head_dim(shape.head_dim_k, shape.head_dim_v)
        return (shape.head_dim_k + shape.head_dim_v) / measured if shape.head_dim_k else 1.0

    def _layer(self, layer: _Layer, depth: int, mode: KvMode) -> float:
        rates, cells = self._rates.attention, self._visible(layer, depth)
        if not layer.n_head_kv:
            return rates.exact.layer
        listed = self._model.geometry.index_rows if layer.served else 0
        cells = min(cells, listed or cells)  # stock masks the other cells and does not read them
        if layer.is_stock(mode):
            return min(self._attended(layer, kernel, kernel.cells(cells), cells) for kernel in (rates.flash, rates.plain))
        if listed:
            return self._attended(layer, rates.exact, rates.row * cells, cells)
        if mode is KvMode.EXACT or layer.whole or cells <= self._kv.selection.exact_tokens:
            return self._attended(layer, rates.exact, rates.exact.cells(cells), cells)
        read = rows_read(cells, self._kv.selection.typical_resolution)
        return self._attended(layer, rates.exact, rates.row * read + rates.scan * cells, read)

    def _attended(self, layer: _Layer, kernel: KernelRates, head_s: float, n_rows: int) -> float:
        """Seconds of a layer. head_s: a KV head's by the kernel's rates; n_rows: rows that it reads."""
        return kernel.layer + layer.n_head_kv * max(self._scale() * head_s, n_rows * layer.row_bytes / self._rates.read)


def pages_read(model: Geometry, kv: KvOptions, depth: int, page: int) -> int:
    """Pages of a KV home on disk that hold what a token in mode sparse reads, about: rows at random places. With memory for rows (`kv_budget`) each
    head's rows lie together, K beside V; otherwise K and V apart, all heads of a token side by side. Fewer come from the disk: most were read for the
    tokens before."""
    n_rows, found = rows_read(depth, kv.selection.typical_resolution), 0.0
    for il in sparse_layers(model):
        n_heads, n_bytes = model.n_head_kv[il], depth * model.layer_kv_bytes(il, *kv.cache.kinds)
        n_parts, n_of_part = (n_heads, n_rows) if kv.placement.kv_budget else (2, n_rows * n_heads)
        n_pages = n_bytes / n_parts / page
        found += n_parts * n_pages * -math.expm1(-n_of_part / n_pages)
    return math.ceil(found)


def depth_at(tokens_per_s: float, speed: Callable[[int], float], most: int) -> int | None:
    """The largest depth below `most` with `speed(depth)` of at least `tokens_per_s`; None: `most` has it too; 0: no depth has. speed must fall
    with depth."""
    if speed(most) >= tokens_per_s:
        return None
    return bisect(range(1, most), 0, key=lambda depth: speed(depth) < tokens_per_s)
