"""The tokens of each slot's conversation, which the page shows as text."""

import numpy as np

from edgekv._native.http_server import Request
from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv.common.enums import MissReason


class SlotTokens:
    """For the namespace that asked for them, and no other. shown False: for nobody. Any thread may ask; the decoding thread writes."""

    def __init__(self, shown: bool):
        self._shown = shown
        self._of: dict[int, tuple[str, np.ndarray]] = {}

    def note(self, held: SequenceTokens) -> None:
        """A prompt begins, or tokens were computed. Where media have positions of their own, tokens cannot be told by position."""
        if self._shown:
            self._of[held.seq_id] = held.space, held.tokens.copy() if held.at is None else held.tokens[:0].copy()

    def told(self, request: Request) -> None:
        """What is not kept is not shown."""
        if request.missed is not None and request.missed[0] is MissReason.DISABLED:
            self._of.pop(request.slot, None)

    def forget(self, space: str) -> None:
        """A client removed its kept prompts."""
        for slot, (of, _) in list(self._of.items()):
            if of == space:
                self._of.pop(slot, None)

    def of(self, space: str, slot: int, first: int, n: int) -> list[int]:
        """Tokens [first, first + n); none where the slot's conversation is another namespace's, or unknown."""
        whose, tokens = self._of.get(slot, ("", ()))
        return [int(token) for token in tokens[first : first + n] if token >= 0] if whose == space else []
