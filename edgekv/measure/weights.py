"""Measures what `edgekv plan` reckons with: rates of weights and of attention on this processor, in one to three seconds for each. Files of
zeros and of a few heads represent the model: the time of a multiplication does not depend on the values. A file has as many weights as the
model, up to 512 MiB: on a Zen 5 with 32 MiB of cache a byte of 64 MiB took 0.65 of the time of one of 512."""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgekv import _native
from edgekv.common.enums import KvMode
from edgekv.common.errors import EdgeKVError
from edgekv.common.units import MIB
from edgekv.config import KvOptions
from edgekv.measure.attention import attention_rates
from edgekv.measure.busy import Others
from edgekv.measure.contexts import decoder_of
from edgekv.measure.decoder import Decoder
from edgekv.measure.steps import HELD, best_step, fastest, in_turns, set_mode, timed
from edgekv.models.geometry import ModelFile
from edgekv.models.model_shape import Experts, ModelShape
from edgekv.models.model_writer import write_empty
from edgekv.models.shape_weights import Weights, block_of, row_bytes
from edgekv.models.traffic import EXPERTS
from edgekv.planning.host import (
    AttentionRates,
    HostRates,
    KeptRates,
    MatrixShape,
    StepRates,
    WeightRates,
    attention_shape,
    measured_weights,
    memory_gain,
)

T = TypeVar("T")

Show = Callable[[str, int, int], None]
"""Called before each measurement with (what is done, finished measurements, all of them)."""

WHAT = "measuring this machine"

_PROMPT_BYTES = 8 * MIB  # many tokens compute for so long on what they read that caches do not matter
_PROMPT_S = 1.0  # without fast kernels a prompt's token takes as long as one by itself: so many seconds of such tokens are enough
_FEW_LAYERS, _MOST_LAYERS = 2, 128  # llama.cpp refuses many more, and a model of such small matrices lies in a cache itself
_TINY = MatrixShape(32, 32)
_FLOOR = 1e-3  # of what was measured, where noise makes a difference zero or negative
_LOOK_S = 0.1  # to see what other programs do


def host_rates(model: ModelFile, kv: KvOptions, n_threads: int, show: Show = lambda what, done, total: None, again: bool = False) -> HostRates:
    """The rates for a model: from the file of this machine's, and measured where it has none, which `show` is told. `again` measures all.

    While other programs are busy, threads that wait for each other wait for those programs too, up to hundreds of times as long. Then one thread
    is measured by its processor time, the others are guessed from it, and nothing is kept. Raises EdgeKVError if EdgeKV is off.
    """
    if not _native.info()["enabled"]:
        raise EdgeKVError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    kept = KeptRates(n_threads, _native.isa())
    shape, measured = attention_shape(model.geometry, kv), measured_weights(model)
    known_read, known_step, known_attention = (None, None, None) if again else (kept.read(), kept.step(), kept.attention(shape))
    known_weights = {kind: None if again else kept.weights(kind, matrices) for kind, matrices in measured.items()}
    n_missing, n_done = [known_read, known_step, known_attention, *known_weights.values()].count(None), 0
    most_busy, look = 0.0, n_threads > 1

    def found(name: str, known: T | None, measure: Callable[[int], T], spread: Callable[[T, int], T]) -> T:
        """measure: with n threads. spread: guesses what n threads do from what one does."""
        nonlocal most_busy, look, n_done
        if known is not None:
            return known
        show(WHAT, n_done, n_missing)
        busy = _busy_now() if look else 0.0
        if not busy:
            others = Others()
            measured = measure(n_threads)
            busy = others.busy()
            if not busy:
                kept.keep(name, measured)
        if busy and n_threads > 1:
            measured = spread(measure(1), n_threads)
        most_busy, look, n_done = max(busy, most_busy), n_threads > 1 and busy > 0, n_done + 1
        return measured

    read = found("read", known_read, read_rate, lambda rate, n: rate * memory_gain(n))
    step = found("step", known_step, step_rates, lambda rates, n: rates)
    attention = found(f"attention {shape.name}", known_attention,
                      lambda n: attention_rates(shape, n, read * memory_gain(n) / memory_gain(n_threads), step), AttentionRates.spread)
    weights = {kind: found(f"weights {kind} {matrices.name}", known_weights[kind], partial(weight_rates, kind.removesuffix(EXPERTS), matrices, step),
                           WeightRates.spread) for kind, matrices in measured.items()}
    return HostRates(n_threads, read, step, weights, attention, most_busy)


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


