"""Contexts of llama.cpp to measure in: one, and beside it those that measure something else on the same weights. They are filled together,
from depth to depth, and closed at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from edgekv.common.enums import KvMode
from edgekv.common.errors import EdgeKVError, ModelError
from edgekv.common.machine import n_cores
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder
from edgekv.measure.filling import Bank, Fill, TokenLayout, put, taken
from edgekv.measure.steps import set_mode
from edgekv.opening import ALL_LAYERS
from edgekv.planning.fit import CONTEXT_STEP, rounded
from edgekv.runtime import attachments

import llama_cpp

BATCH_TOKENS = 512
"""Tokens computed at once by default."""

COMPUTED = 128
"""Tokens at the beginning that are computed even if the others are synthetic: they serve as the model for these."""

_SINKS = 16
"""The first of these are not like any others."""

Said = Callable[[int, int], None]
"""Called with the tokens that stand in the cache, and how many it will be."""


class ContextError(Exception):
    """A context could not be made; the message goes into the rows."""


@contextmanager
def decoder_of(model: Path, **options: Any) -> Iterator[Decoder]:
    """An empty context with these options of `Llama`. Raises ContextError if it cannot be created, ModelError if the model cannot
    be loaded, and the errors of `Llama` if K and V are to lie in a folder."""
    cache = {name: options.pop(name) for name in ("page_size", "layer_types", "kv_dir", "kv_budget") if options.get(name) is not None}
    if cache:
        options["kv_options"] = (options.get("kv_options") or KvOptions.from_env()).with_(**cache)
    try:
        llama = Llama(str(model), verbose=False, **options)
    except ModelError:
        raise
    except EdgeKVError as error:
        if cache.get("kv_dir") is not None:
            raise
        raise ContextError(f"does not fit: {error}") from error
    with closing(llama), closing(Decoder(llama)) as decoder:
        yield decoder


def beside(decoder: Decoder, n_ctx: int, flash_attn: bool = True, takes_states: bool = False) -> closing[Decoder]:
    """`Decoder.beside`, closed at the end. Raises ContextError if it cannot be made."""
    try:
        return closing(decoder.beside(n_ctx, flash_attn, takes_states))
    except EdgeKVError as error:
        raise ContextError(f"does not fit: {error}") from error


@contextmanager
def weights_alone(model: Path, gpu: int | None) -> Iterator[None]:
    """A model without a context, all of it on a GPU; None: on the processor. Raises ModelError if it cannot be loaded."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers, params.split_mode, params.main_gpu = 0 if gpu is None else ALL_LAYERS, llama_cpp.LLAMA_SPLIT_MODE_NONE, gpu or 0
    if not (loaded := llama_cpp.llama_model_load_from_file(str(model).encode(), params)):
        raise ModelError(f"llama.cpp could not load {model}")
    try:
        yield
    finally:
        llama_cpp.llama_model_free(loaded)


def read(decoder: Decoder, tokens: Sequence[int], n_threads: int, n_batch: int = BATCH_TOKENS) -> Iterator[int]:
    """Decode `tokens` in batches on `n_threads`, yielding the position after each batch."""
    decoder.set_threads(n_threads)
    for first in range(0, len(tokens), n_batch):
        decoder.decode(tokens[first : first + n_batch])
        yield decoder.position


class Opening(Struct, frozen=True):
    """The way to open contexts. `tokens`: gives the first n tokens of the text for a model. `options`: further ones of `Llama`."""

    model: Path
    tokens: Callable[[Llama, int], Sequence[int]]
    n_ctx: int
    second: int | None
    """Cells of the context without flash attention; None: there is none."""
    n_batch: int
    n_ubatch: int
    fill: Fill = Fill.TEXT
    n_empty: int | None = None
    """Tokens that are read into an empty cache, beside those behind a depth; 0: one by one alone; None: none."""
    n_computed: int = COMPUTED
    n_back: int = 0
    """Tokens before a depth that are decoded again before a pass."""
    options: Mapping[str, Any] = field(default_factory=dict)


