"""Rows of the benchmark on a GPU: one column (a way to run a context) at several depths, from the deepest to the shallowest.

A context is filled once, up to the deepest depth: from a file of its state if there is one, otherwise by reading tokens.
Then, for each depth, the cache is cut back and the last tokens before the depth are read again; their speed is the prompt speed
there. Single tokens follow: first untimed ones, in which the policy fills the arena, then the timed ones. Each
row is yielded as soon as it is complete. Runs on the CPU and on an emulated device as well. """

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.bench.fields import FIGURES, Found
from edgekv.bench.modes import find_mode
from edgekv.bench.passes import Pass, decode, memory_figures
from edgekv.bench.request import BenchTest
from edgekv.bench.row import Row, empty_row, model_fields, test_fields
from edgekv.bench.taken import Taken
from edgekv.common.enums import CacheType, DeviceKind, KvMode
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.machine import n_cores, stamp
from edgekv.common.reports import SelectionReport
from edgekv.common.units import size
from edgekv.config import KvOptions
from edgekv.measure.contexts import ContextError, decoder_of
from edgekv.measure.decoder import Decoder  # first: it puts llama_cpp on our libraries
from edgekv.models import geometry
from edgekv.runtime.runtime import Runtime

import llama_cpp

MARGIN_TOKENS = 512
"""Tokens of context beyond the deepest depth, for the decoded ones."""

BATCH_TOKENS = 2048
UBATCH_TOKENS = 512

PATIENCE_SECONDS = 12.0
"""A depth whose steps would take longer gets fewer steps."""

STOCK_WARMUP = 8


@dataclass(frozen=True)
class Way:
    """One column of the table."""

    name: str
    mode: KvMode
    cache: CacheType = CacheType.F16
    offload_kv: bool = True
    prompts: bool = True
    """Whether prompt speed is measured; False if the processor would take minutes to attend a deep cache."""


WAYS = {way.name: way for way in (
    Way("stock", KvMode.OFF),
    Way("stock, KV in host memory", KvMode.OFF, offload_kv=False, prompts=False),
    Way("stock, q8_0", KvMode.OFF, cache=CacheType.Q8_0),
    Way("exact", KvMode.EXACT),
    Way("sparse", KvMode.SPARSE),
)}
"""Ways by their name in the rows."""


@dataclass(frozen=True)
class DeviceBench:
    """The request. `budget_bytes`: device memory for KV, on the CPU the arena's size; None: automatic."""

    model: Path
    label: str
    """The model's name in the rows."""
    way: Way
    device: DeviceKind
    depths: tuple[int, ...]
    budget_bytes: int | None = None
    n_steps: int = 128
    n_warmup: int = 160
    """Steps before the timed ones at the deepest depth, where the arena is empty; a quarter of them at other depths. Stock needs
    only a few."""
    n_prompt: int = 2048
    """The tokens before each depth that are read again and timed."""
    state: Path | None = None
    """File of a filled cache. It is read if it exists and has the same cache type; otherwise mode off writes it."""
    link_bytes_per_s: float | None = None
    """The rate of an emulated link, slower than the real one. After each step the host waits as long as the link would take for the
    step's reads and promotions. Computing hides none of this wait, so a step is at most as fast as over such a link."""
    n_threads: int | None = None
    """Threads for work on the processor; None: all cores."""

    def __post_init__(self) -> None:
        for noun, values in (("depth", self.depths), ("number of steps", (self.n_steps,)),
                             ("number of prompt tokens", (self.n_prompt,))):
            if not values or min(values) < 1:
                raise ConfigError(f"a {noun} must be 1 or more")

    @property
    def options(self) -> KvOptions:
        option = "kv_budget" if self.device is DeviceKind.HOST else "kv_vram"
        budget: dict[str, Any] = {} if self.way.mode is KvMode.OFF else {option: self.budget_bytes}
        return KvOptions(mode=self.way.mode, attention_device=self.device, type_k=self.way.cache, type_v=self.way.cache, **budget)

    @property
    def identity(self) -> Row:
        """The fields that tell this bench's rows from all others."""
        link = f"emulated {self.link_bytes_per_s / 1e9:g} GB/s" if self.link_bytes_per_s else None
        return {"model": self.label, "column": self.way.name, "device": self.device.value, "budget_bytes": self.budget_bytes, "link": link}

    def row(self, depth: int, **figures: Any) -> Row:
        test = BenchTest(0, figures.get("n_steps", 0), depth)
        return {**empty_row(), **test_fields(test, self.way.cache, self.way.cache, "random", "random"), "kind": "gpu",
                "kv_mode": self.way.mode.value, "n_batch": BATCH_TOKENS, "n_ubatch": UBATCH_TOKENS, "n_threads": self.n_threads or n_cores(),
                "flash_attn": 1, "no_kv_offload": not self.way.offload_kv, **self.identity, "depth": depth, **figures, **stamp()}


