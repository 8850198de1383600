"""Measures what attention costs on this processor, for `edgekv plan`: steps of a small model with the heads of a larger one, behind a cache
that is mostly made up."""

import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from edgekv.common.enums import KvMode
from edgekv.common.units import MIB
from edgekv.measure.busy import Others
from edgekv.measure.contexts import Contexts, Opening, contexts
from edgekv.measure.decoder import Decoder
from edgekv.measure.filling import Fill
from edgekv.measure.steps import HELD, best_step, in_turns, rotated, set_mode, shortest, timed
from edgekv.models.model_shape import ModelShape
from edgekv.models.model_writer import write_model
from edgekv.planning.host import MIDDLE, NEAR, AttentionRates, AttentionShape, KernelRates, StepRates

_SHALLOW, _FAR = 256, 8192
_CHUNKS = {"exact": 256, "flash": 128, "plain": 128}  # tokens of a prompt: of more, where a kernel reads K and V once for many
_N_HEADS = 9  # KV heads of all layers together
_CHEAP = 4096  # numbers of all query heads
_COLD_BYTES = 64 * MIB  # well above the caches of most processors
_TURNS = 2  # of which the first builds graphs
_FEW, _MANY = 500.0, 32_000.0
"""Two resolutions of mode sparse: their difference gives the time of a row."""

_MOST_ROW = 4
"""A row by itself costs at most this many times a row in a run."""

_SKETCH_BITS = 3
"""Bits of a key's channel in the default sketches."""

_FLOOR = 1e-3
"""A rate that noise makes zero or negative becomes this share of another rate."""


def attention_rates(shape: AttentionShape, n_threads: int, read: float, step: StepRates) -> AttentionRates:
    """Steps of a small model with this shape of heads, at some depths and in each mode. read: bytes a second of memory."""
    n_kv, n_layer = shape.n_head_kv, layers_read(shape)
    n_ctx = depth_read(shape) + _SHALLOW
    heads = ModelShape("heads", "llama", n_layer, 32, 32, n_kv * shape.group, n_kv, shape.head_dim, 384, n_ctx, 10_000.0)
    options = {"type_k": shape.type_k, "type_v": shape.type_v, "attention_device": "cpu", "n_gpu_layers": 0, "kv_budget": None}
    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        path = write_model(heads, Path(folder) / "heads.gguf", "f16")
        opening = Opening(path, _chunk, n_ctx, n_ctx if shape.type_v == "f16" else None, _SHALLOW, _SHALLOW, Fill.SYNTHETIC,
                          n_computed=_SHALLOW, options=options)
        with contexts(opening, n_threads) as opened:
            return _Attention(opened, shape, read, step).rates()


def _chunk(_llama: object, _n: int) -> list[int]:
    return np.random.default_rng(0).integers(260, 350, _SHALLOW).tolist()


