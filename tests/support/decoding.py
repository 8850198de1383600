"""Decoding chosen tokens and comparing logits, for the tests that compare modes."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgekv import Llama

N_PROMPT = 600
STEP_SIZES = (1, 1, 1, 2, 3, 5, 16, 1)


def open_model(path, **options) -> Llama:
    return Llama(str(path), **{"n_ctx": 1024, "n_threads": 2, "verbose": False, "logits_all": True, "kv": "exact", **options})


def tokens_and_steps(sizes=STEP_SIZES, seed: int = 0):
    tokens = np.random.default_rng(seed).integers(260, 350, N_PROMPT + sum(sizes))
    edges = np.cumsum([N_PROMPT, *sizes])
    return tokens[:N_PROMPT], [tokens[a:b] for a, b in pairwise(edges)]


def step_logits(llama, prompt: Sequence[int], steps: Sequence[Sequence[int]], mode: str) -> np.ndarray:
    """Logits after every token of `steps`, float32 [token, n_vocab]. Stock nodes read the prompt, so that all modes begin with the same
    rows; then each step is one decode. The model must have been loaded with logits_all."""
    llama.reset()
    llama._ctx.kv_cache_clear()
    llama.kv.mode = "off"
    llama.eval(list(prompt))
    llama.kv.mode = mode
    first = llama.n_tokens
    for tokens in steps:
        llama.eval(list(tokens))
    return np.array(llama.scores[first:llama.n_tokens])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kld(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence of `other` from `reference` in nats, for each row of logits."""
    p, q = log_softmax(reference), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def top_gap(logits: np.ndarray) -> np.ndarray:
    """Distance of the two largest logits of each row."""
    top = np.sort(logits, axis=-1)[..., -2:]
    return top[..., 1] - top[..., 0]
