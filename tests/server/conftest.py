"""A tiny model whose rows tests compare to the bit, and clients of a file's server `served`."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_head=6, dtype="f32")


@pytest.fixture(scope="module")
def gpt(served) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(served) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
