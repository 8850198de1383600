"""The tests of one model with one setting: one load, one fill to each depth, modes in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from edgekv.amounts import MIB
from edgekv.config import KvOptions
from edgekv.lab.engine import peer
from edgekv.lab.engine.effort import Kind, Work
from edgekv.lab.engine.filled import Contexts, Opening, contexts
from edgekv.lab.engine.meter import Meter
from edgekv.lab.engine.modes import STOCK_KERNELS, BenchMode, rotated, with_stock
from edgekv.lab.engine.needs import Room
from edgekv.lab.engine.one_pass import LIMIT_TOKENS, limit, margin, one_pass, targets
from edgekv.lab.engine.passes import hooked_note, memory_figures
from edgekv.lab.engine.peak import Peak
from edgekv.lab.engine.request import BenchRequest, BenchTest, Fill, with_arena
from edgekv.lab.engine.row import Row, empty_row, from_peer, machine_fields, model_fields, test_fields
from edgekv.lab.engine.taken import Taken
from edgekv.memory.fit import rounded
from edgekv.models.geometry import ModelFile
from edgekv.rates.measuring.contexts import ContextError
from edgekv.vocab import CacheType, KvMode

_WAKING = 24
"""Tokens of a prompt that nobody measures: more than a step of the decode kernels takes."""


@dataclass(frozen=True)
class Setting:
    file: ModelFile
    n_batch: int
    n_ubatch: int
    type_k: CacheType
    type_v: CacheType


@dataclass(frozen=True)
class Member:
    """What takes turns: a mode, with the budget of its arena where one was asked for."""

    name: str
    mode: BenchMode
    budget: int | None = None


Members = dict[str, Member]
"""By a name that no other has."""


def members(request: BenchRequest) -> Members:
    """Stock's kernels first, then full attention."""
    found: Members = {}
    for name, mode in with_stock(request.modes).items():
        if request.budgets and with_arena(name):
            for budget in request.budgets:
                changed = replace(mode, changes={**mode.changes, "kv_budget": budget})
                found[f"{name}, {budget}"] = Member(name, changed, budget)
        else:
            found[name] = Member(name, mode)
    return found


