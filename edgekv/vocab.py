"""The words that several layers share, each with one meaning."""

from __future__ import annotations

import enum

PAGE_TOKENS = 16
"""Cells per page: the unit of score, residency and migration."""

MAX_QUERY_TOKENS = 16
"""Largest ubatch, in tokens per stream, that the decode attention serves; longer ones run on the stock nodes."""


class KvMode(str, enum.Enum):
    """What each step attends, and what it promises."""

    EXACT = "exact"
    OFF = "off"

    @property
    def description(self) -> str:
        return _MODE_DESCRIPTIONS[self]


_MODE_DESCRIPTIONS = {
    KvMode.EXACT: "every visible page each step, in our kernel: the answers of stock llama.cpp, faster",
    KvMode.OFF: "stock llama.cpp attention",
}


class CacheType(str, enum.Enum):
    """Element type of the K or V cache."""

    F16 = "f16"
    Q8_0 = "q8_0"

    @property
    def ggml_type(self) -> int:
        """The value of `enum ggml_type`."""
        return {"f16": 1, "q8_0": 8}[self.value]
