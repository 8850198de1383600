"""Can a fact be recalled after its context went cold? Asked of each KV mode, and of full attention.

A few facts are planted in natural text, evenly spread, and the text is read in. Then a mode decodes some hundred further tokens
of the text, which have nothing to do with the facts: whatever forgets the pages of a fact has forgotten them by then. Only now
comes a question, decoded token by token in the same mode, with the beginning of its answer, and the mode continues greedily.
Before the next question more of the text is decoded, so that what one question stirred up has cooled down.

Several small contexts with few facts each: one context with many lets a small model confuse them with full attention too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.bench.decoder import Decoder
from edgekv.bench.facts import SUBJECTS, Fact
from edgekv.bench.frame import plain
from edgekv.bench.haystack import MARGIN, Haystack, paragraphs, planted
from edgekv.bench.measured import Measured
from edgekv.bench.modes import FULL, STOCK, BenchMode, find_mode, in_order
from edgekv.bench.passes import WARMUP_TOKENS, Caches, ContextError, decode, hooked_note, opened, read, warm_up
from edgekv.bench.text import Text
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.llama import Llama
from edgekv.machine import n_cores, stamp
from edgekv.models import geometry

ANSWER_TOKENS = 8

GAP_TOKENS = 32
"""Further text before each question but the first: five half-lives of the moving average."""

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RecallBench:
    """What to ask. Every depth gives one row for each mode."""

    model: Path
    text: Text
    depths: tuple[int, ...] = (4096,)
    modes: tuple[str, ...] = (STOCK, FULL)
    n_questions: int = len(SUBJECTS)
    n_facts: int = 4  # in one context
    n_cold: int = 256  # tokens between the end of what was read in and the first question
    n_threads: int = 1
    caches: Caches = Caches()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.modes:
            if not find_mode(name).alternates or find_mode(name).destructive:
                raise ConfigError(f"{name} cannot take turns in one context, so recall is not asked of it; leave it out")
        if not 1 <= self.n_questions <= len(SUBJECTS):
            raise ConfigError(f"{self.n_questions} questions were asked for; there are 1 to {len(SUBJECTS)}")
        if min(self.depths, default=0) < 256 or min(self.n_facts, self.n_threads) < 1 or self.n_cold < WARMUP_TOKENS:
            raise ConfigError(f"a depth must be 256 or more, the cold tokens {WARMUP_TOKENS} or more, the others 1 or more")

    @property
    def all_modes(self) -> dict[str, BenchMode]:
        """Stock first, then full attention."""
        return {name: find_mode(name) for name in in_order(self.modes)}

    def contexts(self) -> list[list[Fact]]:
        """The facts of each context; their numbers depend on the seed only. Facts of one context are far apart in SUBJECTS."""
        random = Random(self.seed)
        facts = [Fact(subject, str(random.randrange(1000, 10000))) for subject in SUBJECTS][: self.n_questions]
        n_contexts = -(-len(facts) // self.n_facts)
        return [facts[i::n_contexts] for i in range(n_contexts)]


def plant(llama: Llama, text: Text, facts: list[Fact], depth: int, n_after: int, turn: int, n_turns: int) -> Haystack:
    """Facts between paragraphs of `text`, evenly spread over `depth` tokens; `turn` of `n_turns` shifts all of them, and begins
    the text elsewhere, so that the contexts together ask at every depth. The tokens go on after `depth`: what is decoded while
    the context goes cold. Raises ConfigError where the text is too short."""
    starts = [round((i + (turn + 0.5) / n_turns) / len(facts) * (depth - MARGIN)) for i in range(len(facts))]
    pieces = paragraphs(text)
    return planted(llama, text.name, pieces[turn * len(pieces) // (2 * n_turns) :], [fact.sentence for fact in facts], starts,
                   depth + n_after, depth, before=[llama.token_bos()])


def run(bench: RecallBench, progress: Progress = lambda what, done, total: None) -> Iterator[list[Row]]:
    """Yield the rows of one depth at a time, one for each mode, stock first."""
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to ask; unset it")
    model = geometry(bench.model)
    n_after = bench.n_cold + bench.n_facts * GAP_TOKENS
    for depth in sorted(set(bench.depths)):
        n_ctx = depth + n_after + 128
        note = bench.caches.does_not_fit(model, n_ctx)
        asked: dict[str, _Asked] = {name: _Asked() for name in bench.all_modes}
        if note is None:
            try:
                with opened(bench.model, bench.caches, n_ctx, bench.n_threads) as decoder:
                    note = hooked_note(decoder.llama.kv)
                    _ask(bench, decoder, depth, n_after, asked, progress)
            except ContextError as error:
                note = str(error)
        yield [_row(bench, model.path.name, depth, name, asked, note) for name in asked]


class _Asked:
    """What one mode answered."""

    def __init__(self) -> None:
        self.measured = Measured()
        self.answers: list[tuple[Fact, int, str]] = []

    @property
    def found(self) -> list[bool]:
        return [fact.answered_by(answer) for fact, _, answer in self.answers]


def _ask(
    bench: RecallBench, decoder: Decoder, depth: int, n_after: int, asked: dict[str, _Asked], progress: Progress
) -> None:
    base = decoder.llama.kv.options
    contexts = bench.contexts()
    for turn, facts in enumerate(contexts):
        haystack = plant(decoder.llama, bench.text, facts, depth, n_after, turn, len(contexts))
        decoder.rewind(0)
        decoder.llama.kv.configure(find_mode(STOCK).options(base, depth))
        for position in read(decoder, haystack.tokens[:depth], n_cores()):
            progress("prefill", position, depth)
        decoder.set_threads(bench.n_threads)
        for i, (name, mode) in enumerate(bench.all_modes.items()):
            progress(f"ask {name} ({turn + 1} of {len(contexts)})", i, len(bench.all_modes))
            _go_cold_and_answer(bench, decoder, mode, base, facts, haystack, asked[name])
            decoder.rewind(depth)


def _go_cold_and_answer(
    bench: RecallBench, decoder: Decoder, mode: BenchMode, base: KvOptions, facts: list[Fact], haystack: Haystack, asked: _Asked
) -> None:
    tokens = haystack.tokens[decoder.position :]
    warm_up(decoder, mode, base, tokens[:WARMUP_TOKENS])
    cold = decode(decoder, tokens[WARMUP_TOKENS : bench.n_cold], keep_logits=False)
    asked.measured.time(cold.seconds, cold.stats, cold.selection)
    for i, (fact, position) in enumerate(zip(facts, haystack.positions)):
        start = bench.n_cold + i * GAP_TOKENS
        if i:
            decode(decoder, tokens[start - GAP_TOKENS : start], keep_logits=False)
        resume = decoder.position
        asked.answers.append((fact, position, ask(decoder, fact)))
        decoder.rewind(resume)


def ask(decoder: Decoder, fact: Fact) -> str:
    """What follows the question, greedily."""
    decode(decoder, plain(decoder.llama, fact.question), keep_logits=False)
    answer: list[int] = []
    while len(answer) < ANSWER_TOKENS:
        answer.append(int(np.argmax(decoder.logits())))
        decoder.decode(answer[-1:])
    return decoder.llama.detokenize(answer).decode(errors="replace")


def _row(bench: RecallBench, model: str, depth: int, name: str, asked: dict[str, _Asked], note: str | None) -> Row:
    """`marks`: one letter for each question, see MARKS. `wrong`: what was answered instead."""
    one = asked[name]
    full = asked[FULL if FULL in asked else STOCK].found
    found = one.found
    figures = {**one.measured.figures(), **bench.all_modes[name].figures}
    info = _native.info()
    return {
        "mode": name, "depth": depth, "asked": len(found), "found": sum(found), "full_found": sum(full),
        "kept": sum(a and b for a, b in zip(found, full)),
        "marks": "".join(MARKS[a, b] for a, b in zip(found, full)),
        **{key: figures.get(key) for key in ("decode_ms_p50", "attended_fraction", "rows_per_head", "error", "hit_rate", "hit_rate_mass")},
        "wrong": "; ".join(f"{fact.subject} at {position}: {fact.value}, answered {answer.strip()!r}"
                           for (fact, position, answer), ok in zip(one.answers, found) if not ok),
        "threads": bench.n_threads, "n_cold": bench.n_cold, "n_facts": bench.n_facts, "text": bench.text.name, "seed": bench.seed,
        "type_k": bench.caches.type_k.value, "type_v": bench.caches.type_v.value, "model": model, "isa": info["isa"],
        "version": info["version"], **stamp(), "note": note,
    }


MARKS = {(True, True): "+", (False, True): "-", (False, False): "x", (True, False): "*"}
"""Found by this mode and by full attention: both, only by full attention, by neither, only by this mode."""