class Contexts(Struct):
    """`first` serves all modes of EdgeKV and stock with flash attention, `second` stock without; `empty` are small ones beside them."""

    opening: Opening
    first: Decoder
    second: Decoder | None
    empty: dict[bool, Decoder]
    """By flash attention."""
    tokens: Sequence[int]
    layout: TokenLayout | None
    """None: tokens cannot be put into these contexts, only be computed."""
    base: KvOptions
    problem: str | None = None
    """The reason if a wanted second context is missing."""
    lost: str | None = None
    """The reason if a wanted empty context is missing."""
    _bank: Bank | None = None

    def of(self, flash_attn: bool, empty: bool = False) -> Decoder | None:
        return self.empty.get(flash_attn) if empty else self.first if flash_attn else self.second

    def all(self) -> list[Decoder]:
        return [self.first, *([self.second] if self.second else [])]

    def token(self, position: int, n: int) -> list[int]:
        """The tokens of the text from `position` on; after its end it starts again."""
        return [self.tokens[i % len(self.tokens)] for i in range(position, position + n)]

    def fill_to(self, depth: int, said: Said = lambda done, total: None) -> None:
        """Let each context hold `depth` tokens; only missing tokens are computed or synthesised. Windows and states are marked
        at the depth and `n_back` tokens before it, so that passes can go back there."""
        n_threads = self.first.n_threads
        back = max(0, depth - self.opening.n_back)
        if self.opening.fill is Fill.SYNTHETIC and self.first.keeps_more:
            self._make_up_before(back, said)
        elif self.opening.fill is Fill.SYNTHETIC:
            self._compute(min(depth, self.opening.n_computed), said)
            self._make_up(depth, said)
        for end in (back, depth) if self.first.keeps_more else (depth,):
            self._compute(end, said)
            for decoder in self.all():
                if decoder.position == end > 0:
                    decoder.mark()
        for decoder in self.all():
            decoder.rewind(min(depth, decoder.position))
            decoder.set_threads(n_threads)

    def _compute(self, depth: int, said: Said) -> None:
        """With full attention in our kernel, the fastest without an error, on all cores."""
        first = self.first.position
        if first < depth and self.first.kv is not None:
            set_mode(self.first, KvMode.EXACT, observe=True)
        self._read(self.first, depth, said)
        end = min(depth, self.opening.second or 0)
        if self.second is None or self.second.position >= end:
            return
        if self.layout is None or self.first.keeps_more:
            self._read(self.second, end, said)
            return
        for block in taken(self.first, self.layout, self.second.position, end):
            put(self.second, self.layout, block)

    def _read(self, decoder: Decoder, end: int, said: Said) -> None:
        tokens = self.token(decoder.position, end - decoder.position)
        for position in read(decoder, tokens, n_cores(), self.opening.n_ubatch):
            said(position, end)

    def _make_up(self, depth: int, said: Said) -> None:
        if depth <= self.opening.n_computed:
            return
        for decoder in self.all():
            self._put_made_up(decoder, depth if decoder is self.first else min(depth, self.opening.second or 0), said)

    def _make_up_before(self, depth: int, said: Said) -> None:
        """Windows and states cannot be synthesised: the last tokens before the depth are computed, after synthetic rows."""
        n = max(self.opening.n_computed, self.first.window)
        if depth <= n:
            return
        if self._bank is None:
            self._compute(self.opening.n_computed, said)
            self._bank_of_computed()
        for decoder in self.all():
            end = depth if decoder is self.first else min(depth, self.opening.second or 0)
            decoder.rewind(0)
            self._put_made_up(decoder, end - n, said)

    def _put_made_up(self, decoder: Decoder, end: int, said: Said) -> None:
        assert self.layout is not None
        for block in self._bank_of_computed().blocks(decoder.position, end):
            put(decoder, self.layout, block)
            said(decoder.position, end)

    def _bank_of_computed(self) -> Bank:
        assert self.layout is not None
        if self._bank is None:
            self._bank = Bank(self.layout, next(taken(self.first, self.layout, _SINKS, self.opening.n_computed)))
        return self._bank


@contextmanager
def contexts(opening: Opening, n_threads: int) -> Iterator[Contexts]:
    """Opened, and the weights brought into memory. Raises ContextError if one cannot be had, ModelError if the model cannot be
    loaded."""
    with ExitStack() as stack:
        first = stack.enter_context(decoder_of(
            opening.model, kv=KvMode.OFF, flash_attn=True, n_ctx=opening.n_ctx, n_batch=opening.n_batch, n_ubatch=opening.n_ubatch,
            n_threads=n_threads, n_threads_batch=n_threads, **opening.options))
        assert first.kv is not None
        try:
            layout: TokenLayout | None = TokenLayout.of(first)
        except EdgeKVError as error:
            if opening.fill is Fill.SYNTHETIC:
                raise ContextError(f"this cache cannot be filled with made-up tokens ({error}); use --fill text") from error
            layout = None
        second, problem = None, None
        if opening.second is not None:
            try:
                second = stack.enter_context(beside(first, opening.second, flash_attn=False, takes_states=layout is not None))
            except ContextError as error:
                problem = str(error)
        empty, lost = {}, None
        for flash_attn in () if opening.n_empty is None else (True, False) if second and opening.n_empty else (True,):
            try:  # EdgeKV's modes read prompts and measure the limit in the first of them
                with attachments.defaults(first.kv.options) if flash_attn else nullcontext():
                    empty[flash_attn] = stack.enter_context(beside(first, max(CONTEXT_STEP, rounded(opening.n_empty or 0)), flash_attn))
            except ContextError as error:
                lost = str(error)
        tokens = opening.tokens(first.llama, opening.n_ctx)
        if not tokens:
            raise ContextError("the text has no tokens; give a longer one")
        yield Contexts(opening, first, second, empty, tokens, layout, first.kv.options, problem, lost)