def step_rates(n_threads: int) -> StepRates:
    """Of models of next to no weights, with few layers and with many."""
    seconds = []
    for n_layer in (_FEW_LAYERS, _MOST_LAYERS):
        with _decoder(_weights_shape(n_layer, "f32", _TINY), "f32", _TINY.n_tokens, n_threads) as decoder:
            seconds.append(best_step(decoder, 1, HELD))
    layer = max(seconds[1] - seconds[0], _FLOOR * seconds[0]) / (_MOST_LAYERS - _FEW_LAYERS)
    return StepRates(max(seconds[0] - _FEW_LAYERS * layer, _FLOOR * seconds[0]), layer)


def weight_rates(kind: str, matrices: MatrixShape, step: StepRates, n_threads: int) -> WeightRates:
    """Of files of weights of a type: a token reads a large one, less what its layers take without weights, and a prompt computes with a small one,
    where experts do not share its tokens."""
    large = _weights_shape(_layers(matrices.n_mib * MIB, kind, matrices), kind, matrices)
    small = large if large.experts else _weights_shape(_layers(_PROMPT_BYTES, kind, matrices), kind, matrices)
    least = step.token + large.n_layer * step.layer
    last = f"blk.{small.n_layer - 1}.ffn_"  # which the last token of a prompt alone goes through
    read, read_by_prompts = (sum(tensor.n_bytes(kind) * _used(tensor, matrices) for tensor in of.weights() if tensor.name != "token_embd.weight")
                             for of in (large, small))
    weights = sum(tensor.n_elements * _used(tensor, matrices) for tensor in small.weights()
                  if tensor.name.startswith("blk.") and not tensor.name.startswith(last) and not tensor.is_vector)
    with _decoder(large, kind, matrices.n_tokens, n_threads) as decoder:
        token = [max(seconds - least, seconds / 2) for seconds in _steps(decoder, 1)]
    n_tokens = max(1, min(matrices.n_tokens, int(_PROMPT_S / (token[0] * read_by_prompts / read))))
    with _decoder(small, kind, matrices.n_tokens, n_threads) as decoder:
        prompt = _steps(decoder, n_tokens)
    prompts = weights * n_tokens
    return WeightRates(read / token[0], read / min(token), prompts / prompt[0], prompts / min(prompt))  # the faster kernels serve


def _used(tensor: Weights, matrices: MatrixShape) -> float:
    """The part of a tensor that a token meets."""
    return matrices.n_used / matrices.n_expert if tensor.n_stacked else 1.0


def _steps(decoder: Decoder, n_tokens: int) -> tuple[float, float]:
    """Seconds of a step with stock kernels and with EdgeKV's."""
    def step(mode: KvMode) -> float:
        set_mode(decoder, mode)
        return best_step(decoder, n_tokens, HELD)

    seconds = in_turns((KvMode.OFF, KvMode.EXACT), step)
    return seconds[KvMode.OFF], seconds[KvMode.EXACT]


@contextmanager
def _decoder(shape: ModelShape, kind: str, n_tokens: int, n_threads: int) -> Iterator[Decoder]:
    """With stock attention and a token in its cache, for prompts of n_tokens."""
    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        path = write_empty(shape, Path(folder) / "weights.gguf", kind)
        with decoder_of(path, kv=KvMode.OFF, n_ctx=2 * n_tokens, n_batch=n_tokens, n_ubatch=n_tokens, n_threads=n_threads, n_threads_batch=n_threads,
                        n_gpu_layers=0) as decoder:
            decoder.decode([300] * HELD)
            yield decoder


def _layers(n_bytes: int, kind: str, matrices: MatrixShape) -> int:
    """Layers with about so many bytes of weights, up to _MOST_LAYERS."""
    shape = _weights_shape(1, kind, matrices)
    return min(_MOST_LAYERS, max(2, round(n_bytes / (shape.file_bytes(kind) - 2 * row_bytes(shape.n_vocab * shape.n_embd, kind)))))


def _weights_shape(n_layer: int, kind: str, matrices: MatrixShape) -> ModelShape:
    """With rows as long as the model's, in whole blocks of the type, and a single head: a prompt of many attends itself."""
    block = max(32, block_of(kind)[0])
    n_embd, n_ff = (-(-n // block) * block for n in (matrices.n_embd, matrices.n_ff))
    experts = Experts(matrices.n_expert, matrices.n_used, n_ff) if matrices.n_expert > 1 else None
    return ModelShape("weights", "qwen3moe" if experts else "llama", n_layer, n_embd, n_ff, 1, 1, block, 512, 4096, 10_000.0, experts=experts)
