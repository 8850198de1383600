"""The frame of a model's chat template around a text, a question about it, and the beginning of the answer."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from edgekv.bench.text import chat_template, check_beginnings
from edgekv.common.errors import ModelError
from edgekv.llama import Llama

MARK = "\ue000"
"""Placeholder for messages while the template is rendered: a private character that no template contains."""


class Frame(Struct, frozen=True):
    """Tokens around messages: `before` the user's turn, `after` it up to the answer, and `between` an answer and the user's next
    turn."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]

    @classmethod
    def of(cls, llama: Llama) -> Frame:
        """The frame of the model's chat template, or of plain words for a model without one. Raises ModelError if the template changes
        messages, or if the tokens have a superfluous beginning of text."""
        chat = chat_template(llama, add_generation_prompt=True)
        if chat is None:
            empty = llama.tokenize(b"")
            check_beginnings(llama, empty, "an empty text")
            return cls(tuple(empty), tuple(plain(llama, "\nAnswer: ")), tuple(plain(llama, "\n\nQuestion: ")))
        said: list[Any] = [{"role": role, "content": MARK} for role in ("user", "assistant", "user")]
        first, turns = chat(messages=said[:1]), chat(messages=said).prompt.split(MARK)
        if len(turns) != 4 or first.prompt.count(MARK) != 1:
            raise ModelError("the chat template of this model changes what is said, so questions cannot be asked in it; use another model")
        before, after = first.prompt.split(MARK)
        parts = [(part, llama.tokenize(part.encode(), add_bos=add_bos, special=True))
                 for part, add_bos in ((before, not first.added_special), (after, False), (turns[2], False))]
        for part, tokens in parts:
            check_beginnings(llama, tokens, "the chat template", part)
        return cls(*(tuple(tokens) for _, tokens in parts))


def plain(llama: Llama, text: str) -> list[int]:
    """Text as tokens, without control tokens even if it spells one. Raises ModelError if a beginning of text is among them."""
    tokens = llama.tokenize(text.encode(), add_bos=False)
    check_beginnings(llama, tokens, repr(text[:40]), "")
    return tokens
