"""Measures what `edgekv plan` reckons with: rates of weights and of attention on this processor, in about a second for each. Files of zeros
and of a few heads represent the model: the time of a multiplication does not depend on the values."""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from edgekv import _native
from edgekv.amounts import MIB
from edgekv.config import KvOptions
from edgekv.errors import EdgeKVError
from edgekv.models.geometry import ModelFile
from edgekv.models.model_shape import ModelShape
from edgekv.models.model_writer import write_empty
from edgekv.models.shape_weights import row_bytes
from edgekv.rates.host import (
    AttentionRates,
    HostRates,
    KeptRates,
    MatrixShape,
    WeightRates,
    attention_shape,
    matrix_shape,
    measured_types,
    memory_gain,
)
from edgekv.rates.measuring.attention import attention_rates
from edgekv.rates.measuring.busy import Others
from edgekv.rates.measuring.contexts import decoder_of
from edgekv.rates.measuring.steps import best_step, fastest, set_mode, timed
from edgekv.vocab import KvMode

T = TypeVar("T")

Say = Callable[[str], None]

_WEIGHT_BYTES = 64 * MIB  # well above the caches of most processors
_PROMPT_TOKENS = 64
_HEAD_DIM = 32  # of the file of weights
_TINY = MatrixShape(32, 32)
_LOOK_S = 0.1  # to see what other programs do


def host_rates(model: ModelFile, kv: KvOptions, n_threads: int, say: Say = lambda what: None, again: bool = False) -> HostRates:
    """The rates for a model: from the file of this machine's, and measured where it has none, which `say` is told. `again` measures all.

    While other programs are busy, threads that wait for each other wait for those programs too, up to hundreds of times as long. Then one thread
    is measured by its processor time, the others are guessed from it, and nothing is kept. Raises EdgeKVError if EdgeKV is off.
    """
    if not _native.info()["enabled"]:
        raise EdgeKVError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    kept = KeptRates(n_threads, _native.isa())
    shape = attention_shape(model.geometry, kv)
    most_busy = 0.0

    def found(name: str, known: T | None, measure: Callable[[int], T], spread: Callable[[T, int], T]) -> T:
        """measure: with n threads. spread: guesses what n threads do from what one does."""
        nonlocal most_busy
        if known is not None and not again:
            return known
        say(f"measuring this machine once: {name}")
        busy = _busy_now() if n_threads > 1 else 0.0
        if not busy:
            others = Others()
            measured = measure(n_threads)
            busy = others.busy()
            if not busy:
                kept.keep(name, measured)
                return measured
        if n_threads > 1:
            measured = spread(measure(1), n_threads)
        say(f"other programs kept {busy:.1f} cores busy: this is not kept, and measured again the next time")
        most_busy = max(busy, most_busy)
        return measured

    read = found("read", kept.read(), read_rate, lambda rate, n: rate * memory_gain(n))
    attention = found(f"attention {shape.name}", kept.attention(shape),
                      lambda n: attention_rates(shape, n, read * memory_gain(n) / memory_gain(n_threads)), AttentionRates.spread)
    weights: dict[str, WeightRates] = {}
    matrices = matrix_shape(model)
    for kind in measured_types(model):
        weights[kind] = found(f"weights {kind} {matrices.name}", kept.weights(kind, matrices),
                              partial(weight_rates, kind, matrices), WeightRates.spread)
    return HostRates(n_threads, read, weights, attention, most_busy)


def _busy_now() -> float:
    """Cores that other programs keep busy; 0.0 on a quiet machine."""
    others = Others()
    time.sleep(_LOOK_S)
    return others.busy()


# ---- memory ---------------------------------------------------------------------------------------------------------------------


def read_rate(n_threads: int) -> float:
    """Bytes a second that n_threads read, each a part of memory in sequence."""
    parts = [np.ones(64 * MIB // 8, np.uint64) for _ in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        seconds = fastest(lambda: timed(lambda: list(pool.map(np.max, parts))), n_threads)
        return sum(part.nbytes for part in parts) / seconds


# ---- weights --------------------------------------------------------------------------------------------------------------------


def weight_rates(kind: str, matrices: MatrixShape, n_threads: int) -> WeightRates:
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
            step = best_step(decoder, 1, 0)
            stock = best_step(decoder, _PROMPT_TOKENS, 0)
            set_mode(decoder, KvMode.EXACT)
            return step, stock, best_step(decoder, _PROMPT_TOKENS, 0)


def _weights_shape(n_layer: int, kind: str, matrices: MatrixShape) -> ModelShape:
    """With rows as long as the model's, in whole blocks of the type, and next to no attention."""
    block = max(32, GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]][0])
    n_embd, n_ff = (-(-n // block) * block for n in (matrices.n_embd, matrices.n_ff))
    return ModelShape("weights", "llama", n_layer, n_embd, n_ff, n_embd // _HEAD_DIM, 1, _HEAD_DIM, 512, 4096, 10_000.0)
