"""What each head attended: attention mass by page, summed over a few decode steps, and what it says about the head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.errors import ConfigError, ContextOverflow, EdgeKVError
from edgekv.llama import Llama
from edgekv.runtime import LayerReport, Runtime, Step
from edgekv.vocab import MAX_QUERY_TOKENS, KvMode

RECENT_PAGES = 4


@dataclass(frozen=True)
class HeadMass:
    """Attention mass over the pages of one sequence; arrays are [layer, kv_head] unless they say otherwise.

    Shares are of the mass on all pages: what an attention sink of the model itself takes is left out. Rows of layers
    that are not observed, and of heads that a layer does not have, are NaN.
    """

    tokens: list[int]
    n_steps: int  # decode steps summed
    page_tokens: int
    recent_pages: int
    layers: list[LayerReport]
    pages: np.ndarray  # share [layer, kv_head, page]

    @property
    def n_pages(self) -> int:
        return self.pages.shape[2]

    @property
    def sink(self) -> np.ndarray:
        """Share of the first page."""
        return self.pages[:, :, 0]

    @property
    def recent(self) -> np.ndarray:
        """Share of the last `recent_pages` pages, never the first one."""
        return self.pages[:, :, self._middle.stop :].sum(axis=2)

    @property
    def rest(self) -> np.ndarray:
        """Share of the pages between the first and the recent ones."""
        return self.pages[:, :, self._middle].sum(axis=2)

    @property
    def effective_pages(self) -> np.ndarray:
        """Exponential of the entropy of the shares: how many pages an evenly spread head with the same entropy would use."""
        share = np.where(self.pages > 0, self.pages, 1.0)  # 0 log 0 = 0
        entropy = -(share * np.log(share)).sum(axis=2)
        return np.where(np.isnan(self.pages[:, :, 0]), np.nan, np.exp(entropy))

    @property
    def top_page(self) -> np.ndarray:
        """The page with most mass between the first and the recent ones, or of all where there are none; -1: not observed."""
        middle = self._middle if self._middle.stop > self._middle.start else slice(0, self.n_pages)
        observed = ~np.isnan(self.pages[:, :, 0])
        top = np.argmax(np.nan_to_num(self.pages[:, :, middle], nan=-1.0), axis=2) + middle.start
        return np.where(observed, top, -1)

    @property
    def _middle(self) -> slice:
        return slice(1, max(1, self.n_pages - self.recent_pages))

    def page_slice(self, page: int) -> list[int]:
        """The tokens of a page."""
        return self.tokens[page * self.page_tokens : (page + 1) * self.page_tokens]


def observe(llama: Llama, tokens: list[int], n_steps: int = 1, recent_pages: int = RECENT_PAGES) -> HeadMass:
    """Read `tokens` into an empty context, the last `n_steps` of them as decode steps, whose attention is observed.

    Attention of the tokens before them is not: they are read in batches, which run on the stock nodes.
    Raises ConfigError if `n_steps` is not between 1 and 16, ContextOverflow if the tokens do not fit, EdgeKVError if no layer
    is hooked.
    """
    if not 1 <= n_steps <= MAX_QUERY_TOKENS:
        raise ConfigError(f"the number of observed tokens is {n_steps}; it can be 1 to {MAX_QUERY_TOKENS}")
    if not tokens:
        raise ConfigError("the prompt is empty; give a text to read")
    if len(tokens) > llama.n_ctx():
        n_ctx = llama.n_ctx()
        message = f"the prompt has {len(tokens)} tokens and the context {n_ctx}; shorten it or open a larger context"
        raise ContextOverflow(message, len(tokens), n_ctx)
    n_steps = min(n_steps, len(tokens))
    runtime: Runtime = llama.kv
    runtime.mode, runtime.observe = KvMode.EXACT, True
    if not any(layer.hooked for layer in runtime.layers):
        raise EdgeKVError(f"EdgeKV's attention serves no layer of this model, so it observes nothing: {runtime.layers[0].reason}")
    llama.reset()
    if len(tokens) > n_steps:
        llama.eval(tokens[:-n_steps])
    total = _Total()
    runtime.observers.append(total.add)
    try:
        for token in tokens[-n_steps:]:
            llama.eval([token])
    finally:
        runtime.observers.remove(total.add)
    if total.mass is None:
        raise EdgeKVError("the decode steps did not run in EdgeKV's attention, so nothing was observed; is EDGEKV=0 set?")
    layers = runtime.layers
    n_pages = -(-len(tokens) // runtime.page_tokens)
    share = np.full((len(layers), max(layer.n_head_kv for layer in layers), n_pages), np.nan)
    rows = {layer.il: row for row, layer in enumerate(layers)}
    for il, mass in zip(total.layers, total.mass[:, :, :n_pages].astype(np.float64)):
        n_head_kv = layers[rows[il]].n_head_kv
        share[rows[il], :n_head_kv] = mass[:n_head_kv] / mass[:n_head_kv].sum(axis=1, keepdims=True)
    return HeadMass(tokens, n_steps, runtime.page_tokens, recent_pages, layers, share)


class _Total:
    """Adds up the mass of observed steps; the views of a step are valid only while it is reported."""

    def __init__(self) -> None:
        self.layers: tuple[int, ...] = ()
        self.mass: np.ndarray | None = None

    def add(self, step: Step) -> None:
        if not step.hooked:
            return
        if self.mass is None:
            self.layers = step.layers
            self.mass = np.zeros_like(step.mass_sum)
        self.mass += step.mass_sum
