"""Texts are played through a form's masks, token by token, as the server's sampler does."""

import ctypes
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from edgekv._native.form_callbacks import Vocabulary
from edgekv.common.errors import ConfigError
from edgekv.models import default_model
from edgekv.server.answer_forms import AnswerForms

import llama_cpp


class Masks:
    """Forms over the default model's vocabulary."""

    def __init__(self) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(default_model()).encode(), parameters)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        tokens = range(llama_cpp.llama_vocab_n_tokens(self._vocab))
        ends = [token for token in tokens if llama_cpp.llama_vocab_is_eog(self._vocab, token)]
        special = {token for token in tokens if llama_cpp.llama_vocab_is_control(self._vocab, token)}
        self._end, self._pieces = llama_cpp.llama_vocab_eos(self._vocab), [self._piece(token) for token in tokens]
        self._allowed = np.zeros((len(tokens) + 31) // 32, np.uint32)
        self._forms = AnswerForms()
        tokenize = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
        self._forms.read(Vocabulary(self._vocab, tokenize, self._pieces, frozenset(special | {*ends}), ends))

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:length]

    def _tokens(self, text: bytes) -> list[int]:
        buffer = (llama_cpp.llama_token * (len(text) + 1))()
        tokens = list(buffer[:llama_cpp.llama_tokenize(self._vocab, text, len(text), buffer, len(buffer), False, False)])
        assert b"".join(self._pieces[token] for token in tokens) == text, f"the vocabulary cannot spell {text!r}"
        return tokens

    def refusal(self, schema: Any) -> str:
        """Why answers cannot be held to it; empty: they can."""
        try:
            self._forms.check(form_of(schema))
        except ConfigError as error:
            return str(error)
        return ""

    def take(self, schema: Any, text: str) -> bool:
        """Whether an answer can be `text`, and end there. Raises ConfigError where the form cannot be followed."""
        self._forms.begin(1, form_of(schema), b"")
        self._follow(None)
        for token in [*self._tokens(text.encode()), self._end]:
            if not self._allowed[token // 32] >> (token % 32) & 1:
                return False
            if token != self._end:
                self._follow(token)
        return True

    def _follow(self, token: int | None) -> None:
        self._forms.follow(1, token, self._allowed.ctypes.data)


def form_of(schema: Any) -> str:
    return "%edgekv " + json.dumps({"schema": schema, "before": [], "begun": ""})


def spellings(value: Any, schema: Any) -> Iterable[str]:
    """Texts of a value: as given, and with the properties in the schema's order, which answers have."""
    order: dict[str, int] = {}
    _names(schema, order)
    for ordered in (value, _sorted(value, order)):
        for separators in ((", ", ": "), (",", ":")):
            yield json.dumps(ordered, separators=separators, ensure_ascii=False)


def _names(schema: Any, order: dict[str, int]) -> None:
    for name, inner in schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ():
        if name in ("properties", "required"):
            for one in inner if isinstance(inner, dict | list) else ():
                order.setdefault(str(one), len(order))
        _names(inner, order)


def _sorted(value: Any, order: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [_sorted(one, order) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _sorted(value[name], order) for name in sorted(value, key=lambda name: order.get(name, len(order)))}
