"""The budget of a simulation, as commands and scenarios take it."""

from __future__ import annotations

from msgspec import Struct

from edgekv.common.errors import ConfigError
from edgekv.common.units import parse_share, parse_tokens


class Budget(Struct, frozen=True):
    """The hot part of a context: `share` of the visible pages, or `tokens`."""

    share: float = 0.10
    tokens: int = 0
    """Counts instead of the share where it is not 0."""

    @classmethod
    def parse(cls, value: Budget | str | float) -> Budget:
        """ "12.5%" is a share, "1024" a number of tokens. Raises ConfigError."""
        if isinstance(value, Budget):
            return value
        text = str(value).strip()
        try:
            if text.endswith("%") and (share := parse_share(text)):
                return cls(share=share)
        except ConfigError:
            pass
        if n_tokens := parse_tokens(text):
            return cls(tokens=n_tokens)
        raise ConfigError(f"the budget is {text!r}; it must be a share of the context such as 12.5%, or a number of tokens")

    def pages(self, n_visible: int, page_tokens: int) -> int:
        """The number of hot pages of `n_visible`."""
        return min(n_visible, -(-self.tokens // page_tokens) if self.tokens else int(self.share * n_visible + 0.5))
