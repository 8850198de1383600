"""The question of `edgekv bench cache`: what keeping a long prompt takes in each place and form, how soon it is back, and what rounding it does to
predictions. A context reads the prompt; the server's own parts save its rows, and load them for a prompt that goes on differently."""

import ctypes
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv.bench.tally import divergence, log_softmax
from edgekv.bench.text import Text
from edgekv.common.enums import CacheCodec, KvMode
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.machine import n_cores, stamp
from edgekv.llama import Llama
from edgekv.measure.contexts import BATCH_TOKENS
from edgekv.measure.decoder import Decoder
from edgekv.measure.steps import rotated, set_mode
from edgekv.models.geometry import geometry
from edgekv.planning.fit import rounded
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime.runtime import Runtime
from edgekv.server.prefixes import Prefixes

QUESTION_TOKENS = 32
"""Tokens that are read behind the kept ones: the first token follows them."""

_SPARE = 2
"""RAM has room for so many times the rows: blocks that wait for a slower place stay there."""

_EXPIRES_S = 900
"""A shared server forgets what was measured."""

Progress = Callable[[str, int, int], None]


class KeptBench(Struct, frozen=True):
    """The request. A turn reads one of the texts; each place is measured with each codec. Raises ConfigError."""

    model: Path
    texts: tuple[Text, ...]
    n_tokens: int = 4096
    """Tokens of the kept prompt."""
    n_predicted: int = 64
    """Tokens behind the question whose predictions are compared."""
    folder: Path | None = None
    """On the disk that is measured; None: no disk is."""
    url: str | None = None
    """redis://HOST:PORT/DB of a Redis-compatible server; None: none is measured."""
    codecs: tuple[CacheCodec, ...] = (CacheCodec.NONE, CacheCodec.ROUND)
    n_turns: int = 3
    n_threads: int | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise ConfigError(f"there is no folder {self.folder}; make it, or name another")


class Way(NamedTuple):
    """A place of rows, and their form there."""

    place: str
    codec: CacheCodec

    @property
    def name(self) -> str:
        return f"{self.place}, {self.codec.value}"


class _Found(Struct):
    """Of each turn."""

    bytes_a_token: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    kld: list[float] = field(default_factory=list)


class _Clock:
    """Seconds from its making to `stop`."""

    def __init__(self) -> None:
        self._began, self.seconds = time.perf_counter(), 0.0

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began


def ways(bench: KeptBench) -> list[Way]:
    """RAM keeps rows as they are."""
    below = [place for place, named in (("disk", bench.folder), ("shared", bench.url)) if named is not None]
    return [Way("ram", CacheCodec.NONE), *(Way(place, codec) for place in below for codec in bench.codecs)]


def run(bench: KeptBench, progress: Progress = lambda what, done, total: None) -> Iterator[list[dict[str, Any]]]:
    """After each turn: a row for reading the prompt again, with the divergence of stock's attention on the same rows, and one for each way: medians
    of the turns, and mean divergences. Raises the errors of `edgekv.Llama`, and EdgeKVError if a place does not keep the prompt or give it back."""
    found, again = {way: _Found() for way in ways(bench)}, _Found()
    n_ctx = rounded(bench.n_tokens + QUESTION_TOKENS + bench.n_predicted + 1)
    n_threads = bench.n_threads or n_cores()
    llama = Llama(str(bench.model), kv=KvMode.EXACT, n_ctx=n_ctx, n_batch=BATCH_TOKENS, n_ubatch=BATCH_TOKENS, n_threads=n_threads,
                  n_threads_batch=n_threads, verbose=False)
    with closing(llama), closing(Decoder(llama)) as decoder:
        for turn in range(bench.n_turns):
            text = bench.texts[turn % len(bench.texts)]
            progress(f"turn {turn + 1}: {text.name}", turn, bench.n_turns)
            _turn(_Turn(bench, decoder, text), found, again, rotated(list(found), turn))
            yield _rows(bench, n_threads, turn + 1, found, again)


