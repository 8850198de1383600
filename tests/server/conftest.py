"""A tiny model whose rows tests compare to the bit, answers that never end, and clients of a file's server `served`."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.browser import browser as opened

from edgekv.prefix_cache import writer
from edgekv.server import saving


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_head=6, dtype="f32")


@pytest.fixture
def never_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers never end, and pauses do not either."""
    n_tokens = count()
    monkeypatch.setattr(writer, "PAUSE_S", 3600.0)
    monkeypatch.setattr(saving, "answers", lambda: (next(n_tokens), 0.01))


@pytest.fixture(scope="module")
def gpt(served) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(served) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened() as window:
        yield window