def measure(bench: DeviceBench, known: Collection[int] = (), say: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
    """Yield a row for each depth that is not in `known`. A depth that does not fit gives a row with a note, and smaller depths are
    tried."""
    wanted = sorted(set(bench.depths) - set(known), reverse=True)
    before = vram_used() if bench.device is DeviceKind.CUDA else None
    while wanted:
        n_ctx = wanted[0] + MARGIN_TOKENS
        try:
            with _opened(bench, n_ctx) as decoder:
                yield from _Column(bench, decoder, before, say).rows(wanted)
                return
        except ContextError as error:
            yield bench.row(wanted.pop(0), note=str(error))


class _Column:
    def __init__(self, bench: DeviceBench, decoder: Decoder, vram_before: int | None, say: Callable[[str], None]):
        self.bench, self.decoder, self.say = bench, decoder, say
        self.runtime: Runtime = decoder.llama.kv
        self.vram_before, self.vram_peak = vram_before, 0
        self.filled, self.link_read = "read in", 0
        self.is_first = True

    def rows(self, depths: Sequence[int]) -> Iterator[Row]:
        n_deepest = depths[0]
        random = np.random.default_rng(0)
        tokens = random.integers(260, min(350, self.decoder.llama.n_vocab()), n_deepest + MARGIN_TOKENS).tolist()
        self._fill(tokens[:n_deepest])
        for depth in depths:
            began = time.perf_counter()
            prompt = self._prompt(tokens, depth)
            figures = self._decode(tokens[depth:], depth)
            self._look_at_vram()
            figures |= {"prefill_tps": prompt, "vram_peak_bytes": self.vram_peak or None, "filled": self.filled,
                        **model_fields(geometry(self.bench.model), self.decoder), "seconds": round(time.perf_counter() - began, 1)}
            yield self.bench.row(depth, **figures)

    # ---- the cache -------------------------------------------------------------------------------------------------------------

    def _fill(self, tokens: Sequence[int]) -> None:
        """Make the cache hold `tokens`: cut a longer one, read the rest into a shorter one."""
        decoder = self.decoder
        state = self.bench.state if self.bench.way.cache is CacheType.F16 else None
        began = time.perf_counter()
        if state is not None and state.is_file():
            decoder.position = _load(decoder, state, len(tokens))
            decoder.rewind(min(decoder.position, len(tokens)))
            self.filled = f"restored to {decoder.position}" + (", the rest read in" if decoder.position < len(tokens) else "")
            self.say(f"{self.filled} in {time.perf_counter() - began:.1f} s")
        n_before = decoder.position
        decoder.read(tokens[n_before:], BATCH_TOKENS)
        self._look_at_vram()
        seconds = time.perf_counter() - began
        if n_before < len(tokens):
            self.say(f"read to {len(tokens)} in {seconds:.1f} s")
        if state is not None and self.bench.way.mode is KvMode.OFF and not state.is_file():
            began = time.perf_counter()
            _save(decoder, state, tokens)
            self.say(f"state kept: {size(state.stat().st_size)} in {time.perf_counter() - began:.1f} s")

    def _prompt(self, tokens: Sequence[int], depth: int) -> float | None:
        """Cut the cache to `depth`. If prompts are measured, return the tokens per second over the last ones before it."""
        n = min(self.bench.n_prompt, depth - 1) if self.bench.way.prompts else 0
        self.decoder.rewind(depth - n)
        return n / self.decoder.read(tokens[depth - n : depth], BATCH_TOKENS) if n else None

    # ---- decoding --------------------------------------------------------------------------------------------------------------

    def _decode(self, tokens: Sequence[int], depth: int) -> Row:
        n_warmup, n_steps = self._n_warmup(), min(self.bench.n_steps, MARGIN_TOKENS // 2)
        self.link_read = self._link_bytes()
        decode(self.decoder, tokens[:n_warmup], False, self._step, PATIENCE_SECONDS / 2)
        self._look_at_vram()
        begun = self.decoder.position - depth
        done = decode(self.decoder, tokens[begun : begun + n_steps + 1], False, self._step, PATIENCE_SECONDS)
        figures = self._figures(done, depth)
        self.decoder.rewind(depth)
        return figures

    def _n_warmup(self) -> int:
        n = min(self.bench.n_warmup, MARGIN_TOKENS // 2)
        if self.bench.way.mode is KvMode.OFF:
            return min(n, STOCK_WARMUP)
        first, self.is_first = self.is_first, False
        return n if first else -(-n // 4)

    def _step(self, tokens: Sequence[int]) -> float:
        """Seconds of a step, with the wait of an emulated link."""
        seconds = self.decoder.decode(tokens)
        if self.bench.link_bytes_per_s:
            now = self._link_bytes()
            seconds, self.link_read = seconds + _wait((now - self.link_read) / self.bench.link_bytes_per_s), now
        return seconds

    def _link_bytes(self) -> int:
        """Bytes read over the link in place, or promoted, since the context was made; counted only if a link is emulated."""
        if not self.bench.link_bytes_per_s:
            return 0
        return self._missed_bytes(self.runtime.selection()) + self.runtime.stats.moved_bytes

    def _missed_bytes(self, selection: SelectionReport) -> int:
        """Bytes of K and V of rows read in place."""
        return (selection.n_read - selection.n_hits) * self.runtime.tiers().slot_bytes // self.runtime.options.cache.page_size

    def _figures(self, done: Pass, depth: int) -> Row:
        milliseconds, n = 1000 * np.asarray(done.seconds), len(done.seconds)
        taken = Taken(BenchTest(0, n, depth))
        taken.add(0.0, done, None)
        taken.bytes_kept = memory_figures(self.decoder.kv)
        found = Found(find_mode(self.bench.way.mode.value), taken, self.bench.n_threads or n_cores(), n_heads=0)
        row: Row = {**taken.samples(), **{figure.key: figure.of(found) for figure in FIGURES},
                    "n_steps": n, "decode_ms_p50": float(np.median(milliseconds)),
                    "decode_ms_p99": float(np.percentile(milliseconds, 99)), "decode_ms_max": float(milliseconds.max())}
        if self.bench.way.mode is KvMode.OFF:
            return row
        tiers, memory, selection = self.runtime.tiers(), self.runtime.memory(), done.selection
        row |= {"pinned": memory.pinned, "device_bytes": memory.device_bytes, "n_slots": tiers.n_slots, "n_resident": tiers.n_resident,
                "slot_bytes": tiers.slot_bytes, "extra_bytes": memory.extra_bytes}
        missed = None
        if selection.n_selections:
            row["certain_fraction"], missed = selection.certain, self._missed_bytes(selection) / n
        elif tiers.n_slots:  # mode exact reads every page without a slot in place
            missed = tiers.n_home * tiers.slot_bytes
        if missed is not None:
            row |= {"missed_bytes_per_step": missed, "link_bytes_per_step": missed + done.stats.moved_bytes / n}
        return row

    def _look_at_vram(self) -> None:
        if self.vram_before is not None and (used := vram_used()) is not None:
            self.vram_peak = max(self.vram_peak, used - self.vram_before)


def _opened(bench: DeviceBench, n_ctx: int) -> AbstractContextManager[Decoder]:
    return decoder_of(bench.model, kv_options=bench.options, n_ctx=n_ctx, n_batch=BATCH_TOKENS, n_ubatch=UBATCH_TOKENS,
                      n_gpu_layers=0 if bench.device is DeviceKind.HOST else -1, offload_kqv=bench.way.offload_kv,
                      n_threads=bench.n_threads or n_cores(), n_threads_batch=bench.n_threads or n_cores())


def _save(decoder: Decoder, path: Path, tokens: Sequence[int]) -> None:
    partial = path.with_suffix(".partial")
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    if not llama_cpp.llama_state_seq_save_file(decoder.llama.ctx, str(partial).encode(), 0, array, len(tokens)):
        raise EdgeKVError(f"the state of the cache could not be written to {path}; is there room?")
    partial.replace(path)


def _load(decoder: Decoder, path: Path, n_wanted: int) -> int:
    """Load a saved cache; return the tokens that the cache holds now."""
    capacity = decoder.llama.n_ctx()
    array, n_tokens = (llama_cpp.llama_token * capacity)(), ctypes.c_size_t(0)
    read = llama_cpp.llama_state_seq_load_file(decoder.llama.ctx, str(path).encode(), 0, array, capacity, ctypes.byref(n_tokens))
    if not read:
        raise EdgeKVError(f"the state in {path} does not fit this context of {n_wanted} tokens; delete the file")
    return n_tokens.value


def vram_used() -> int | None:
    """Bytes that all processes use on the first GPU; None without nvidia-smi."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(query, capture_output=True, text=True)
    return int(done.stdout) << 20 if done.returncode == 0 and done.stdout.strip().isdigit() else None


def _wait(seconds: float) -> float:
    """Spin, because sleeping is too coarse; returns the seconds it took."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        pass
    return time.perf_counter() - began
