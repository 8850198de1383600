"""Records a trace: full attention's mass on each page, step by step, and mode sparse's observation of it.

A text is read in batches, then decoded token by token (teacher-forced) with full attention. The same tokens are then decoded once more in
mode sparse, which samples in every layer: its observation is the one that a live policy gets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from edgekv import _native
from edgekv._native import core  # after edgekv.runtime.runtime, which puts the libraries in place
from edgekv.bench.text import Text
from edgekv.common.enums import CacheType, DeviceKind, KvMode
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.config import KvOptions, SelectionOptions
from edgekv.lab.traces.file import CHUNK_STEPS, FULL, SAMPLED, TraceHeader, TraceWriter, dtype_of
from edgekv.measure import interrupts
from edgekv.measure.contexts import BATCH_TOKENS, decoder_of, read
from edgekv.measure.decoder import Decoder
from edgekv.measure.interrupts import Interrupts
from edgekv.models import geometry
from edgekv.runtime.observers import UbatchReport

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the tokens done and their total."""

class Recording(Struct, frozen=True):
    """The request of a recording."""

    model: Path
    text: Text
    depth: int = 7168
    """Tokens in the cache when the first measured step begins; the last `n_warmup` of them are decoded one by one."""
    n_steps: int = 1024
    n_warmup: int = 32
    resolution: float = SelectionOptions.sample_budget
    n_threads: int = 1
    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    page_size: int | None = None
    """None: as EDGEKV_PAGE_SIZE says, else the default."""

    def __post_init__(self) -> None:
        if self.depth <= self.n_warmup:
            raise ConfigError(f"the window, of {self.n_warmup} tokens, must be shorter than the depth, {self.depth}")

    @property
    def n_tokens(self) -> int:
        return self.depth + self.n_steps


