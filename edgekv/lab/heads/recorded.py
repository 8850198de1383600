"""What single heads see while a context decodes a text: their keys, values and queries, for studies in NumPy."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgekv import _native
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.live import runtime
from edgekv.llama import Llama  # first: it puts llama_cpp on our libraries
from edgekv.rates.measuring.contexts import BATCH_TOKENS
from edgekv.rates.measuring.decoder import Decoder
from edgekv.vocab import KvMode

import llama_cpp


@dataclass(frozen=True)
class Head:
    """What one KV head saw: keys and values, float32 [cell, channel]; queries, float32 [step, query head, channel], with the scale of logits. The first
    step sees `n_before` + 1 cells, each later one a cell more."""

    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    n_before: int


class _Queries:
    """Copies of the queries of some layers, in the steps in which it is `on`: the callback of a context."""

    def __init__(self, layers: Sequence[int]):
        self.on, self.found = False, {f"Qcur-{il}".encode(): np.zeros(0, np.float32) for il in layers}
        self.ggml = ctypes.CDLL(str(next(_native.lib_dir().glob("libggml-base.so*"))))
        for name, kind in (("ggml_get_name", ctypes.c_char_p), ("ggml_get_data", ctypes.c_void_p), ("ggml_nbytes", ctypes.c_size_t)):
            function = getattr(self.ggml, name)
            function.restype, function.argtypes = kind, [ctypes.c_void_p]
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._seen)

    def _seen(self, tensor: int, ask: bool, _: int) -> bool:
        name = self.ggml.ggml_get_name(tensor)
        wanted = self.on and name in self.found
        if wanted and not ask:  # of several with this name the last is the one that attends
            self.found[name] = np.frombuffer(ctypes.string_at(self.ggml.ggml_get_data(tensor), self.ggml.ggml_nbytes(tensor)), np.float32)
        return wanted or not ask


def record(model: Path, text: str, n_before: int, layers: Sequence[int], n_steps: int) -> list[Head]:
    """The KV heads of these layers while a model decodes `n_steps` tokens of a text behind `n_before`. Raises ConfigError if the text is too short or a
    layer is not served, and the errors of `Llama`."""
    queries = _Queries(layers)
    llama = Llama(str(model), kv=KvMode.OFF, n_ctx=BATCH_TOKENS, verbose=False)
    with closing(llama):
        tokens = llama.tokenize(text.encode())[: n_before + n_steps]
        if len(tokens) < n_before + n_steps:
            raise ConfigError(f"the text has {len(tokens):,} tokens, and {n_before + n_steps:,} are needed; name a longer one")
        params = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_ctx, params.n_batch, params.n_ubatch, params.cb_eval = n_before + n_steps, BATCH_TOKENS, BATCH_TOKENS, queries.callback
        with runtime.defaults(KvOptions(mode=KvMode.EXACT, device="cpu")):
            decoder = Decoder(llama, llama_cpp.llama_init_from_model(llama.model, params))
        with closing(decoder):
            assert decoder.kv is not None
            for il in layers:
                if not decoder.kv.layers[il].hooked:
                    raise ConfigError(f"layer {il} has no sketches: {decoder.kv.layers[il].reason}; name another one")
            decoder.read(tokens[:n_before], BATCH_TOKENS)
            queries.on, steps = True, []
            for token in tokens[n_before:]:
                decoder.decode([token])
                steps.append(dict(queries.found))
            return [head for il in layers for head in _heads(decoder.kv, il, [step[f"Qcur-{il}".encode()] for step in steps], n_before)]


def _heads(kv: runtime.Runtime, il: int, queries: list[np.ndarray], n_before: int) -> Iterator[Head]:
    layer, n = kv.layers[il], n_before + len(queries)
    by_head = np.stack(queries).reshape(len(queries), layer.n_head_kv, -1, layer.head_dim) / np.float32(np.sqrt(layer.head_dim))
    keys, values = (rows(il)[0][:n].astype(np.float32) for rows in (kv.cells.keys, kv.cells.values))
    for h in range(layer.n_head_kv):
        yield Head(keys[:, h], values[:, h], by_head[:, h], n_before)
