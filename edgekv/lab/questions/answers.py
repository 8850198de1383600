"""Asks each mode the questions of tasks: every context is read once, and every mode starts from it.

No mode has seen a question when it starts. Full attention reads the context except its last WARMUP_TOKENS tokens. These are
decoded one by one as in any pass (edgekv.bench.passes). Only then comes the question, under the mode.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct, field

from edgekv.bench.modes import BenchMode
from edgekv.bench.passes import WARMUP_TOKENS, decode, warm_up
from edgekv.bench.tally import added
from edgekv.bench.text import Text
from edgekv.common.errors import ConfigError
from edgekv.common.reports import SelectionReport
from edgekv.lab.questions.asking import ask, n_tokens_of
from edgekv.lab.questions.sparsity import was_sparse
from edgekv.lab.questions.start import Start
from edgekv.lab.tasks import TASKS, Context, Question, TaskSample
from edgekv.lab.texts.frame import Frame, plain
from edgekv.lab.texts.haystack import sentences
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder

GAP_TOKENS = 32
"""Tokens of further text before each question but the first of a cold context, so that the previous question's pages cool down."""

COLD_SHARE = 0.9
"""The tokens after which a context goes cold are taken from here on, as a share of the text: contexts begin in its first half."""


class TaskAnswer(Struct, frozen=True):
    """The answer to one question of a task."""

    task: str
    n_context: int
    question: Question
    said: tuple[str, ...]
    sparse: bool = True
    """False: the mode attended everything during the question, so the answer says nothing about the mode."""

    @property
    def found(self) -> tuple[bool, ...]:
        return self.question.grade(self.said)


class Answers(Struct):
    """All answers of one mode in the plan's order, and its selection during each task's questions."""

    given: list[TaskAnswer] = field(default_factory=list)
    selections: dict[tuple[str, int], SelectionReport] = field(default_factory=dict)


class AskedSample(Struct, frozen=True):
    """A sample, with the numbers of tokens that its questions need."""

    task: str
    sample: TaskSample
    n_asked: tuple[int, ...]
    """The most tokens of each question with its answer."""

    @property
    def n_after(self) -> int:
        """Cells that the sample needs beyond the context."""
        n_cold = self.sample.n_cold and self.sample.n_cold + GAP_TOKENS * (len(self.n_asked) - 1)
        return n_cold + (sum(self.n_asked) if self.sample.in_turn else max(self.n_asked))

    def n_decoded(self, destructive: bool) -> int:
        """Tokens that a mode decodes, warm-up included."""
        n_questions, n_cold = len(self.n_asked), self.sample.n_cold
        if self.sample.in_turn:
            return WARMUP_TOKENS + sum(self.n_asked)
        if n_cold and not destructive:
            return WARMUP_TOKENS + n_cold + GAP_TOKENS * (n_questions - 1) + sum(self.n_asked)
        gaps = GAP_TOKENS * n_questions * (n_questions - 1) // 2 if n_cold else 0
        return n_questions * (WARMUP_TOKENS + n_cold) + gaps + sum(self.n_asked)


class TaskContext(Struct, frozen=True):
    """A context as tokens, with the samples that start from it."""

    tokens: list[int]
    samples: tuple[AskedSample, ...]

    @property
    def start(self) -> int:
        """Tokens that full attention reads."""
        return len(self.tokens) - WARMUP_TOKENS

    def n_decoded(self, destructive: bool) -> int:
        return sum(asked.n_decoded(destructive) for asked in self.samples)


