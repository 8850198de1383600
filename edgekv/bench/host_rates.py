"""Measures what `edgekv plan` reckons with: rates of weights and of attention on this processor, in about a second for each. Files of zeros
and of a few heads stand for the model: a multiplication takes as long whatever it multiplies."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from edgekv import _native
from edgekv.amounts import MIB
from edgekv.bench.harness.decoder import Decoder
from edgekv.bench.harness.passes import ContextError, beside, decoder_of
from edgekv.config import KvOptions
from edgekv.errors import EdgeKVError
from edgekv.live.runtime import Runtime
from edgekv.memory.host_rates import (
    AttentionRates,
    AttentionShape,
    HostRates,
    Kept,
    MatrixShape,
    WeightRates,
    attention_shape,
    matrix_shape,
    measured_types,
)
from edgekv.models.geometry import ModelFile
from edgekv.models.shapes import ModelShape, row_bytes
from edgekv.models.writer import write_empty, write_model
from edgekv.vocab import KvMode

T = TypeVar("T")

Say = Callable[[str], None]

_WEIGHT_BYTES = 64 * MIB  # well above the caches of most processors
_PROMPT_TOKENS = 64
_HEAD_DIM = 32  # of the file of weights
_TINY = MatrixShape(32, 32)
_DEEP, _SHALLOW, _BATCH = 2048, 256, 256
_N_HEADS = 9  # KV heads of all layers together
_CHEAP = 2048  # numbers of all query heads
_LEAST_STEPS, _PATIENCE_S = 2, 0.2
_FEW, _MANY = 500.0, 32_000.0
"""Two resolutions of mode sparse, whose difference is the time of a row."""

_MOST_ROW = 4
"""Times a row in a run of rows: what one by itself costs at most."""

_SKETCH_BITS = 3
"""Of a channel of a key, in the sketches that are the default."""

_NO_TIERS = {"policy": "none", "kv_budget": 0}
_FLOOR = 1e-3
"""A rate that noise made nothing or less of is this share of another."""


def host_rates(model: ModelFile, kv: KvOptions, n_threads: int, say: Say = lambda what: None, again: bool = False) -> HostRates:
    """The rates for a model: from the file of this machine's, and measured where it has none, which `say` is told. `again` measures all."""
    kept = Kept(n_threads, _native.isa())
    shape = attention_shape(model.geometry, kv)

    def found(name: str, known: T | None, measure: Callable[[], T]) -> T:
        if known is not None and not again:
            return known
        say(f"measuring this machine once: {name}")
        measured = measure()
        kept.keep(name, measured)
        return measured

    read = found("read", kept.read(), lambda: read_rate(n_threads))
    attention = found(f"attention {shape.name}", kept.attention(shape), lambda: attention_rates(shape, n_threads, read))
    weights: dict[str, WeightRates] = {}
    matrices = matrix_shape(model)
    for kind in measured_types(model):
        weights[kind] = found(f"weights {kind} {matrices.name}", kept.weights(kind, matrices),
                              partial(weight_rates, kind, n_threads, matrices))
    return HostRates(n_threads, read, weights, attention)


# ---- memory ---------------------------------------------------------------------------------------------------------------------