def _rows(bench: KeptBench, n_threads: int, n_turns: int, found: dict[Way, _Found], again: _Found) -> list[dict[str, Any]]:
    common = {"kind": "cache", "model": bench.model.name, "n_tokens": bench.n_tokens, "texts": ", ".join(text.name for text in bench.texts),
              "turns": n_turns, "threads": n_threads, **stamp(), "cores": n_cores()}
    rows: list[dict[str, Any]] = [{"place": "none", "codec": None, **_figures(again)}]
    rows += [{"place": way.place, "codec": way.codec.value, **_figures(one)} for way, one in found.items()]
    return [{**row, "first_vs_reading": row["first_s"] / rows[0]["first_s"], **common} for row in rows]


def _figures(found: _Found) -> dict[str, float | None]:
    kept = {"bytes_a_token": found.bytes_a_token, "save_s": found.save_s}
    return {**{name: median(values) if values else None for name, values in kept.items()}, "first_s": median(found.first_s),
            "first_min_s": min(found.first_s), "first_max_s": max(found.first_s), "kld": fmean(found.kld)}


def _turn(turn: "_Turn", found: dict[Way, _Found], again: _Found, order: Sequence[Way]) -> None:
    clock = _Clock()
    turn.read()
    clock.stop()
    read_s = clock.seconds
    with ExitStack() as stack:
        kept: dict[Way, _Kept] = {}

        def keep(way: Way) -> None:
            turn.decoder.rewind(turn.bench.n_tokens)  # a window's cells then lie as after loading, and sums are the same
            kept[way] = turn.keep(way, stack)
            found[way].bytes_a_token.append(kept[way].bytes_a_token)
            found[way].save_s.append(kept[way].seconds)

        ram, *below = sorted(order, key=lambda way: way.place != "ram")
        for way in below:
            keep(way)
        turn.decoder.rewind(turn.bench.n_tokens)
        clock = _Clock()
        exact = turn.predict(clock.stop)
        again.first_s.append(read_s + clock.seconds)
        again.kld.append(turn.stocks_divergence(exact))
        keep(ram)  # its rows leave the slot
        for way in order:
            first_s, logits = turn.bring_back(kept[way])
            found[way].first_s.append(first_s)
            found[way].kld.append(_divergence(exact, logits))


class _Kept(NamedTuple):
    way: Way
    where: StoreSettings
    prefixes: Prefixes | None
    """Of RAM, which ends with it."""
    seconds: float
    """Until all rows were in the place."""
    bytes_a_token: float