class QuestionPlan:
    """Every context and question of a run, as tokens of one model; `llama` is needed only to make it."""

    def __init__(self, llama: Llama, text: Text, tasks: Sequence[str], lengths: Sequence[int], n_samples: int, seed: int):
        self.frame = Frame.of(llama)
        self.readings: list[TaskContext] = []
        around = len(self.frame.between) + len(self.frame.after) + 4
        for length in lengths:
            for index in range(n_samples):
                shared: dict[Context, list[AskedSample]] = {}
                for task in tasks:
                    sample = TASKS.get(task).sample(seed, length, index, n_samples)
                    n_asked = tuple(around + n_tokens_of(llama, question) for question in sample.questions)
                    shared.setdefault(sample.context, []).append(AskedSample(task, sample, n_asked))
                for context, samples in shared.items():
                    built = context.build(llama, self.frame, text)
                    self.readings.append(TaskContext(built.tokens, tuple(samples)))
        self.cold = self._cold(llama, text)

    @property
    def n_ctx(self) -> int:
        """Cells of the longest context and its questions."""
        return max((len(reading.tokens) + asked.n_after for reading in self.readings for asked in reading.samples), default=0)

    def _cold(self, llama: Llama, text: Text) -> list[int]:
        needed = max((asked.sample.n_cold + GAP_TOKENS * len(asked.n_asked) for reading in self.readings
                      for asked in reading.samples if asked.sample.n_cold), default=0)
        if not needed:
            return []
        pieces = sentences(text)
        tokens = plain(llama, "".join(pieces[int(COLD_SHARE * len(pieces)) :]))[:needed]
        if len(tokens) < needed:
            raise ConfigError(f"{text.name} is too short: a tenth of it must have {needed} tokens to let a context go cold; give a longer "
                              "text, or leave after-cold out of the tasks")
        return tokens

    def answer(self, reading: TaskContext, start: Start, mode: BenchMode, answers: Answers,
               decoded: Callable[[int, int], None] = lambda position, n: None) -> None:
        """Ask all questions of one context in one mode; `start` has read the context. `decoded` gets the position and number of decoded
        tokens."""
        for asked in reading.samples:
            sample = asked.sample
            asking = _Asking(self, start, mode, reading, sample, decoded)
            said = asking.in_turn() if sample.in_turn else asking.apart()
            sparse = was_sparse(mode, asking.selection, asking.decoder.llama.kv, asking.decoder.position)
            for question, gaps in zip(sample.questions, said, strict=True):
                answers.given.append(TaskAnswer(asked.task, len(reading.tokens), question, tuple(gaps), sparse))
            key = (asked.task, len(reading.tokens))
            answers.selections[key] = added(answers.selections.get(key, SelectionReport()), asking.selection)


class _Asking:
    """One sample, one mode."""

    def __init__(self, plan: QuestionPlan, start: Start, mode: BenchMode, reading: TaskContext, sample: TaskSample,
                 decoded: Callable[[int, int], None]):
        self.plan, self.start, self.mode, self.reading, self.sample, self.decoded = plan, start, mode, reading, sample, decoded
        self.decoder: Decoder = start.decoder
        self.selection = SelectionReport()

    def in_turn(self) -> list[list[str]]:
        self._begin()
        return [self._ask(question, self.plan.frame.between if i else ()) for i, question in enumerate(self.sample.questions)]

    def apart(self) -> list[list[str]]:
        """Ask each question as if it were the only one. If the context goes cold first, that happens once, unless the mode drops
        cells and cannot go back; then the same tokens are decoded again before each question."""
        said, sample = [], self.sample
        done = 0  # decoded tokens of other text
        for i, question in enumerate(sample.questions):
            if i == 0 or not sample.n_cold or self.mode.destructive:
                self._begin()
                done = 0
            n_cold = sample.n_cold + GAP_TOKENS * i if sample.n_cold else 0
            self._count(partial(decode, self.decoder, self.plan.cold[done:n_cold], keep_logits=False))
            done, resume = n_cold, self.decoder.position
            if not self.mode.destructive:
                self.decoder.mark()
            said.append(self._ask(question, plain(self.decoder.llama, "\n\n") if sample.n_cold else ()))
            if not self.mode.destructive:
                self.decoder.rewind(resume)
        return said

    def _begin(self) -> None:
        self.start.begin(self.mode)
        warm_up(self.decoder, self.mode, self.start.base, self.reading.tokens[self.reading.start :])
        self.decoded(self.start.position, WARMUP_TOKENS)

    def _ask(self, question: Question, lead: Sequence[int]) -> list[str]:
        return self._count(lambda: ask(self.decoder, question, lead, self.plan.frame.after))

    def _count(self, work: Callable[[], object]):
        runtime, position = self.decoder.llama.kv, self.decoder.position
        before = runtime.selection()
        result = work()
        self.selection = added(self.selection, runtime.selection().since(before))
        self.decoded(position, self.decoder.position - position)
        return result
