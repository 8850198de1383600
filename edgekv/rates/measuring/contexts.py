"""Contexts of llama.cpp to measure in, closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekv.errors import EdgeKVError, ModelError
from edgekv.llama import Llama
from edgekv.rates.measuring.decoder import Decoder


class ContextError(Exception):
    """A context could not be made; the message goes into the rows."""


@contextmanager
def decoder_of(model: Path, **options: Any) -> Iterator[Decoder]:
    """An empty context with these options of `Llama`. Raises ContextError where it cannot be created, ModelError where the model cannot
    be loaded."""
    try:
        llama = Llama(str(model), verbose=False, **options)
    except ModelError:
        raise
    except EdgeKVError as error:
        raise ContextError(f"does not fit: {error}") from error
    decoder = Decoder(llama)
    try:
        yield decoder
    finally:
        decoder.close()
        llama.close()


@contextmanager
def beside(decoder: Decoder, n_ctx: int, flash_attn: bool = True, takes_states: bool = False) -> Iterator[Decoder]:
    """`Decoder.beside`, closed at the end. Raises ContextError where it cannot be made."""
    try:
        other = decoder.beside(n_ctx, flash_attn, takes_states)
    except EdgeKVError as error:
        raise ContextError(f"does not fit: {error}") from error
    try:
        yield other
    finally:
        other.close()
