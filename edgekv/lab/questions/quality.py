"""Measures a mode's cost in quality: its predictions of a text against full attention's, and the answers that it keeps.

There are two halves. Each text is read once, then each mode predicts it token by token (edgekv.lab.questions.likeness). Tasks are questions
about long contexts whose answers are right or wrong (edgekv.lab.tasks, edgekv.lab.questions.answers). A question that full attention fails
says nothing about the cache, so a mode is judged by how many of the other answers it keeps (edgekv.lab.questions.task_rows). Full attention
reads texts and contexts for all modes, except modes with sparse prompts, which read for themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv import _native
from edgekv.bench.modes import FULL, BenchMode, errors_for, find_mode, in_order
from edgekv.bench.passes import WARMUP_TOKENS, hooked_note
from edgekv.bench.text import Text
from edgekv.common.effort import Effort, Kind, Work
from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError, DoesNotFit
from edgekv.common.machine import stamp
from edgekv.lab.questions.answers import Answers, QuestionPlan
from edgekv.lab.questions.likeness import Likeness, compare
from edgekv.lab.questions.sparsity import ATTENDED_EVERYTHING
from edgekv.lab.questions.start import Start, opened
from edgekv.lab.questions.task_rows import ALL, AskedInModes
from edgekv.lab.tasks import TASKS
from edgekv.measure.contexts import BATCH_TOKENS, ContextError
from edgekv.measure.decoder import Decoder
from edgekv.models import geometry

DEPTH = 7680
LENGTHS = (1024, 2048, 4096)
LEAST_TOKENS = 256
"""Fewest tokens of a depth or a length: fewer leave nothing to select."""

FIGURES = (
    "nll", "ppl", "ppl_vs_exact", "ppl_low_exact", "ppl_high_exact", "nll_minus_exact", "nll_low_exact", "nll_high_exact", "kld_exact",
    "kld_low_exact", "kld_high_exact", "kld_p99_exact", "same_top_exact", "ppl_vs_stock", "ppl_low_stock", "ppl_high_stock",
    "nll_minus_stock", "nll_low_stock", "nll_high_stock", "kld_stock", "kld_low_stock", "kld_high_stock", "kld_p99_stock",
    "same_top_stock", "rows_per_head", "coverage",
)
"""Figures of a text. _low and _high are the ends of 95 % intervals."""

COUNTS = ("asked", "full_found", "found", "kept", "extra", "retention", "retention_low", "retention_high", "says_nothing", "wrong")
"""Figures of a task, see `Retention.row`; `wrong`: the mode's wrong answers where full attention is right."""

_CACHE = {"type_k": CacheType.F16.value, "type_v": CacheType.F16.value}

Row = dict[str, Any]
Progress = Callable[[str, int, int, float | None], None]
"""Called with the current activity, the tokens done and their number, and the seconds left if they are known."""


class QualityBench(Struct, frozen=True):
    """The request of `edgekv lab quality`."""

    model: Path
    texts: tuple[Text, ...]
    """The first one also makes the tasks' contexts."""
    modes: tuple[str, ...]
    depth: int | None = None
    """Tokens of context before the predictions; None: DEPTH, or the model's trained context if shorter."""
    n_steps: int = 256
    """Predictions compared; 0: none."""
    tasks: tuple[str, ...] = tuple(TASKS)
    lengths: tuple[int, ...] | None = None
    """Tokens of the tasks' contexts; None: LENGTHS up to the model's trained context."""
    n_samples: int = 1
    """Contexts of each task and length."""
    n_threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.modes:
            if not find_mode(name).flash_attn:
                raise ConfigError(f"{name} cannot take turns in one context with the others; leave it out")
        for name in self.tasks:
            TASKS.get(name)
        if min((*(self.lengths or ()), self.depth or LEAST_TOKENS)) < LEAST_TOKENS:
            raise ConfigError(f"the depth and every length must be {LEAST_TOKENS} tokens or more")
        if not self.n_steps and not self.tasks:
            raise ConfigError("there is nothing to measure; ask for steps or for tasks")

    @property
    def all_modes(self) -> dict[str, BenchMode]:
        """All modes, stock first, then full attention: they judge every mode, requested or not."""
        return {name: find_mode(name) for name in in_order((FULL, *self.modes))}

    @property
    def n_predicted(self) -> int:
        """Tokens of text after the depth: the warm-up, the decoded tokens, and the last one's successor."""
        return WARMUP_TOKENS + self.n_steps + 1


