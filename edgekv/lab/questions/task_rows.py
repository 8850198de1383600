"""The rows of answers, by task and length, with the share of full attention's answers that a mode keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from edgekv.bench.intervals import wilson
from edgekv.bench.modes import FULL, BenchMode
from edgekv.bench.tally import added
from edgekv.common.reports import SelectionReport
from edgekv.lab.questions.answers import Answers, TaskAnswer
from edgekv.lab.questions.sparsity import ATTENDED_EVERYTHING

ALL = "all"
"""The text or task in a row about all of them."""

Figures = dict[str, Any]

HANDFUL = 5
"""If full attention finds fewer answers than this, and fewer than half of all, the model cannot do the task:
its answers may be luck, and the task says nothing about the cache."""


class Retention(Struct, frozen=True):
    """Counts of answers, each asked of full attention and of a mode."""

    n_asked: int = 0
    n_full: int = 0
    """Answers that full attention finds; the others are the model's own failures."""
    n_found: int = 0
    n_kept: int = 0
    """Answers that both find."""

    def __add__(self, other: Retention) -> Retention:
        return Retention(self.n_asked + other.n_asked, self.n_full + other.n_full, self.n_found + other.n_found, self.n_kept + other.n_kept)

    @classmethod
    def of(cls, full: tuple[bool, ...], mode: tuple[bool, ...]) -> Retention:
        """The answers to one question, in the same order."""
        if len(full) != len(mode):
            raise ValueError(f"{len(full)} answers of full attention and {len(mode)} of the mode")
        return cls(len(full), sum(full), sum(mode), sum(a and b for a, b in zip(full, mode)))

    @property
    def says_nothing(self) -> bool:
        return self.n_full < HANDFUL and 2 * self.n_full < self.n_asked or not self.n_full

    @property
    def share(self) -> float | None:
        """The kept share; None if full attention finds nothing."""
        return self.n_kept / self.n_full if self.n_full else None

    def row(self) -> dict[str, Any]:
        """The counts, and the share with its interval (Wilson's; answers to one context are not quite independent, so it is
        too narrow rather than too wide)."""
        low, high = wilson(self.n_kept, self.n_full) if self.n_full else (None, None)
        return {
            "asked": self.n_asked, "full_found": self.n_full, "found": self.n_found, "kept": self.n_kept,
            "extra": self.n_found - self.n_kept, "retention": self.share, "retention_low": low, "retention_high": high,
            "says_nothing": self.says_nothing,
        }


class AskedInModes:
    """All answers of a run, by mode, in the same order."""

    def __init__(self, tasks: Sequence[str], modes: Mapping[str, BenchMode], answers: Mapping[str, Answers]):
        self.tasks, self.modes, self.answers = tasks, modes, answers
        self.lengths = sorted({answer.n_context for answer in answers[FULL].given})

    def rows(self) -> Iterator[Figures]:
        """Rows by task and length, by task, and over all informative tasks."""
        sound: list[str] = []
        for task in self.tasks:
            for length in (*self.lengths, None) if len(self.lengths) > 1 else (None,):
                for mode in self.modes:
                    row = self._row(mode, task, [task], length)
                    yield row
                    if mode == FULL and length is None and not row["says_nothing"]:
                        sound.append(task)
        if len(self.tasks) > 1:
            yield from (self._row(mode, ALL, sound, None) for mode in self.modes)

    def _row(self, mode: str, task: str, tasks: Sequence[str], length: int | None) -> Figures:
        counts, wrong, note = self._counts(mode, lambda answer: answer.task in tasks and length in (None, answer.n_context))
        selection = SelectionReport()
        for (of_task, of_length), report in self.answers[mode].selections.items():
            if of_task in tasks and length in (None, of_length):
                selection = added(selection, report)
        attended = {"attended_fraction": selection.attended, "error": selection.error} if selection.n_selections else {}
        return {"kind": "task", "mode": mode, "task": task, "length": length, **counts.row(), "wrong": wrong, "note": note, **attended,
                **self.modes[mode].figures}

    def _counts(self, mode: str, asked: Callable[[TaskAnswer], bool]) -> tuple[Retention, str, str | None]:
        """(counts, wrong answers, note) of the answers for which `asked` is true. Answers of a mode that attended everything do not
        count."""
        both = [(full, own) for full, own in zip(self.answers[FULL].given, self.answers[mode].given, strict=True) if asked(full)]
        pairs = [(full, own) for full, own in both if own.sparse]
        counts = sum((Retention.of(full.found, own.found) for full, own in pairs), Retention())
        dense = sorted({own.n_context for _, own in both if not own.sparse})
        note = f"{ATTENDED_EVERYTHING} in {' and '.join(f'{n:,}' for n in dense)} tokens: not counted" if dense else None
        return counts, "; ".join(text for full, own in pairs if (text := _wrong(full, own))), note


def _wrong(full: TaskAnswer, own: TaskAnswer) -> str:
    """The mode's wrong answers where full attention is right, with the right ones; "" if none was lost."""
    lost = [(blank.expected, said) for blank, said, right, kept in zip(own.question.blanks, own.said, full.found, own.found)
            if right and not kept]
    if not lost:
        return ""
    said = ", ".join(f"{expected}, answered {said.strip()!r}" for expected, said in lost)
    return f"{own.task} in {own.n_context} tokens: {said}"
