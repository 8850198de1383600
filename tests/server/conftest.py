"""A tiny model whose rows tests compare to the bit."""

from pathlib import Path

import pytest


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_head=6, dtype="f32")
