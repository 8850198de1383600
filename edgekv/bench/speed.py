"""The question of `edgekv bench`: speed as llama-bench measures it, of stock and of EdgeKV's modes, in one run.

A model is loaded once for each setting. Its contexts are filled once to each depth, shallowest first; there, for each test, the modes
take turns. Stock is measured with and without flash attention, and the other modes are compared with the faster one.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv import _native
from edgekv.bench import peer
from edgekv.bench.fields import FIGURES, Found
from edgekv.bench.meter import Meter
from edgekv.bench.modes import STOCK_KERNELS, BenchMode, errors_for, with_home_on_disk, with_stock
from edgekv.bench.needs import Room
from edgekv.bench.passes import LIMIT_TOKENS, WARMUP_TOKENS, Passes, hooked_note, memory_figures
from edgekv.bench.process import Peak
from edgekv.bench.request import BenchRequest, BenchTest, Fill, with_rows
from edgekv.bench.row import Row, empty_row, from_peer, machine_fields, model_fields, test_fields
from edgekv.bench.taken import Taken
from edgekv.bench.text import Text
from edgekv.cache_types import with_layer_types
from edgekv.common.effort import Kind, Work
from edgekv.common.enums import FULL, CacheType
from edgekv.common.errors import ConfigError, ModelError
from edgekv.common.units import MIB
from edgekv.config import CacheOptions, HeadErrors, KvOptions
from edgekv.measure.contexts import ContextError, Contexts, Opening, contexts
from edgekv.measure.steps import rotated
from edgekv.models.geometry import ModelFile, open_model
from edgekv.planning.available import available_bytes
from edgekv.planning.fit import rounded
from edgekv.planning.home import free_on_disk

_WAKING = 24
"""Tokens of an unmeasured prompt: more than the decode kernels serve in one step."""


def run(request: BenchRequest, where: Row, meter: Meter, warn: Callable[[str], None] = lambda text: None) -> Iterator[list[Row]]:
    """Yield one test's rows of every mode at a time. where: the environment.

    A mode that cannot be measured gives a row with the reason under `note`. Raises ModelError for a file that cannot be loaded, and DoesNotFit
    for a folder without room for the KV home, after the earlier models are done; ConfigError for a folder that can have none. On an
    interrupt, yields the test's figures so far and raises KeyboardInterrupt.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    if request.peer:
        peer.check(request.peer)
    if request.kv_dir:
        free_on_disk(request.kv_dir)
    for path in request.models:
        if not path.exists():
            raise ModelError(f"there is no file {path}; name a GGUF file with -m")
    for path in request.models:
        file = open_model(path)
        n_most = max(test.depth + test.n_tokens for depth in request.depths for test in request.tests(depth))
        if n_most > file.geometry.n_ctx_train:
            warn(f"{path.name} was trained for {file.geometry.n_ctx_train:,} tokens: beyond them only the times mean something")
        caches = [CacheOptions(type_k=k, type_v=v) for k, v in request.cache_types]
        caches += [_by_layer(path, n_bytes, max(request.threads), meter) for n_bytes in request.kv_bytes]
        for text, n_batch, n_ubatch, cache in product(request.texts, request.batches, request.ubatches, caches):
            yield from Group(request, Setting(file, text, n_batch, min(n_ubatch, n_batch), cache), where, meter).rows()


def _by_layer(model: Path, n_bytes: int, n_threads: int, meter: Meter) -> CacheOptions:
    """The cache with types by layer of at most so many bytes a token. Raises as `with_layer_types`."""
    return with_layer_types(model, KvOptions(kv_bytes=n_bytes), lambda what, done, total: meter.say(f"{what}: {done} of {total}"), n_threads).cache


class Setting(Struct, frozen=True):
    file: ModelFile
    text: Text
    n_batch: int
    n_ubatch: int
    cache: CacheOptions


class Member(Struct, frozen=True):
    """A member takes turns with the others: a mode, with its arena's budget if one was requested."""

    name: str
    mode: BenchMode
    budget: int | None = None


Members = dict[str, Member]
"""Members by a unique name."""


def members(request: BenchRequest) -> Members:
    """The members in order: stock's kernels first, then full attention."""
    found: Members = {}
    modes = with_stock(request.modes) if request.kv_dir is None else with_home_on_disk(request.modes)
    for name, mode in modes.items():
        if request.budgets and with_rows(name):
            for budget in request.budgets:
                changed = replace(mode, changes={**mode.changes, "kv_budget": budget})
                found[f"{name}, {budget}"] = Member(name, changed, budget)
        else:
            found[name] = Member(name, mode)
    return found


