"""Each head's attention mass by page, summed over a few decode steps of one token, and figures of the head from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, ContextOverflow, EdgeKVError
from edgekv.lab.heads.roles import RECENT_PAGES, Profile, RoleMeter
from edgekv.llama import Llama
from edgekv.runtime.observers import UbatchReport
from edgekv.runtime.runtime import Runtime

if TYPE_CHECKING:
    from edgekv.lab.traces.trace import Trace


class HeadLayer(Struct, frozen=True):
    """A layer of the model. `reason` says why it was or was not observed."""

    il: int
    hooked: bool
    reason: str
    n_head_kv: int


class HeadMass(Struct, frozen=True):
    """Attention mass over the pages of one sequence; arrays are [layer, kv_head] unless stated otherwise.

    Shares are of the mass on all pages, without the mass on an attention sink of the model itself. Rows of unobserved
    layers, and of heads that a layer lacks, are NaN.
    """

    tokens: list[int]
    """Empty if a trace was read, which has no tokens."""
    n_tokens: int
    n_steps: int  # decode steps summed
    page_tokens: int
    recent_pages: int
    layers: list[HeadLayer]
    pages: np.ndarray  # share [layer, kv_head, page]
    profile: Profile
    """The profile of all layers, which decides roles."""

    @property
    def n_pages(self) -> int:
        return self.pages.shape[2]

    @property
    def effective_pages(self) -> np.ndarray:
        """Exponential of the shares' entropy: the number of pages that an evenly spread head with the same entropy would use."""
        share = np.where(self.pages > 0, self.pages, 1.0)  # 0 log 0 = 0
        entropy = -(share * np.log(share)).sum(axis=2)
        return np.where(np.isnan(self.pages[:, :, 0]), np.nan, np.exp(entropy))

    @property
    def top_page(self) -> np.ndarray:
        """The page with most mass among those neither first nor recent in any step, or among all pages if there is none; -1: not
        observed."""
        first_end = -(-(self.n_tokens - self.n_steps + 1) // self.page_tokens)
        middle = slice(1, max(1, first_end - self.recent_pages))
        if middle.stop == middle.start:
            middle = slice(0, self.n_pages)
        observed = ~np.isnan(self.pages[:, :, 0])
        top = np.argmax(np.nan_to_num(self.pages[:, :, middle], nan=-1.0), axis=2) + middle.start
        return np.where(observed, top, -1)

    def page_slice(self, page: int) -> list[int]:
        """The tokens of a page."""
        return self.tokens[page * self.page_tokens : (page + 1) * self.page_tokens]


def observe(llama: Llama, tokens: list[int], n_steps: int = 1, recent_pages: int = RECENT_PAGES) -> HeadMass:
    """Read `tokens` into an empty context, the last `n_steps` of them as decode steps, and observe the attention of these.

    Earlier tokens are read in batches, whose attention mode exact does not observe.
    Raises ConfigError if `n_steps` is less than 1, ContextOverflow if the tokens do not fit, EdgeKVError if no layer is hooked.
    """
    if n_steps < 1:
        raise ConfigError(f"the number of observed tokens is {n_steps}; it must be 1 or more")
    if not tokens:
        raise ConfigError("the prompt is empty; give a text to read")
    if len(tokens) > llama.n_ctx():
        n_ctx = llama.n_ctx()
        message = f"the prompt has {len(tokens)} tokens and the context {n_ctx}; shorten it or open a larger context"
        raise ContextOverflow(message, len(tokens), n_ctx)
    n_steps = min(n_steps, len(tokens))
    runtime: Runtime = llama.kv
    runtime.mode, runtime.observe = KvMode.EXACT, True
    layers = [HeadLayer(layer.il, layer.hooked, layer.reason, layer.n_head_kv) for layer in runtime.layers]
    hooked = [layer for layer in layers if layer.hooked]
    if not hooked:
        raise EdgeKVError(f"EdgeKV's attention serves no layer of this model, so it observes nothing: {layers[0].reason}")
    llama.reset()
    if len(tokens) > n_steps:
        llama.eval(tokens[:-n_steps])
    n_used_ends = iter(-(-n // runtime.page_tokens) for n in range(len(tokens) - n_steps + 1, len(tokens) + 1))
    total = _Total(RoleMeter(len(hooked), max(layer.n_head_kv for layer in layers), recent_pages=recent_pages))

    def add(ubatch: UbatchReport) -> None:
        if ubatch.n_observed:
            total.add(ubatch.mass_sum, next(n_used_ends))

    runtime.observers.append(add)
    try:
        for token in tokens[-n_steps:]:
            llama.eval([token])
    finally:
        runtime.observers.remove(add)
    if total.mass is None:
        raise EdgeKVError("the decode steps did not run in EdgeKV's attention, so nothing was observed; is EDGEKV=0 set?")
    return total.result(layers, tokens, len(tokens), runtime.page_tokens)


def replay(trace: Trace, recent_pages: int = RECENT_PAGES) -> HeadMass:
    """The same from all steps of a recorded trace, including the warm-up."""
    header = trace.header
    total = _Total(RoleMeter(header.n_layers, header.n_heads, recent_pages=recent_pages))
    for step in trace.steps(sampled=False):
        total.add(step.mass_sum, step.n_used_end)
    n_heads = dict(zip(header.layers, np.sum(header.exists, axis=1)))
    layers = [HeadLayer(il, il in n_heads, "recorded" if il in n_heads else "not in the trace", int(n_heads.get(il, 0)))
              for il in range(max(header.layers) + 1)]
    return total.result(layers, [], header.depth + header.n_steps, header.page_tokens)


class _Total:
    """Adds up the hooked layers' mass over steps, [layer, kv_head, page], and their profile, which decides roles."""

    def __init__(self, meter: RoleMeter):
        self.meter = meter
        self.mass: np.ndarray | None = None
        self.n_used_end = 0

    def add(self, mass: np.ndarray, n_used_end: int) -> None:
        if self.mass is None:
            self.mass = np.zeros(mass.shape)
        self.mass += mass
        self.n_used_end = n_used_end
        self.meter.add(mass, n_used_end)

    def result(self, layers: list[HeadLayer], tokens: list[int], n_tokens: int, page_tokens: int) -> HeadMass:
        if self.mass is None:
            raise EdgeKVError("nothing was observed: there were no steps")
        mass = self.mass[:, :, : self.n_used_end]
        whole = mass.sum(axis=2, keepdims=True)
        share = np.full((len(layers), max(layer.n_head_kv for layer in layers), mass.shape[2]), np.nan)
        hooked = [il for il, layer in enumerate(layers) if layer.hooked]
        n_heads = share.shape[1]
        share[hooked, : mass.shape[1]] = np.where(whole > 0, mass / np.where(whole > 0, whole, 1.0), np.nan)[:, :n_heads]
        profile = self.meter.profile().spread(hooked, len(layers), n_heads)
        return HeadMass(tokens, n_tokens, self.meter.n_steps, page_tokens, self.meter.recent_pages, layers, share, profile)