class Group:
    def __init__(self, request: BenchRequest, setting: Setting, where: Row, meter: Meter):
        self.request, self.setting, self.where, self.meter = request, setting, where, meter
        self.members = members(request)
        self.notes: dict[str, str] = {}  # on members that cannot be measured
        self.empty: dict[tuple[str, int, int], float] = {}  # (member, threads, tokens of a prompt): seconds in an empty cache
        self.peak = Peak()

    def rows(self) -> Iterator[list[Row]]:
        depths = sorted(set(self.request.depths))
        room = self._room()
        fitting = [depth for depth in depths if room.problem(self._n_ctx(depth)) is None]
        left = list(fitting)
        try:
            if fitting:
                for depth, rows in self._measure(fitting, room):
                    if depth != left[0]:
                        left.pop(0)
                    yield rows
                left.clear()
        except ContextError as error:  # an answer, not a failure of the benchmark
            for depth in left:
                yield from self._refused(depth, str(error))
        for depth in depths:
            if (problem := room.problem(self._n_ctx(depth))) is not None:
                yield from self._refused(depth, problem)

    def _room(self) -> Room:
        types = {"type_k": self.setting.type_k, "type_v": self.setting.type_v}
        options = [member.mode.options(KvOptions(**types), 0) for member in self.members.values()]
        return Room.now(self.setting.file, options, self.setting.type_k, self.setting.type_v, self.setting.n_ubatch)

    def _n_ctx(self, depth: int) -> int:
        """Of the context for all tests there; llama.cpp rounds up too, but hands smaller batches to a smaller one."""
        return rounded(max(_WAKING, depth + max(map(margin, self.request.tests(depth)))))

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
            if not any(self._can(kernel, opened) for kernel in STOCK_KERNELS if kernel in self.members):
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
                one = [Work.after(Kind.READ, depth, test.n_prompt), Work.after(Kind.DECODE, depth + test.n_prompt, test.n_gen)]
                works += one * (self.request.n_rounds * len(self.members))
        return works

    def _opening(self, depths: list[int], room: Room) -> Opening:
        """With the largest second context that fits beside the first."""
        n_ctx, second = self._n_ctx(depths[-1]), None
        if STOCK_KERNELS[1] in self.members:
            if self.setting.type_v is not CacheType.F16:
                self.notes[STOCK_KERNELS[1]] = f"llama.cpp needs flash attention for a {self.setting.type_v.value} V cache"
            else:
                fitting = [self._n_ctx(depth) for depth in depths if room.problem(n_ctx, self._n_ctx(depth)) is None]
                second = max(fitting, default=None)
                if second != n_ctx:
                    self.notes[STOCK_KERNELS[1]] = room.problem(n_ctx, n_ctx) or ""
        s = self.setting
        return Opening(s.file.geometry, self.request.text, self.request.fill, n_ctx, second, s.n_batch, s.n_ubatch, s.type_k, s.type_v)

    def _can(self, key: str, opened: Contexts, n_ctx: int = 0) -> bool:
        """Whether a member has a context, of at least that size."""
        if self.members[key].mode.alternates:
            return True
        return opened.second is not None and (opened.opening.second or 0) >= n_ctx

    def _wake(self, opened: Contexts) -> None:
        """Bring weights and each mode's work space into memory; not measured."""
        for key in filter(partial(self._can, opened=opened), self.members):
            member = self.members[key]
            decoder = opened.of(member.mode)
            assert decoder is not None
            if decoder.kv is not None:
                decoder.kv.configure(member.mode.options(opened.base, _WAKING))
            decoder.decode(opened.token(0, min(_WAKING, self.setting.n_batch)))
            decoder.rewind(0)

    def _fill(self, opened: Contexts, depth: int) -> None:
        began, before = self.meter.seconds, opened.first.position
        opened.fill_to(depth, lambda done, total: self.meter.say(f"fill: {done:,} of {total:,} tokens"))
        if self.request.fill is Fill.TEXT:
            self.meter.add(Work.after(Kind.READ, before, depth - before), self.meter.seconds - began)
        self.meter.finish()

    def _test(self, opened: Contexts, test: BenchTest, n_threads: int) -> Iterator[list[Row]]:
        here = [key for key in self.members if self._can(key, opened, test.depth + margin(test))]
        taken = {key: Taken(test) for key in here}
        limits: list[float] = []
        others: list[Row] = []
        interrupt: KeyboardInterrupt | None = None
        compares = bool(test.n_gen and not test.n_prompt and not (test.depth and self.request.fill is Fill.SYNTHETIC))
        try:
            for turn in range(self.request.n_rounds):
                if self.request.peer and turn == self.request.n_rounds // 2:
                    others = self._peer(test, n_threads)
                reference: list[np.ndarray] = []
                for key in here if turn == 0 else rotated(tuple(here), turn):
                    self.meter.say(f"{test.name}: {key}, {turn + 1} of {self.request.n_rounds}")
                    compared = compares and turn == 0
                    seconds, done = one_pass(opened, self.members[key].mode, test, n_threads, compared)
                    self._count(test, seconds, sum(done.seconds) if done else 0.0)
                    taken[key].add(seconds, done)
                    if compared and done:
                        reference = reference or done.logits
                        taken[key].tally.compare({"stock": reference}, done.logits, targets(opened, test))
                    taken[key].arena_bytes = self._arena(opened, key)
                if test.n_gen and not test.n_prompt:
                    limits += limit(opened, n_threads)
                    self.meter.measured += sum(limits[-LIMIT_TOKENS:])
                self.peak.look()
        except KeyboardInterrupt as error:
            interrupt = error
        yield [*self._rows(opened, test, n_threads, taken, limits), *others]
        if interrupt:
            raise interrupt

    def _count(self, test: BenchTest, prompt: float, generated: float) -> None:
        self.meter.add(Work.after(Kind.READ, test.depth, test.n_prompt), prompt, measured=True)
        self.meter.finish()
        self.meter.add(Work.after(Kind.DECODE, test.depth + test.n_prompt, test.n_gen), generated, measured=True)
        self.meter.finish()

    def _arena(self, opened: Contexts, key: str) -> int | None:
        if not self.members[key].mode.alternates or self.members[key].mode.changes["mode"] is not KvMode.SPARSE:
            return None
        return memory_figures(opened.first.kv).get("arena_bytes", 0)

    # ---- rows -------------------------------------------------------------------------------------------------------------------

    def _rows(self, opened: Contexts, test: BenchTest, n_threads: int, taken: dict[str, Taken], limits: list[float]) -> list[Row]:
        done = {key: one for key, one in taken.items() if one.seconds}
        stock = min((key for key in STOCK_KERNELS if key in done), key=lambda key: done[key].typical, default=None)
        assert opened.first.kv is not None
        common = hooked_note(opened.first.kv)
        rows = []
        for key, member in self.members.items():
            if key not in done:
                note = self.notes.get(key) or ("interrupted" if key in taken else "does not fit")
                rows.append(self._row(member, test, n_threads, opened, {"note": note}))
                continue
            figures: dict[str, Any] = {**done[key].figures(), **self._limit(key, test, n_threads, done[key], limits), "note": common}
            if stock is not None:
                figures |= {"best_stock": key == stock, "ratio_vs_stock": done[stock].typical / done[key].typical}
            if member.mode.changes["mode"] is not KvMode.SPARSE:
                figures["coverage"] = 1.0
            figures |= self._predictions(key, done[key])
            rows.append(self._row(member, test, n_threads, opened, figures))
        return rows

    def _limit(self, key: str, test: BenchTest, n_threads: int, taken: Taken, limits: list[float]) -> dict[str, float]:
        """A token against one with an empty cache, a prompt against the same in an empty cache."""
        if test.n_gen and test.n_prompt:
            return {}
        if test.n_gen:
            return {"limit_ratio": float(np.median(taken.tally.milliseconds)) / (1000 * float(np.median(limits)))} if limits else {}
        if not test.depth:
            self.empty[key, n_threads, test.n_prompt] = taken.typical
        empty = self.empty.get((key, n_threads, test.n_prompt))
        return {"limit_ratio": taken.typical / empty} if empty else {}

    def _predictions(self, key: str, taken: Taken) -> dict[str, float]:
        if not taken.tally.nll:
            return {}
        figures = {"nll": float(np.mean(taken.tally.nll))}
        first = next(iter(self.members))
        return figures if key == first else {**figures, "kld": float(np.mean(taken.tally.kld["stock"]))}

    def _row(self, member: Member, test: BenchTest, n_threads: int, opened: Contexts | None, figures: Row) -> Row:
        row = {**empty_row(), **self._common(test, n_threads, opened), "kv_mode": member.name,
               "flash_attn": int(member.mode.flash_attn), **figures}
        if member.budget is not None:
            row["kv_budget_mib"] = member.budget / MIB
        if opened is not None and row["samples_ns"] is not None:
            row |= {"ram_peak_mib": self.peak.ram_mib, "vram_peak_mib": self.peak.vram_mib}
        return row

    def _common(self, test: BenchTest, n_threads: int, opened: Contexts | None) -> Row:
        s = self.setting
        return {**machine_fields(self.where), **model_fields(s.file.geometry, opened.first if opened else None),
                **test_fields(test, s.type_k, s.type_v, self.request.fill.value), "n_batch": s.n_batch, "n_ubatch": s.n_ubatch,
                "n_threads": n_threads, "n_ctx": opened.opening.n_ctx if opened else self._n_ctx(test.depth)}

    def _peer(self, test: BenchTest, n_threads: int) -> list[Row]:
        assert self.request.peer is not None
        self.meter.say(f"{test.name}: {self.request.peer.name}")
        s, name = self.setting, self.request.peer.name
        asked = peer.PeerSetting(s.file.geometry.path, s.n_batch, s.n_ubatch, n_threads, s.type_k, s.type_v, self.request.n_rounds)
        common = {**self._common(test, n_threads, None), "n_ctx": None}
        try:
            answers = peer.ask(self.request.peer, asked, test)
        except peer.PeerError as error:
            return [{**empty_row(), **common, "kv_mode": "peer", "peer": name, "note": str(error)}]
        self.meter.measured += sum(sum(answer["samples_ns"]) for answer in answers) / 1e9
        return [from_peer(answer, name, common) for answer in answers]