class _Attention:
    def __init__(self, opened: Contexts, shape: AttentionShape, read: float, step: StepRates):
        """read: bytes a second of memory."""
        self.opened, self.decoder, self.shape, self.step = opened, opened.first, shape, step
        self.sketch_s = shape.head_dim * _SKETCH_BITS / 8 / read
        self.n_layer = layers_read(shape)
        self.n_heads = self.n_layer * shape.n_head_kv
        self.cold = np.ones(_COLD_BYTES // 8, np.uint64)
        self.kernels: dict[str, tuple[Decoder, KvMode]] = {"exact": (self.decoder, KvMode.EXACT), "flash": (self.decoder, KvMode.OFF)}
        if opened.second is not None:
            self.kernels["plain"] = opened.second, KvMode.OFF

    def rates(self) -> AttentionRates:
        depths = [n + HELD for n in (_SHALLOW, NEAR, MIDDLE, _FAR) if n <= depth_read(self.shape)]
        first = self._prompts(0)
        self.opened.fill_to(depths[0])
        warm = self._steps(depths[0], None)  # the fixed time of a layer, whose code and graph lie in the caches as after other layers
        steps: dict[str, list[float]] = {name: [] for name in self.kernels}
        prompts: dict[str, float] = {}
        for depth in depths:
            self.opened.fill_to(depth)
            if depth == depths[-2]:  # many heads make a prompt's chunk slow
                prompts = self._prompts(depth)
            for name, seconds in self._steps(depth, self.cold).items():
                steps[name].append(seconds)
        found = {name: self._kernel(depths, seconds, warm[name], max(prompts[name] - first[name], _FLOOR * first[name])
                                   / (_CHUNKS[name] * self.n_heads * depths[-2]))
                 for name, seconds in steps.items()}
        nothing = max(steps["exact"][0] - found["exact"].near * self.n_heads * depths[0], 0.0)
        row, scan = self._row_and_scan(found["exact"], nothing, depths[-1])
        return AttentionRates(found["exact"], found["flash"], found.get("plain", found["flash"]), row, scan)

    def _kernel(self, depths: list[int], seconds: list[float], warm: float, prompt: float) -> KernelRates:
        """seconds: of a step behind `depths` tokens with empty caches; warm: behind the first of them, with what the last step left there. prompt: as
        it is."""
        slopes = [max((b - a) / (n - m), _FLOOR * b / n) for (m, n), (a, b) in zip(pairwise(depths), pairwise(seconds))]
        layer = max((warm - self.step.token - slopes[0] * depths[0]) / self.n_layer, self.step.layer)
        near, middle, far = (slope / self.n_heads for slope in (*slopes[:2], slopes[-1]))
        return KernelRates(layer, near, middle, far, prompt)

    def _row_and_scan(self, exact: KernelRates, nothing: float, depth: int) -> tuple[float, float]:
        """Seconds of a row and of a cell's scan, from the seconds and rows of two steps. nothing: seconds of a step that attends nothing, with empty
        caches. Bounds against noise: a single row is no faster than one in a run, and a sketch no faster than memory."""
        (few_s, few), (many_s, many) = self._sparse(_FEW), self._sparse(_MANY)
        row = (many_s - few_s) / (self.n_heads * max(1.0, many - few))
        row = min(max(row, exact.far), _MOST_ROW * exact.far)
        left = max((few_s - nothing) / self.n_heads, self.sketch_s * depth)  # of a head
        scan = max((left - row * few) / depth, self.sketch_s)
        return max(exact.far, min(row, (left - scan * depth) / few)), scan

    def _prompts(self, depth: int) -> dict[str, float]:
        """Seconds of a chunk behind `depth` tokens, by kernel: the fastest of several, in turns, because other programs may be busy for a while."""
        others = Others()
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in self.kernels}
        for name in (name for turn in range(_TURNS) for name in rotated(tuple(self.kernels), turn)):
            decoder = self._ready(name, depth)
            samples[name].append(timed(partial(decoder.decode, self.opened.tokens[: _CHUNKS[name]])))
            decoder.rewind(depth)
        return {name: shortest(taken, self.decoder.n_threads, others) for name, taken in samples.items()}

    def _steps(self, depth: int, cold: np.ndarray | None) -> dict[str, float]:
        """Seconds of a step by kernel."""
        def step(name: str) -> float:
            return best_step(self._ready(name, depth), 1, depth, cold)

        return in_turns(self.kernels, step)

    def _ready(self, name: str, depth: int) -> Decoder:
        decoder, mode = self.kernels[name]
        decoder.rewind(depth)
        if decoder is self.decoder:
            set_mode(decoder, mode)
        return decoder

    def _sparse(self, resolution: float) -> tuple[float, float]:
        """Seconds of a step, and the rows that a head read in it."""
        runtime = set_mode(self.decoder, KvMode.SPARSE, sample_budget=resolution)
        before = runtime.selection()
        seconds = best_step(self.decoder, 1, self.decoder.position, self.cold)
        return seconds, runtime.selection().since(before).rows_per_head


def layers_read(shape: AttentionShape) -> int:
    """Layers of the small model."""
    return max(2, round(_N_HEADS / shape.n_head_kv))


def depth_read(shape: AttentionShape) -> int:
    """Tokens in the cache at most: fewer where each costs more."""
    return _FAR if shape.head_dim * shape.group * shape.n_head_kv * layers_read(shape) <= _CHEAP else MIDDLE