class _Turn:
    """One text in a context that reads, keeps and gets back its beginning."""

    def __init__(self, bench: KeptBench, decoder: Decoder, text: Text):
        self.bench, self.decoder, self.text = bench, decoder, text
        n = bench.n_tokens + QUESTION_TOKENS + bench.n_predicted
        tokens = text.tokens(decoder.llama, n)
        if len(tokens) < n:
            raise ConfigError(f"the text {text.name} has {len(tokens):,} tokens, and {n:,} are needed; name a longer one")
        self.tokens = np.array(tokens, np.int32)
        self.model = geometry(bench.model)
        self.space = secrets.token_hex(8)  # nobody else's prompts begin with these rows

    @property
    def runtime(self) -> Runtime:
        assert self.decoder.kv is not None
        return self.decoder.kv

    def read(self) -> None:
        """Read the prompt into the empty context."""
        self.decoder.rewind(0)
        self.decoder.read(self._part(0, self.bench.n_tokens), BATCH_TOKENS)
        self.decoder.mark()

    def predict(self, asked: Callable[[], None] = lambda: None) -> list[np.ndarray]:
        """Logits [n_vocab] behind the question and the tokens after it. asked: called when the question is read."""
        n = self.bench.n_tokens
        self.decoder.decode(self._part(n, QUESTION_TOKENS))
        asked()
        logits = [self.decoder.logits()]
        for token in self._part(n + QUESTION_TOKENS, self.bench.n_predicted):
            self.decoder.decode([token])
            logits.append(self.decoder.logits())
        return logits

    def stocks_divergence(self, exact: Sequence[np.ndarray]) -> float:
        """The divergence of stock's attention over the same rows."""
        self.decoder.rewind(self.bench.n_tokens)
        set_mode(self.decoder, KvMode.OFF)
        try:
            return _divergence(exact, self.predict())
        finally:
            set_mode(self.decoder, KvMode.EXACT)

    def keep(self, way: Way, stack: ExitStack) -> _Kept:
        """Keep the prompt's rows; the stack ends the place."""
        where, n_rows = self._where(way, stack), self.bench.n_tokens
        prefixes = Prefixes(self.model, where)
        with ExitStack() as kept:
            kept.enter_context(closing(prefixes))
            prefixes.open(self.runtime)
            held, clock = self._sequence(way, n_rows), _Clock()
            prefixes.insert(held, True, self.runtime.tokens.keeps_snapshots)
            if way.place == "ram":  # which gets rows when another prompt is to have the slot
                self._wait(prefixes, held)
                self.decoder.rewind(0)
            prefixes.flush()
            clock.stop()
            (stats,) = prefixes.stats()
            n_bytes = {"ram": stats.ram.n_bytes, "disk": stats.disk.n_written_bytes, "shared": stats.remote.n_written_bytes}[way.place]
            if not n_bytes:
                raise EdgeKVError(f"nothing was kept in {way.place}; the log says why")
            alive = None
            if way.place == "ram":
                alive = prefixes
                stack.callback(kept.pop_all().close)
        return _Kept(way, where, alive, clock.seconds, n_bytes / n_rows)

    def bring_back(self, kept: _Kept) -> tuple[float, list[np.ndarray]]:
        """Seconds from the prompt to its first token, in an empty context, and the predictions' logits."""
        prefixes = kept.prefixes or Prefixes(self.model, kept.where)
        with ExitStack() as stack:
            if kept.prefixes is None:
                stack.enter_context(closing(prefixes))
                prefixes.open(self.runtime)
            self.decoder.rewind(0)
            if kept.where.folder is not None:
                _leave_page_cache(kept.where.folder)
            prompt = self._sequence(kept.way, self.bench.n_tokens + QUESTION_TOKENS)
            clock = _Clock()
            self._wait(prefixes, prompt)
            cached = prefixes.load(prompt, 0, self._goes_on)
            if cached.n_kept != self.bench.n_tokens:
                raise EdgeKVError(f"{kept.way.place} gave {cached.n_kept:,} of {self.bench.n_tokens:,} tokens back")
            self.decoder.position = cached.n_kept
            prefixes.start()

            def asked() -> None:
                prefixes.release(0)
                clock.stop()

            try:
                logits = self.predict(asked)
            except EdgeKVError:
                if prefixes.release(0)[0] >= 0:
                    raise EdgeKVError(f"rows from {kept.way.place} were damaged or gone") from None
                raise
        return clock.seconds, logits

    @property
    def _goes_on(self) -> int | None:
        return 0 if self.runtime.tokens.keeps_snapshots else None

    def _wait(self, prefixes: Prefixes, prompt: SequenceTokens) -> None:
        """Until the slot is empty, and `load` need not wait."""
        while not prefixes.match(prompt, 0, self._goes_on, True):
            pass

    def _where(self, way: Way, stack: ExitStack) -> StoreSettings:
        where = StoreSettings(_SPARE * self.bench.n_tokens * self.model.kv_bytes_per_token() + (64 << 20), codec=way.codec, url_ttl_s=_EXPIRES_S)
        if way.place == "disk":
            return replace(where, folder=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=self.bench.folder))))
        return replace(where, url=self.bench.url) if way.place == "shared" else where

    def _sequence(self, way: Way, n: int) -> SequenceTokens:
        address = ctypes.cast(self.decoder.llama.ctx, ctypes.c_void_p).value or 0
        return SequenceTokens(address, 0, self.tokens[:n].copy(), (), f"{self.space} {way.name}")

    def _part(self, first: int, n: int) -> list[int]:
        return [int(token) for token in self.tokens[first : first + n]]


def _leave_page_cache(folder: Path) -> None:
    """Let the system forget what files say, so that they are read from the disk."""
    for path in (path for path in folder.rglob("*") if path.is_file() and hasattr(os, "posix_fadvise")):
        number = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def _divergence(exact: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The mean divergence of predictions, logits [n_vocab] each."""
    return fmean(divergence(log_softmax(a), log_softmax(b)) for a, b in zip(exact, other, strict=True))
