"""The contexts of one model: one for all modes that alternate, one beside it for stock without flash attention, and a small one, which
says what the weights alone cost. They are filled together, from depth to depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from edgekv.config import KvOptions
from edgekv.errors import NativeError
from edgekv.lab.engine.modes import FULL, BenchMode, find_mode
from edgekv.lab.engine.passes import read
from edgekv.lab.engine.request import Fill
from edgekv.lab.texts.text import Text
from edgekv.machine import n_cores
from edgekv.memory.fit import CONTEXT_STEP
from edgekv.models import Geometry
from edgekv.rates.measuring.contexts import ContextError, beside, decoder_of
from edgekv.rates.measuring.decoder import Decoder
from edgekv.rates.measuring.filling import Bank, Rows, put, taken
from edgekv.vocab import CacheType, KvMode

COMPUTED = 128
"""Tokens at the beginning that are computed even where the others are made up: these are made like them."""

_SINKS = 16
"""Of these, the first, which are not like any others."""

Said = Callable[[int, int], None]
"""Called with the tokens that stand in the cache, and how many it will be."""


@dataclass(frozen=True)
class Opening:
    """How contexts are opened. second: cells of the context without flash attention; None: there is none."""

    model: Geometry
    text: Text
    fill: Fill
    n_ctx: int
    second: int | None
    n_batch: int
    n_ubatch: int
    type_k: CacheType
    type_v: CacheType


@dataclass
class Contexts:
    opening: Opening
    first: Decoder
    second: Decoder | None
    small: Decoder
    tokens: list[int]
    rows: Rows | None
    """None: tokens cannot be put into these contexts, only be computed."""
    base: KvOptions
    problem: str | None = None
    """Why there is no second one, where there should be."""
    _bank: Bank | None = field(default=None, init=False)

    def of(self, mode: BenchMode) -> Decoder | None:
        return self.first if mode.alternates else self.second

    def all(self) -> list[Decoder]:
        return [self.first, *([self.second] if self.second else [])]

    def token(self, position: int, n: int) -> list[int]:
        """The tokens of the text at `position` and on; behind its end it begins anew."""
        return [self.tokens[i % len(self.tokens)] for i in range(position, position + n)]

    def fill_to(self, depth: int, said: Said) -> None:
        """Let each context hold `depth` tokens; only what is not there yet is computed or made up."""
        if self.opening.fill is Fill.SYNTHETIC:
            self._compute(min(depth, COMPUTED), said)
            self._make_up(depth, said)
        else:
            self._compute(depth, said)
        self.rewind(depth)

    def rewind(self, depth: int) -> None:
        for decoder in self.all():
            decoder.rewind(min(depth, decoder.position))

    def _compute(self, depth: int, said: Said) -> None:
        """With full attention in our kernel, the fastest without an error."""
        first = self.first.position
        if first >= depth:
            return
        if self.first.kv is not None:
            self.first.kv.configure(find_mode(FULL).options(self.base, depth))
        for position in read(self.first, self.token(first, depth - first), n_cores(), self.opening.n_ubatch):
            said(position, depth)
        if self.second is None or self.second.position >= min(depth, self._second_cells):
            return
        end = min(depth, self._second_cells)
        if self.rows is None:
            for position in read(self.second, self.token(self.second.position, end - self.second.position), n_cores(), self.opening.n_ubatch):
                said(position, end)
            return
        for block in taken(self.first, self.rows, self.second.position, end):
            put(self.second, self.rows, block)

    def _make_up(self, depth: int, said: Said) -> None:
        if depth <= COMPUTED:
            return
        assert self.rows is not None
        if self._bank is None:
            computed = next(taken(self.first, self.rows, _SINKS, COMPUTED))
            self._bank = Bank(self.rows, computed)
        for decoder in self.all():
            end = depth if decoder is self.first else min(depth, self._second_cells)
            for block in self._bank.blocks(decoder.position, end):
                put(decoder, self.rows, block)
                said(decoder.position, end)

    @property
    def _second_cells(self) -> int:
        return self.opening.second or 0


@contextmanager
def contexts(opening: Opening, n_threads: int) -> Iterator[Contexts]:
    """Opened, and the weights brought into memory. Raises ContextError where one cannot be had, ModelError where the model cannot be
    loaded."""
    with ExitStack() as stack:
        first = stack.enter_context(decoder_of(
            opening.model.path, kv=KvMode.OFF, flash_attn=True, n_ctx=opening.n_ctx, n_batch=opening.n_batch, n_ubatch=opening.n_ubatch,
            n_threads=n_threads, n_threads_batch=n_threads, type_k=opening.type_k, type_v=opening.type_v))
        assert first.kv is not None
        try:
            rows: Rows | None = Rows.of(first)
        except NativeError as error:
            if opening.fill is Fill.SYNTHETIC:
                raise ContextError(f"this cache cannot be filled with made-up tokens ({error}); use --fill text") from error
            rows = None
        second, problem = None, None
        if opening.second is not None:
            try:
                second = stack.enter_context(beside(first, opening.second, flash_attn=False, takes_states=rows is not None))
            except ContextError as error:
                problem = str(error)
        small = stack.enter_context(beside(first, CONTEXT_STEP))
        tokens = opening.text.tokens(first.llama, opening.n_ctx)
        if not tokens:
            raise ContextError("the text has no tokens; give a longer one")
        yield Contexts(opening, first, second, small, tokens, rows, first.kv.options, problem)