def read_rate(n_threads: int) -> float:
    """Bytes a second that `n_threads` read of memory, each its own part, in a row."""
    parts = [np.ones(64 * MIB // 8, np.uint64) for _ in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        seconds: list[float] = []
        while len(seconds) <= _LEAST_STEPS or sum(seconds) < _PATIENCE_S:
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - began)
        return sum(part.nbytes for part in parts) / min(seconds)


# ---- weights --------------------------------------------------------------------------------------------------------------------


def weight_rates(kind: str, n_threads: int, matrices: MatrixShape) -> WeightRates:
    """Of a file of weights, less what as many layers of next to no weights take."""
    shape = _weights_shape(1, kind, matrices)
    per_layer = shape.file_bytes(kind) - 2 * row_bytes(shape.n_vocab * shape.n_embd, kind)
    shape = _weights_shape(max(2, round(_WEIGHT_BYTES / per_layer)), kind, matrices)
    step, stock, exact = _weight_steps(shape, kind, n_threads)
    empty, _, _ = _weight_steps(_weights_shape(shape.n_layer, "f32", _TINY), "f32", n_threads)
    last = f"blk.{shape.n_layer - 1}.ffn_"  # which the last token of a prompt alone goes through
    weights = sum(tensor.n_elements for tensor in shape.weights()
                  if tensor.name.startswith("blk.") and not tensor.name.startswith(last) and not tensor.is_vector)
    n_bytes = shape.file_bytes(kind) - row_bytes(shape.n_vocab * shape.n_embd, kind)
    return WeightRates(n_bytes / max(step - empty, step / 2), weights * _PROMPT_TOKENS / stock, weights * _PROMPT_TOKENS / exact)


def _weight_steps(shape: ModelShape, kind: str, n_threads: int) -> tuple[float, float, float]:
    """Seconds of a token, and of _PROMPT_TOKENS together with stock and in mode exact, with nothing before them."""
    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        path = write_empty(shape, Path(folder) / "weights.gguf", kind)
        with decoder_of(path, kv=KvMode.OFF, n_ctx=256, n_batch=_PROMPT_TOKENS, n_ubatch=_PROMPT_TOKENS, n_threads=n_threads,
                        n_threads_batch=n_threads, n_gpu_layers=0) as decoder:
            step = _best(decoder, 1, 0)
            stock = _best(decoder, _PROMPT_TOKENS, 0)
            step = min(step, _best(decoder, 1, 0))  # others may have been busy for a while
            _set_mode(decoder, KvMode.EXACT)
            return step, stock, _best(decoder, _PROMPT_TOKENS, 0)


def _set_mode(decoder: Decoder, mode: KvMode, **changes: Any) -> Runtime:
    runtime = decoder.kv
    if runtime is None:
        raise EdgeKVError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    runtime.configure(runtime.options.with_(mode=mode, **_NO_TIERS, **changes))
    return runtime


def _weights_shape(n_layer: int, kind: str, matrices: MatrixShape) -> ModelShape:
    """With rows as long as the model's, in whole blocks of the type, and next to no attention."""
    block = max(32, GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]][0])
    n_embd, n_ff = (-(-n // block) * block for n in (matrices.n_embd, matrices.n_ff))
    return ModelShape("weights", "llama", n_layer, n_embd, n_ff, n_embd // _HEAD_DIM, 1, _HEAD_DIM, 512, 4096, 10_000.0)


def _best(decoder: Decoder, n_tokens: int, depth: int, cold: np.ndarray | None = None) -> float:
    """Seconds of the fastest of the steps behind `depth` tokens that a short while allows: other programs make any of them slower, and
    none faster. The first is not counted. cold: read before each step, so that the caches hold nothing of the last one, as after the
    weights of a model."""
    began, seconds = time.perf_counter(), list[float]()
    while len(seconds) <= _LEAST_STEPS or time.perf_counter() < began + _PATIENCE_S:
        decoder.rewind(depth)
        if cold is not None:
            cold.max()
        seconds.append(decoder.decode([300 + len(seconds) % 8] * n_tokens))
    decoder.rewind(depth)
    return min(seconds[1:])


# ---- attention ------------------------------------------------------------------------------------------------------------------


def attention_rates(shape: AttentionShape, n_threads: int, read: float) -> AttentionRates:
    """Steps of a small model with this shape of heads, at two depths and in each mode. read: bytes a second of memory."""
    n_kv, n_layer = shape.n_head_kv, layers_read(shape)
    heads = ModelShape("heads", "llama", n_layer, 32, 32, n_kv * shape.group, n_kv, shape.head_dim, 384, 4096, 10_000.0)
    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        path = write_model(heads, Path(folder) / "heads.gguf", "f16")
        with decoder_of(path, kv=KvMode.EXACT, n_ctx=depth_read(shape) + 256, n_batch=_BATCH, n_ubatch=_BATCH, n_threads=n_threads, kv_budget=None,
                        n_threads_batch=n_threads, n_gpu_layers=0, type_k=shape.type_k, type_v=shape.type_v, device="cpu") as decoder:
            return _Attention(decoder, shape, read, heads.file_bytes("f16")).rates()


class _Attention:
    def __init__(self, decoder: Decoder, shape: AttentionShape, read: float, weight_bytes: int):
        """read: bytes a second of memory. weight_bytes: of the small model."""
        self.decoder, self.shape = decoder, shape
        self.weights_s, self.sketch_s = weight_bytes / read, shape.head_dim * _SKETCH_BITS / 8 / read
        self.n_layer = layers_read(shape)
        self.n_heads = self.n_layer * shape.n_head_kv
        self.deep = depth_read(shape)
        self.cold = np.ones(_WEIGHT_BYTES // 8, np.uint64)
        self.tokens = np.random.default_rng(0).integers(260, 350, self.deep).tolist()

    def rates(self) -> AttentionRates:
        self._mode(KvMode.EXACT)
        prompt_exact = self._prompt(self.decoder)
        few, n_few = self._sparse(_FEW)
        many, n_many = self._sparse(_MANY)
        deep = {mode: self._step(mode, self.deep) for mode in (KvMode.EXACT, KvMode.OFF)}
        shallow = {mode: self._step(mode, _SHALLOW) for mode in (KvMode.EXACT, KvMode.OFF)}
        exact, base = self._line(shallow[KvMode.EXACT], deep[KvMode.EXACT])
        stock, stock_base = min(self._line(shallow[KvMode.OFF], deep[KvMode.OFF]), self._without_flash())
        prompt_stock = self._prompt(self.decoder)
        row, scan = self._row_and_scan((few, n_few), (many, n_many), exact, base)
        layer, stock_layer = (max(seconds - self.weights_s, _FLOOR * seconds) / self.n_layer for seconds in (base, stock_base))
        return AttentionRates(layer, stock_layer, stock, exact, row, scan, prompt_stock, prompt_exact)

    def _row_and_scan(self, few: tuple[float, float], many: tuple[float, float], exact: float, base: float) -> tuple[float, float]:
        """Seconds of a row, and of the scan of a cell, from two steps: their seconds, and the rows that a head read. Noise aside a row by itself
        is read no faster than in a run, and a sketch no faster than memory gives it."""
        least = self.sketch_s
        row = (many[0] - few[0]) / (self.n_heads * max(1.0, many[1] - few[1]))
        row = min(max(row, exact), _MOST_ROW * exact)
        left = max((few[0] - base) / self.n_heads, least * self.deep)  # of a head
        scan = max((left - row * few[1]) / self.deep, least)
        return max(exact, min(row, (left - scan * self.deep) / few[1])), scan

    def _prompt(self, decoder: Decoder) -> float:
        """Read everything in. Returns the seconds that a token takes longer for each cell before it, of one head: the last chunk against
        the first."""
        decoder.rewind(0)
        chunks = [self.tokens[first : first + _BATCH] for first in range(0, self.deep, _BATCH)]
        first = min(self._again(decoder, chunks[0], 0) for _ in range(2))
        for chunk in chunks[1:-1]:
            decoder.decode(chunk)
        last = min(self._again(decoder, chunks[-1], self.deep - _BATCH) for _ in range(2))
        return max(last - first, _FLOOR * last) / (_BATCH * self.n_heads * (self.deep - _BATCH))

    def _again(self, decoder: Decoder, chunk: list[int], depth: int) -> float:
        decoder.rewind(depth)
        return decoder.decode(chunk)

    def _mode(self, mode: KvMode, **changes: Any) -> Runtime:
        return _set_mode(self.decoder, mode, **changes)

    def _step(self, mode: KvMode, depth: int) -> float:
        self._mode(mode)
        self.decoder.rewind(depth)
        return _best(self.decoder, 1, depth, self.cold)

    def _line(self, shallow: float, deep: float) -> tuple[float, float]:
        """Through the seconds of a step behind few tokens and behind many: of one more cell of a head, and of a step without any."""
        per_cell = max((deep - shallow) / (self.deep - _SHALLOW), _FLOOR * deep / self.deep)
        return per_cell / self.n_heads, max(shallow - per_cell * _SHALLOW, _FLOOR * shallow)

    def _sparse(self, resolution: float) -> tuple[float, float]:
        """Seconds of a step, and the rows that a head read in it."""
        runtime = self._mode(KvMode.SPARSE, resolution=resolution)
        before = runtime.selection()
        seconds = _best(self.decoder, 1, self.deep, self.cold)
        return seconds, runtime.selection().since(before).rows_per_head

    def _without_flash(self) -> tuple[float, float]:
        """As `_line`, with stock's other kernel; infinite where it cannot run."""
        if self.shape.type_v != "f16":
            return math.inf, math.inf
        try:
            with beside(self.decoder, self.deep + 256, flash_attn=False) as other:
                other.set_threads(self.decoder.llama.context_params.n_threads)
                for first in range(0, self.deep, _BATCH):
                    other.decode(self.tokens[first : first + _BATCH])
                deep = _best(other, 1, self.deep, self.cold)
                other.rewind(_SHALLOW)
                return self._line(_best(other, 1, _SHALLOW, self.cold), deep)
        except ContextError:
            return math.inf, math.inf


def layers_read(shape: AttentionShape) -> int:
    """Layers of the small model."""
    return max(2, round(_N_HEADS / shape.n_head_kv))


def depth_read(shape: AttentionShape) -> int:
    """Tokens that are read in: fewer where each costs more. Mode sparse selects from 768 on."""
    return _DEEP if shape.head_dim * shape.group * shape.n_head_kv * layers_read(shape) <= _CHEAP else _DEEP // 2