def run(
    bench: QualityBench, progress: Progress = lambda what, done, total, left: None, tell: Callable[[float], None] = lambda seconds: None
) -> Iterator[list[Row]]:
    """Yield the rows of one text at a time, then those of the tasks. `tell` gets the estimated seconds of the whole run, once
    known.

    Raises ConfigError for a text that is too short or lengths beyond the trained context, and DoesNotFit if memory is short, all
    before any measurement.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    model = geometry(bench.model)
    try:
        with opened(bench.model, LEAST_TOKENS, 1) as decoder:
            work = _Work.of(bench, decoder, model.path.name, model.n_ctx_train)
        errors = errors_for(bench.all_modes.values(), bench.model, _CACHE, bench.n_threads,
                            lambda what, done, total: progress(what, done, total, None))
        with opened(bench.model, work.n_ctx, bench.n_threads, errors) as decoder:
            yield from _Run(bench, decoder, work, progress, tell).rows()
    except ContextError as error:
        raise DoesNotFit(f"a context for {model.path.name} {error}; use smaller -d and --lengths") from error


class _Work(Struct, frozen=True):
    """All tokens that a run reads."""

    depth: int
    texts: tuple[tuple[str, list[int]], ...]
    plan: QuestionPlan
    n_ctx: int

    @classmethod
    def of(cls, bench: QualityBench, decoder: Decoder, model: str, n_trained: int) -> _Work:
        llama = decoder.llama
        depth = bench.depth if bench.depth is not None else min(DEPTH, n_trained - bench.n_predicted)
        n_text = depth + bench.n_predicted
        texts = []
        if bench.n_steps:
            if depth < LEAST_TOKENS or n_text > n_trained:
                raise ConfigError(f"a depth of {depth} with {bench.n_steps} steps needs {n_text} tokens, and {model} was trained for "
                                  f"{n_trained}; use a smaller -d or -n")
            for text in bench.texts:
                tokens = text.tokens(llama, n_text)
                if len(tokens) < n_text:
                    raise ConfigError(f"{text.name} has only {len(tokens)} tokens, and a depth of {depth} with {bench.n_steps} steps needs "
                                      f"{n_text}; use a smaller -d, or a longer text")
                texts.append((text.name, tokens))
        plan = cls._plan(bench, decoder, model, n_trained)
        return cls(depth, tuple(texts), plan, max(plan.n_ctx, n_text if texts else 0))

    @staticmethod
    def _plan(bench: QualityBench, decoder: Decoder, model: str, n_trained: int) -> QuestionPlan:
        def planned(lengths: tuple[int, ...]) -> QuestionPlan:
            return QuestionPlan(decoder.llama, bench.texts[0], bench.tasks, lengths, bench.n_samples, bench.seed)

        if bench.lengths is None:
            fitting = tuple(length for length in LENGTHS if planned((length,)).n_ctx <= n_trained)
            if bench.tasks and not fitting:
                raise ConfigError(f"no task of {LENGTHS[0]} tokens or more fits the {n_trained} tokens that {model} was trained for; name "
                                  "smaller --lengths, or leave the tasks out with --tasks none")
            return planned(fitting)
        plan = planned(tuple(sorted(set(bench.lengths))))
        if plan.n_ctx > n_trained:
            raise ConfigError(f"contexts of {max(bench.lengths)} tokens need {plan.n_ctx} with the questions, and {model} was trained for "
                              f"{n_trained}; use smaller --lengths")
        return plan


class _Run:
    def __init__(self, bench: QualityBench, decoder: Decoder, work: _Work, progress: Progress, tell: Callable[[float], None]):
        self.bench, self.decoder, self.work, self.progress, self.tell = bench, decoder, work, progress, tell
        self.start = Start(decoder, decoder.llama.kv.options)
        self.effort = Effort(list(self._planned()))
        self.told = False
        self.clock = time.perf_counter()

    def _planned(self) -> Iterator[Work]:
        for _ in self.work.texts:
            yield Work.after(Kind.READ, 0, self.work.depth)
            for mode in self.bench.all_modes.values():
                if mode.reads_itself:
                    yield Work.after(Kind.READ, 0, self.work.depth)
                yield Work.after(Kind.DECODE, self.work.depth, WARMUP_TOKENS + self.bench.n_steps)
        for reading in self.work.plan.readings:
            yield Work.after(Kind.READ, 0, reading.start)
            for mode in self.bench.all_modes.values():
                if mode.reads_itself:
                    yield Work.after(Kind.READ, 0, reading.start)
                yield Work.after(Kind.DECODE, reading.start, reading.n_decoded(mode.destructive))

    def rows(self) -> Iterator[list[Row]]:
        together = Likeness()
        for name, tokens in self.work.texts:
            self._read(name, tokens[: self.work.depth], self.bench.all_modes)
            likeness = compare(self.decoder, self.start, self.bench.all_modes, tokens[self.work.depth :],
                               lambda mode, n, name=name: self._predicted(f"{name}: {mode}", n))  # type: ignore[misc]  # a default
            yield self._text_rows(name, likeness)
            together += likeness
        if len(self.work.texts) > 1:
            yield self._text_rows(ALL, together)
        if self.work.plan.readings:
            yield [self._row(**figures) for figures in AskedInModes(self.bench.tasks, self.bench.all_modes, self._answers()).rows()]

    # ---- texts --------------------------------------------------------------------------------------------------------------

    def _predicted(self, what: str, n_tokens: int) -> None:
        self._done(Kind.DECODE, what, self.work.depth, n_tokens)
        self.effort.finish()

    def _text_rows(self, text: str, likeness: Likeness) -> list[Row]:
        dense = f"{ATTENDED_EVERYTHING}: that says nothing about a sparse mode"
        return [self._row(kind="text", mode=name, text=text, depth=self.work.depth, n_steps=self.bench.n_steps,
                          note=dense if name in likeness.dense else None, **likeness.figures(name, mode))
                for name, mode in self.bench.all_modes.items()]

    # ---- tasks --------------------------------------------------------------------------------------------------------------

    def _answers(self) -> dict[str, Answers]:
        answers = {name: Answers() for name in self.bench.all_modes}
        plan = self.work.plan
        for reading in plan.readings:
            what = f"{'+'.join(asked.task for asked in reading.samples)} {len(reading.tokens)}"
            self._read(what, reading.tokens[: reading.start], self.bench.all_modes)
            for name, mode in self.bench.all_modes.items():
                plan.answer(reading, self.start, mode, answers[name],
                            partial(self._done, Kind.DECODE, f"{what}: {name}"))
                self.effort.finish()
        return answers

    # ---- common -------------------------------------------------------------------------------------------------------------

    def _row(self, kind: str, mode: str, note: str | None = None, **figures: Any) -> Row:
        info = _native.info()
        notes = [text for text in (note, hooked_note(self.decoder.llama.kv)) if text]
        return {
            "kind": kind, "mode": mode, **dict.fromkeys(("text", "depth", "n_steps", "task", "length")), **dict.fromkeys(FIGURES),
            **dict.fromkeys(COUNTS), "attended_fraction": None, "error": None, **figures, "n_samples": self.bench.n_samples,
            "seed": self.bench.seed, "threads": self.bench.n_threads, **_CACHE, "model": Path(self.bench.model).name, "isa": info["isa"],
            "version": info["version"], **stamp(), "note": "; ".join(notes) or None,
        }

    def _read(self, what: str, tokens: list[int], modes: Mapping[str, BenchMode]) -> None:
        self.clock = time.perf_counter()
        before = 0

        def after_batch(position: int) -> None:
            nonlocal before
            before = 0 if position <= before else before  # a mode reads the context again
            self._done(Kind.READ, f"{what}: read", before, position - before)
            before = position
            if position == len(tokens):
                self.effort.finish()

        self.start.read(tokens, modes.values(), self.bench.n_threads, after_batch)

    def _done(self, kind: Kind, what: str, position: int, n_tokens: int) -> None:
        now = time.perf_counter()
        self.effort.add(Work.after(kind, position, n_tokens), now - self.clock)
        self.clock = now
        left, in_all = self.effort.seconds_left(), self.effort.seconds_in_all()
        if in_all is not None and not self.told and kind is Kind.DECODE and n_tokens > BATCH_TOKENS // 4:
            self.told = True
            self.tell(in_all)
        self.progress(what, self.effort.n_done, self.effort.n_tokens, left)
