"""Texts are played through a form's masks, token by token, as the server's sampler does."""

import ctypes
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from support.stub import write_stub

from edgekv._native.form_callbacks import Vocabulary
from edgekv.common.errors import ConfigError
from edgekv.server.answer_forms import AnswerForms

import llama_cpp


class Masks:
    """Forms over a vocabulary of bytes: each text is one series of tokens."""

    def __init__(self, folder: Path):
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(write_stub(folder / "bytes.gguf", "")).encode(), parameters)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        n = llama_cpp.llama_vocab_n_tokens(vocab)
        self._end = llama_cpp.llama_vocab_eos(vocab)
        self._token_of = {self._piece(vocab, token): token for token in range(256)}
        pieces = [self._piece(vocab, token) if token < 256 else b"" for token in range(n)]
        self._allowed = np.zeros((n + 31) // 32, np.uint32)
        self._forms = AnswerForms()
        tokenize = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
        self._forms.read(Vocabulary(vocab, tokenize, pieces, frozenset(range(256, n)), [self._end]))

    @staticmethod
    def _piece(vocab: Any, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(8)
        length = llama_cpp.llama_token_to_piece(vocab, token, buffer, 8, 0, True)
        return buffer.raw[:length]

    def refusal(self, schema: Any) -> str:
        """Why answers cannot be held to it; empty: they can."""
        try:
            self._forms.check(form_of(schema))
        except ConfigError as error:
            return str(error)
        return ""

    def take(self, schema: Any, text: str) -> bool:
        """Whether an answer can be `text`, and end there. Raises ConfigError where the form cannot be followed."""
        self._forms.begin(1, form_of(schema))
        self._follow(None)
        for token in [*(self._token_of[bytes([byte])] for byte in text.encode()), self._end]:
            if not self._allowed[token // 32] >> (token % 32) & 1:
                return False
            if token != self._end:
                self._follow(token)
        return True

    def _follow(self, token: int | None) -> None:
        self._forms.follow(1, token, self._allowed.ctypes.data, self._allowed.nbytes)


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
