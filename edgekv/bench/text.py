"""The texts that benchmarks read: natural ones, without a download."""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path

from edgekv.errors import ConfigError


@dataclass(frozen=True)
class Text:
    name: str
    content: str


def standard_text() -> Text:
    """The Python language reference as the standard library carries it for `help()`: several hundred KB of prose."""
    topics = pydoc_data.topics.topics
    return Text("pydoc-topics", "\n\n".join(topics[name] for name in sorted(topics)))


def read_text(path: Path) -> Text:
    """Raises ConfigError if the file cannot be read or is not UTF-8 text."""
    try:
        return Text(path.name, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give a text file to read from") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
