"""The models of the proof."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgekv.models import synth
from edgekv.proof.steps import HeadShape, Part

N_TRAIN = 160 * 1024
"""Tokens that a small model knows: more than the deepest test."""


@contextmanager
def small_model(shape: HeadShape) -> Iterator[Path]:
    """Two layers of these heads, with F32 weights."""
    with tempfile.TemporaryDirectory() as folder:
        yield synth.write("llama", Path(folder) / "small.gguf", n_layer=2, n_head=shape.n_head, n_head_kv=shape.n_head_kv, head_dim=shape.head_dim,
                          dtype="f32", n_ctx_train=N_TRAIN)


@contextmanager
def model_of(part: Part) -> Iterator[Path]:
    """MODEL, or a small one of the part's heads."""
    if part.model:
        yield Path(part.model)
        return
    with small_model(part.shape) as path:
        yield path
