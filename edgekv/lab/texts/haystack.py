"""Natural text with sentences planted in it."""

import re
from collections.abc import Sequence

from msgspec import Struct

from edgekv.bench.text import Text
from edgekv.common.errors import ConfigError
from edgekv.lab.texts.frame import plain
from edgekv.llama import Llama

MARGIN = 64
"""Tokens at the end without planted sentences."""


class Haystack(Struct, frozen=True):
    tokens: list[int]
    positions: list[int]
    """The first token of each planted sentence."""


def paragraphs(text: Text) -> list[str]:
    """The paragraphs of a text, each with the empty line after it."""
    return [paragraph.strip() + "\n\n" for paragraph in text.content.split("\n\n") if paragraph.strip()]


def sentences(text: Text) -> list[str]:
    """The sentences of a text, each with the white space after it: the finest choice of places."""
    return [sentence for paragraph in paragraphs(text) for sentence in re.findall(r".+?(?:[.!?:]\s+|\Z)", paragraph, re.S)]


def planted(
    llama: Llama, name: str, pieces: Sequence[str], needles: Sequence[str], starts: Sequence[int], n_tokens: int, n_last: int,
    before: Sequence[int] = (),
) -> Haystack:
    """Build `n_tokens` tokens: `before`, then the `pieces` of the text `name`. Each of the `needles` is a paragraph of its own. It
    stands at the first end of a piece from its start (in tokens, ascending) on, or earlier if the next piece would push it
    beyond `n_last` tokens. Raises ConfigError if the text is too short, its pieces too long, or the needles have too many
    tokens."""
    tokens, positions = list(before), list[int]()
    apart = plain(llama, "\n\n")
    todo = [plain(llama, needle + "\n\n") for needle in needles]
    inside = False  # inside a paragraph
    for text in pieces:
        piece = plain(llama, text)
        while todo:
            too_late = len(tokens) + len(piece) + len(apart) + sum(map(len, todo)) > n_last
            if len(tokens) < starts[len(positions)] and not too_late:
                break
            tokens += apart if inside else []
            inside = False
            positions.append(len(tokens))
            tokens += todo.pop(0)
        if len(tokens) >= n_tokens:
            break
        tokens += piece
        inside = not text.endswith("\n\n")
    if todo or len(tokens) < n_tokens or needles and positions[-1] + len(plain(llama, needles[-1])) > n_last:
        raise ConfigError(f"{name} has too little text, or too few paragraphs, for {len(needles)} planted sentences in {n_last} tokens; "
                          "give a longer one, with empty lines between its paragraphs")
    return Haystack(tokens[:n_tokens], positions)