class Group:
    """The tests of one model with one setting: one load, one fill to each depth, modes in turns."""

    def __init__(self, request: BenchRequest, setting: Setting, where: Row, meter: Meter):
        self.request, self.setting, self.where, self.meter = request, setting, where, meter
        self.members = members(request)
        self.notes: dict[str, str] = {}  # by member: why it cannot be measured
        first = next(iter(self.members))
        self.references = {**({first: "stock"} if first in STOCK_KERNELS else {}), **({FULL: "exact"} if FULL in self.members else {})}
        self.shallow: dict[tuple[str, int, str], float] = {}  # (member, threads, test without its depth): seconds at the smallest depth
        self.peak = Peak()
        self.hot_rows: int | None = None  # bytes for copies of rows of a KV home on disk

    def rows(self) -> Iterator[list[Row]]:
        depths = sorted(set(self.request.depths))
        room = self._room()
        fitting = [depth for depth in depths if room.problem(self._n_ctx(depth)) is None]
        left = list(fitting)
        if fitting:
            room.check_home(self._n_ctx(fitting[-1]))
            if self.request.kv_dir is not None:
                self.hot_rows = room.hot_rows(self._n_ctx(fitting[-1]))
        try:
            if fitting:
                for depth, rows in self._measure(fitting, room):
                    if depth != left[0]:
                        left.pop(0)
                    yield rows
                left.clear()
        except ContextError as error:  # a result, not a failure of the benchmark
            for depth in left:
                yield from self._refused(depth, str(error))
        for depth in depths:
            if (problem := room.problem(self._n_ctx(depth))) is not None:
                yield from self._refused(depth, problem)

    @property
    def _cache(self) -> dict[str, Any]:
        """The options of a context's cache."""
        s = self.setting
        named = {"page_size": self.request.page_size, "layer_types": s.cache.layer_types, "kv_dir": self.request.kv_dir, "kv_budget": self.hot_rows}
        return {"type_k": s.cache.type_k, "type_v": s.cache.type_v, **{name: value for name, value in named.items() if value}}

    def _n_empty(self) -> int:
        return max(test.n_empty for depth in self.request.depths for test in self.request.tests(depth))

    def _room(self) -> Room:
        options = [member.mode.options(KvOptions(**self._cache), 0) for member in self.members.values()]
        return Room(self.setting.file, options, self.setting.cache, self.setting.n_ubatch, self._n_empty(),
                    available_bytes())

    def _n_ctx(self, depth: int) -> int:
        """Cells of the context for all tests at a depth. llama.cpp rounds up too, but gives a smaller context smaller batches."""
        return rounded(max(_WAKING, depth + max(test.margin for test in self.request.tests(depth))))

    def _refused(self, depth: int, note: str) -> Iterator[list[Row]]:
        for n_threads in self.request.threads:
            for test in self.request.tests(depth):
                yield [self._row(member, test, n_threads, None, {"note": note}) for member in self.members.values()]

    # ---- measuring --------------------------------------------------------------------------------------------------------------

    def _measure(self, depths: list[int], room: Room) -> Iterator[tuple[int, list[Row]]]:
        self.meter.plan(self._planned(depths))
        self.meter.say(f"load {self.setting.file.geometry.path.name}")
        with contexts(self._opening(depths, room), max(self.request.threads)) as opened:
            if opened.problem:
                self.notes[STOCK_KERNELS[1]] = opened.problem
            kernels = [kernel for kernel in STOCK_KERNELS if kernel in self.members]
            if kernels and not any(self._can(kernel, opened) for kernel in kernels):
                raise ContextError(next(iter(self.notes.values())))
            self._wake(opened)
            for depth in depths:
                self._fill(opened, depth)
                for n_threads in self.request.threads:
                    for test in self.request.tests(depth):
                        yield from ((depth, rows) for rows in self._test(opened, test, n_threads))

    def _planned(self, depths: list[int]) -> list[Work]:
        works, first = [], 0
        for depth in depths:
            works.append(Work.after(Kind.READ, first, depth - first if self.request.fill is Fill.TEXT else 0))
            first = depth
            for _, test in product(self.request.threads, self.request.tests(depth)):
                works += _works(test) * (self.request.n_rounds * len(self.members))
        return works

    def _opening(self, depths: list[int], room: Room) -> Opening:
        """Plan the contexts; the second one is as large as fits beside the first."""
        n_ctx, second = self._n_ctx(depths[-1]), None
        if STOCK_KERNELS[1] in self.members:
            if self.setting.cache.type_v is not CacheType.F16:
                self.notes[STOCK_KERNELS[1]] = f"llama.cpp needs flash attention for a {self.setting.cache.type_v.value} V cache"
            else:
                fitting = [self._n_ctx(depth) for depth in depths if room.problem(n_ctx, self._n_ctx(depth)) is None]
                second = max(fitting, default=None)
                if second != n_ctx:
                    self.notes[STOCK_KERNELS[1]] = room.problem(n_ctx, n_ctx) or ""
        s = self.setting
        return Opening(s.file.geometry.path, s.text.tokens, n_ctx, second, s.n_batch, s.n_ubatch, self.request.fill, self._n_empty(),
                       n_back=WARMUP_TOKENS if self.request.n_warmup is None else self.request.n_warmup,
                       options={**self._cache, "head_errors": self._head_errors()})

    def _head_errors(self) -> HeadErrors | None:
        modes = [member.mode for member in self.members.values()]
        return errors_for(modes, self.setting.file.geometry.path, self._cache, max(self.request.threads), lambda what, done, total: self.meter.say(what))

    def _can(self, key: str, opened: Contexts, n_ctx: int = 0) -> bool:
        """Whether a member has a context of at least `n_ctx` tokens."""
        return self.members[key].mode.flash_attn or opened.second is not None and (opened.opening.second or 0) >= n_ctx

    def _wake(self, opened: Contexts) -> None:
        """Bring weights and each mode's work space into memory, without measuring."""
        for mode in [member.mode for key, member in self.members.items() if self._can(key, opened)]:
            for decoder in filter(None, (opened.of(mode.flash_attn), opened.of(mode.flash_attn, empty=True))):
                if decoder.kv is not None:
                    decoder.kv.configure(mode.options(opened.base, _WAKING))
                decoder.decode(opened.token(0, min(_WAKING, self.setting.n_batch)))
                decoder.rewind(0)

    def _fill(self, opened: Contexts, depth: int) -> None:
        began, before = self.meter.seconds, opened.first.position
        opened.fill_to(depth, lambda done, total: self.meter.say(f"fill: {done:,} of {total:,} tokens"))
        if self.request.fill is Fill.TEXT:
            self.meter.add(Work.after(Kind.READ, before, depth - before), self.meter.seconds - began)
        self.meter.finish()

    def _test(self, opened: Contexts, test: BenchTest, n_threads: int) -> Iterator[list[Row]]:
        here = [key for key in self.members if self._can(key, opened, test.depth + test.margin)]
        passes = Passes(opened, self.request.n_warmup)
        taken = {key: Taken(test) for key in here}
        limits: list[float] = []
        others: list[Row] = []
        interrupt: KeyboardInterrupt | None = None
        try:
            for turn in range(self.request.n_rounds):
                if self.request.peer and turn == self.request.n_rounds // 2:
                    others = self._peer(test, n_threads)
                self._turn(passes, turn, test, n_threads, taken)
                if test.decodes:
                    limits += passes.limit(n_threads)
                    self.meter.measured += sum(limits[-LIMIT_TOKENS:])
                self.peak.look()
        except KeyboardInterrupt as error:
            interrupt = error
        yield [*self._rows(opened, test, n_threads, taken, limits), *others]
        if interrupt:
            raise interrupt

    def _turn(self, passes: Passes, turn: int, test: BenchTest, n_threads: int, taken: dict[str, Taken]) -> None:
        """Make one pass of each mode. In the first turn the references begin, and predictions are compared."""
        compared = turn == 0 and test.decodes and not (test.depth and self.request.fill is Fill.SYNTHETIC)
        names = tuple(dict.fromkeys((*(key for key in self.references if key in taken), *taken))) if compared else tuple(taken)
        references: dict[str, list[np.ndarray]] = {}
        for key in rotated(names, turn):
            self.meter.say(f"{test.name}: {key}, {turn + 1} of {self.request.n_rounds}")
            mode, one = self.members[key].mode, taken[key]
            seconds, done = passes.one(mode, test, n_threads, compared)
            one.bytes_kept = memory_figures(passes.opened.first.kv) if mode.flash_attn else {}
            empty = passes.empty(mode, test, n_threads)
            for work, took in zip(_works(test), (seconds, sum(done.seconds) if done else 0.0, empty or 0.0)):
                self.meter.add(work, took, measured=True)
                self.meter.finish()
            one.add(seconds, done, empty, passes.counts.sums)
            if compared and done and key in self.references:
                references[self.references[key]] = done.logits
            elif compared and done:
                one.tally.compare(references, done.logits, passes.targets(test))
        for key, name in self.references.items():
            if name in references:
                rest = {other: logits for other, logits in references.items() if other != name}
                taken[key].tally.compare(rest, references[name], passes.targets(test))

    # ---- rows -------------------------------------------------------------------------------------------------------------------

    def _rows(self, opened: Contexts, test: BenchTest, n_threads: int, taken: dict[str, Taken], limits: list[float]) -> list[Row]:
        done = {key: one for key, one in taken.items() if one.seconds}
        stock = min((done[key] for key in STOCK_KERNELS if key in done), key=lambda one: one.typical, default=None)
        assert opened.first.kv is not None
        common = f"limit is missing: {opened.lost}" if opened.lost else hooked_note(opened.first.kv)
        n_heads = sum(layer.n_head for layer in opened.first.kv.layers if layer.hooked)
        references = {name: done[key].tally for key, name in self.references.items() if key in done}
        rows = []
        for key, member in self.members.items():
            if key not in done:
                note = self.notes.get(key) or ("interrupted" if key in taken else "does not fit")
                rows.append(self._row(member, test, n_threads, opened, {"note": note}))
                continue
            one = done[key]
            shallow = self.shallow.setdefault((key, n_threads, replace(test, depth=0).name), one.typical)
            found = Found(member.mode, one, n_threads, n_heads, stock, shallow, float(np.median(limits)) if limits else None, references,
                          self.peak.ram_mib, self.peak.vram_mib, on_disk=self.request.kv_dir is not None)
            figures = {figure.key: figure.of(found) for figure in FIGURES}
            rows.append(self._row(member, test, n_threads, opened, {**one.samples(), **figures, "note": common}))
        return rows

    def _row(self, member: Member, test: BenchTest, n_threads: int, opened: Contexts | None, figures: Row) -> Row:
        row = {**empty_row(), **self._common(test, n_threads, opened), "kv_mode": member.name,
               "flash_attn": int(member.mode.flash_attn), **figures}
        if member.budget is not None:
            row["kv_budget_mib"] = member.budget / MIB
        return row

    def _common(self, test: BenchTest, n_threads: int, opened: Contexts | None) -> Row:
        s = self.setting
        return {**machine_fields(self.where), **model_fields(s.file.geometry, opened.first if opened else None),
                **test_fields(test, *s.cache.names, s.text.name, self.request.fill.value), "n_batch": s.n_batch, "n_ubatch": s.n_ubatch,
                "n_threads": n_threads, "n_ctx": opened.opening.n_ctx if opened else self._n_ctx(test.depth),
                "kv_dir": None if self.request.kv_dir is None else str(self.request.kv_dir)}

    def _peer(self, test: BenchTest, n_threads: int) -> list[Row]:
        assert self.request.peer is not None
        self.meter.say(f"{test.name}: {self.request.peer.name}")
        s, name = self.setting, self.request.peer.name
        asked = peer.PeerSetting(s.file.geometry.path, s.n_batch, s.n_ubatch, n_threads, s.cache.type_k, s.cache.type_v, self.request.n_rounds)
        common = {**self._common(test, n_threads, None), "n_ctx": None, "kv_dir": None}
        if s.cache.layer_types is not None:
            return [{**empty_row(), **common, "kv_mode": "peer", "peer": name, "note": "it has one type for all layers"}]
        try:
            answers = peer.ask(self.request.peer, asked, test)
        except peer.PeerError as error:
            return [{**empty_row(), **common, "kv_mode": "peer", "peer": name, "note": str(error)}]
        self.meter.measured += sum(sum(answer["samples_ns"]) for answer in answers) / 1e9
        return [from_peer(answer, name, common) for answer in answers]


def _works(test: BenchTest) -> list[Work]:
    """The works of a pass, in order."""
    return [Work.after(Kind.READ, test.depth, test.n_prompt), Work.after(Kind.DECODE, test.depth + test.n_prompt, test.n_gen),
            Work.after(Kind.READ, 0, test.n_empty)]
