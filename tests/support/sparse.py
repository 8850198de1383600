"""A model in mode sparse, and the steps that compare it with full attention."""

import numpy as np
from support.decoding import kld

from edgekv import Llama
from edgekv.config import KvOptions

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

N_PROMPT = 600
ALL = dict(mode="sparse", sample_budget=1e9, exact_tokens=0)
"""Every row is read for certain: the attention of random weights is even."""


def open_model(path, **options) -> Llama:
    return Llama(str(path), **{"n_ctx": 1024, "n_threads": 2, "verbose": False, "logits_all": True, **options})


def logits_of(llama: Llama, steps, options: KvOptions, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    llama.reset()
    llama._ctx.kv_cache_clear()
    llama.kv.configure(options)
    llama.eval(rng.integers(260, 350, N_PROMPT).tolist())
    first = llama.n_tokens
    for n in steps:
        llama.eval(rng.integers(260, 350, n).tolist())
    return np.array(llama.scores[first : llama.n_tokens])


def exact_and_its_spread(llama: Llama, steps) -> tuple[np.ndarray, float]:
    """Logits of `exact`, and twice its largest distance from itself with other numbers of threads: sums in another order, which a step of
    8-bit activations may or may not make visible. One number of threads is too few to see it."""
    exact = logits_of(llama, steps, llama.kv.options.with_(mode="exact"))
    spread = []
    for n_threads in (1, 3, 4):
        llama_cpp.llama_set_n_threads(llama.ctx, n_threads, n_threads)
        spread.append(kld(exact, logits_of(llama, steps, llama.kv.options)).max())
    llama_cpp.llama_set_n_threads(llama.ctx, 2, 2)
    return exact, max(2 * max(spread), 1e-6)