def record(recording: Recording, path: Path, progress: Progress = lambda what, done, total: None,
           warn: Callable[[str], None] = lambda text: None) -> TraceHeader:
    """Write the trace to `path`; an unfinished recording leaves nothing.

    Raises ConfigError if the text is too short, EDGEKV=0 is set or the file cannot be created, ModelError if the model
    cannot be loaded, EdgeKVError if no layer is served or the disk is full.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is no attention to observe; unset it")
    model = geometry(recording.model)
    if recording.n_tokens > model.n_ctx_train:
        warn(f"{model.path.name} was trained for {model.n_ctx_train} tokens: beyond them its attention is not what it learned")
    options = _EXACT.with_(page_size=recording.page_size or KvOptions.from_env().cache.page_size)
    with decoder_of(recording.model, kv_options=options, type_k=recording.type_k, type_v=recording.type_v, n_ctx=recording.n_tokens,
                    n_batch=BATCH_TOKENS, n_ubatch=BATCH_TOKENS, n_threads=recording.n_threads) as decoder:
        tokens = recording.text.tokens(decoder.llama, recording.n_tokens)
        if len(tokens) < recording.n_tokens:
            raise ConfigError(f"the text {recording.text.name} has {len(tokens)} tokens and {recording.n_tokens} are needed; give a "
                              "longer text, or record fewer")
        header = _header(recording, decoder, model.path.name)
        with TraceWriter(path, header) as writer:
            if writer.replaced:
                warn(f"{path}.part, left over from a recording that did not end, is replaced")
            _Run(recording, decoder, tokens, writer, progress).run()
    return header


_EXACT = KvOptions(mode=KvMode.EXACT, attention_device=DeviceKind.HOST.value, policy="none", prefetch="none", kv_budget=0, observe=True, plan_every=1)
"""On the processor, because a device does not report the rows that it read. Each ubatch is a run, so its mass is not a difference of sums."""


def _header(recording: Recording, decoder: Decoder, model: str) -> TraceHeader:
    runtime = decoder.llama.kv
    layers = [layer for layer in runtime.layers if layer.hooked]
    if not layers:
        raise EdgeKVError(f"EdgeKV's attention serves no layer of this model, so there is nothing to record: "
                          f"{runtime.layers[0].reason}")
    n_heads = max(layer.n_head_kv for layer in layers)
    rope = core.rope(core.find(runtime.address))
    page_tokens = runtime.page_tokens
    return TraceHeader(
        model=model, text=recording.text.name, depth=recording.depth, n_warmup=recording.n_warmup, n_steps=recording.n_steps,
        n_heads=n_heads, n_pages=(recording.n_tokens - 1) // page_tokens + 1, page_tokens=page_tokens,
        layers=tuple(layer.il for layer in layers), groups=tuple(layer.n_head // layer.n_head_kv for layer in layers),
        exists=tuple(tuple(head < layer.n_head_kv for head in range(n_heads)) for layer in layers), resolution=recording.resolution,
        rope=None if rope is None else (layers[0].head_dim, *rope),
        type_k=recording.type_k.value, type_v=recording.type_v.value)


class _Run:
    """Reads the text, and decodes the following tokens twice: with full attention, and in mode sparse."""

    def __init__(self, recording: Recording, decoder: Decoder, tokens: list[int], writer: TraceWriter, progress: Progress):
        self.recording, self.decoder, self.tokens, self.writer, self.progress = recording, decoder, tokens, writer, progress
        self.header = writer.header
        self.runtime = decoder.llama.kv
        self._pages = np.s_[:, :, : self.header.n_pages]

    def run(self) -> None:
        with _Watch() as watch:
            self._read(watch)
            self._pass("record attention", FULL, self._full, watch)
            self.decoder.rewind(self.header.n_prompt)
            self.runtime.configure(self.runtime.options.with_(  # mode sparse at every depth
                mode=KvMode.SPARSE, sample_budget=self.header.resolution, exact_tokens=0, error_every=0, keep_rows=True))
            self._pass("record what sampling observes", SAMPLED, self._sampled, watch)
        self._check_order()

    def _read(self, watch: _Watch) -> None:
        prompt = self.tokens[: self.header.n_prompt]
        for position in read(self.decoder, prompt, self.recording.n_threads):
            watch.check()
            self.progress("read the text", position, len(prompt))
        self.decoder.mark()

    def _full(self, ubatch: UbatchReport) -> tuple[np.ndarray, ...]:
        return ubatch.mass_sum[self._pages], ubatch.mass_max[self._pages]

    def _sampled(self, ubatch: UbatchReport) -> tuple[np.ndarray, ...]:
        n_read = np.zeros(self.header.shape.axes, np.uint16)
        for il, head in zip(*np.nonzero(np.array(self.header.exists))):
            cells, _ = self.runtime.last_rows(int(il), int(head))
            n_read[il, head] = np.bincount(cells // self.header.page_tokens, minlength=self.header.n_pages)
        return ubatch.mass_sum[self._pages], ubatch.mass_max[self._pages], n_read

    def _pass(self, doing: str, kinds: tuple[str, ...], arrays: Callable[[UbatchReport], tuple[np.ndarray, ...]], watch: _Watch) -> None:
        """Decode the tokens after the text one by one, and write the arrays `kinds` of each."""
        header, runtime = self.header, self.runtime
        chunks = _Chunks(self.writer, header, kinds)

        def seen(ubatch: UbatchReport) -> None:
            if not ubatch.hooked or ubatch.layers != header.layers:
                raise EdgeKVError("a decoded token did not run in EdgeKV's attention, and cannot be recorded")
            chunks.add(*arrays(ubatch))

        observer = watch.guard(seen)
        runtime.observers.append(observer)
        try:
            for i, token in enumerate(self.tokens[header.n_prompt :]):
                self.decoder.decode([token])
                watch.check()
                self.progress(doing, i + 1, header.n_total)
        finally:
            runtime.observers.remove(observer)
        chunks.flush()

    def _check_order(self) -> None:
        """Check the trace's assumption that page p holds the positions from p * page_tokens on."""
        n = len(self.tokens)
        if not np.array_equal(self.runtime.cells.stream(0).positions[:n], np.arange(n)):
            raise EdgeKVError("llama.cpp did not store the tokens in the order of their positions, and a trace needs that")


class _Watch(Interrupts):
    """Keeps an exception of a decode, and raises it between two decodes."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __enter__(self) -> _Watch:
        super().__enter__()
        return self

    def guard(self, observer: Callable[[UbatchReport], None]) -> Callable[[UbatchReport], None]:
        def guarded(ubatch: UbatchReport) -> None:
            try:
                observer(ubatch)
            except Exception as error:  # check() raises it again
                self._error = self._error or error

        return guarded

    def check(self) -> None:
        interrupts.check()
        if self._error is not None:
            raise self._error


class _Chunks:
    """Collects steps and writes them when a chunk is full."""

    def __init__(self, writer: TraceWriter, header: TraceHeader, kinds: tuple[str, ...]):
        self._writer, self._header, self._kinds = writer, header, kinds
        self._buffers = [np.zeros((CHUNK_STEPS, *header.shape.axes), dtype_of(kind)) for kind in kinds]
        self._start = self._n = 0

    def add(self, *arrays: np.ndarray) -> None:
        for buffer, array in zip(self._buffers, arrays, strict=True):
            buffer[self._n] = array
        self._n += 1
        if self._n == CHUNK_STEPS:
            self.flush()

    def flush(self) -> None:
        if not self._n:
            return
        end = self._header.n_used_end(self._start + self._n - 1)
        for kind, buffer in zip(self._kinds, self._buffers):
            self._writer.chunk(kind, self._start, buffer[: self._n, :, :, :end])
        self._start, self._n = self._start + self._n, 0
