"""Answers are held to JSON schemas, and to grammars in Lark, by llguidance: which tokens may follow, while the model computes which one does."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from edgekv.common.errors import ConfigError
from edgekv.server.answer_calls import CallRules, spelled
from edgekv.server.form_schema import as_meant
from edgekv.server.schema_words import NotExact, Rewriting

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from edgekv._native.form_callbacks import Vocabulary

LLGUIDANCE = "1.9.1"
"""The version that was tested."""
_SPACES = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})"}
"""Between two parts of a JSON text: small models would write spaces without end."""
_MOST_COMPILED = 16


class AnswerForms:
    """Forms of one server's answers: `%edgekv {"schema": ..., "before": [[text, whether it may be missing], ...], "begun": text, "calls": ...}`, of
    which `calls` is CallRules' or null, or a grammar that begins with %llguidance. `check` is for any thread, the others are one's."""

    def __init__(self) -> None:
        self._tokenizer: LLTokenizer | None = None
        self._n_bytes = 0
        self._marks: dict[str, int] = {}
        """The tokens that are used by their number, by text."""
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()
        """Of the vocabulary, and of what was compiled for it."""
        self._answers: dict[int, LLMatcher] = {}

    def check(self, form: str) -> None:
        """Raises ConfigError where answers cannot be held to the form. Its calls have the marks of the vocabulary that was read."""
        if (given := _check(form)) and given.get("calls"):
            _check_beginning(self._matcher(form))

    def read(self, vocabulary: Vocabulary) -> None:
        """Answers that begin from now on have these tokens. Takes a second for 100,000."""
        from llguidance import LLTokenizer

        pieces = [b"\xff" + piece if token in vocabulary.special else piece for token, piece in enumerate(vocabulary.pieces)]
        tokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # its stub lacks it
            tokens=pieces, vocab_ptr=vocabulary.address, tokenize_fptr=vocabulary.tokenize, eos_token=vocabulary.ends,
            slices=LLTokenizer.json_slices())
        with self._lock:
            self._marks = {vocabulary.pieces[token].decode(errors="replace"): token for token in vocabulary.special if vocabulary.pieces[token]}
            self._compiled.clear()
            self._tokenizer, self._n_bytes = tokenizer, (len(pieces) + 31) // 32 * 4

    def begin(self, answer: int, form: str, begun: bytes) -> None:
        matcher = self._answers[answer] = self._matcher(form)
        if begun and self._tokenizer:
            matcher.consume_tokens(self._tokenizer.tokenize_bytes(begun))
        _check_matcher(matcher)

    def follow(self, answer: int, token: int | None, allowed: int) -> None:
        """`token` is the answer's next one; None: it has none yet. Writes to the address `allowed` a bit for each token: whether it may follow."""
        matcher = self._answers[answer]
        if token is not None:
            matcher.consume_token(token)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(allowed, self._n_bytes)
        _check_matcher(matcher)

    def copy(self, answer: int, to: int) -> None:
        self._answers[to] = self._answers[answer].deep_copy()

    def end(self, answer: int) -> None:
        self._answers.pop(answer, None)

    def _matcher(self, form: str) -> LLMatcher:
        with self._lock:
            if form not in self._compiled:
                self._compiled[form] = self._compile(form)
                if len(self._compiled) > _MOST_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(form)
            return self._compiled[form].deep_copy()

    def _compile(self, form: str) -> LLMatcher:
        from llguidance import LLMatcher

        assert self._tokenizer is not None, "the vocabulary comes first"
        given = _given(form)
        matcher = _check_matcher(LLMatcher(self._tokenizer, form if given is None else _grammar(given, self._marks), log_level=0))
        if given and given["begun"]:
            matcher.consume_tokens(self._tokenizer.tokenize_str(given["begun"]))
        return _check_matcher(matcher)


def _given(form: str) -> dict[str, Any] | None:
    """A form of a schema; None: it is a grammar."""
    kind, _, text = form.partition(" ")
    return json.loads(text) if kind == "%edgekv" else None


def _grammar(given: dict[str, Any], marks: Mapping[str, int]) -> str:
    """A form in Lark. `marks`: tokens that are used by their number, by text."""
    before = "".join(f"({spelled(text, marks, optional)}){'?' if optional else ''} " for text, optional in given["before"])
    answer = "" if given["schema"] is None else f"\nanswer: %json {_schema_text(json.dumps(given['schema']))}"
    if calls := given.get("calls"):
        return f"{CallRules(calls, marks, _schema_text, f'{before}answer' if answer else '')}{answer}"
    return f"start: {before}answer{answer}"


@lru_cache(maxsize=64)
def _schema_text(given: str) -> str:
    """A schema as llguidance takes it: the client's, or one that says the same with the words it has. Raises ConfigError."""
    from llguidance import LLMatcher, LLTokenizer

    def matcher(text: str) -> LLMatcher:
        return LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(text), log_level=0)

    schema = json.loads(given)
    if (first := matcher(text := _spaced(as_meant(schema)))).is_error():
        with suppress(NotExact, RecursionError, ConfigError, AttributeError, TypeError, ValueError):  # the last: it is none, as llguidance says below
            if not matcher(rewritten := _spaced(as_meant(Rewriting(schema).rewritten()))).is_error():
                return rewritten
    _check_matcher(first)
    return text


def _spaced(schema: Any) -> str:
    return json.dumps(schema | {"x-guidance": _SPACES} if isinstance(schema, dict) else schema)  # over the client's, which may ask for less


@lru_cache(maxsize=64)
def _check(form: str) -> dict[str, Any] | None:
    """Raises ConfigError where no answer can be held to the form; calls need the vocabulary, and are not looked at."""
    try:
        from llguidance import LLMatcher, LLTokenizer
    except ImportError:
        raise ConfigError(f"the package llguidance is missing, which holds answers to it; pip install llguidance=={LLGUIDANCE}") from None
    try:
        given = _given(form)
        if given and given.get("calls"):
            return given
        grammar = form if given is None else _grammar(given, {})
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it cannot be read ({error})") from None
    matcher = _check_beginning(_check_matcher(LLMatcher(LLTokenizer("byte"), grammar, log_level=0)))
    if given is not None and given["begun"] and not matcher.consume_tokens(list(given["begun"].encode())):
        raise ConfigError("the beginning of the answer, which the last message gives, does not fit it")
    return given


def _check_beginning(matcher: LLMatcher) -> LLMatcher:
    matcher.compute_bitmask()  # an error where nothing can begin an answer
    return _check_matcher(matcher)


def _check_matcher(matcher: LLMatcher) -> LLMatcher:
    """Raises ConfigError for one that cannot go on."""
    if not matcher.is_error():
        return matcher
    why = matcher.get_error().strip()
    if words := re.search(r"Unimplemented keys: \[(.*?)\]", why):
        raise ConfigError(f"{words[1].replace(chr(34), chr(39))} would not be enforced; leave it out, and check the answer for it")
    if why.startswith("NoExtension"):
        raise ConfigError("no answer fits it")
    if why.startswith("oneOf"):
        raise ConfigError("'oneOf' would not be enforced where two of its schemas can hold at once; write 'anyOf', and check the answer for it")
    if "patternProperty regexes" in why:
        raise ConfigError("'patternProperties' would not be enforced where two of its patterns can match one name; leave one out, and check the answer for it")
    if why.startswith("regex parse error"):
        raise ConfigError(f"'pattern' cannot be enforced ({why.splitlines()[-1].removeprefix('error: ')}); leave it out, and check the answer for it")
    raise ConfigError(why.splitlines()[0])
