"""The settings that decide which tokens are read where not all are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from edgekv.config import KvOptions, SelectionOptions

_OF_PROMPTS = ("prompts", "prompt_resolution")
_ONLY_SHOWN = ("error_every", "keep_rows")
"""These change reports only, and no row. Every other field of SelectionOptions counts, new ones too."""


def sampled_with(options: KvOptions) -> tuple[Any, ...]:
    """Of a decode step in mode sparse. The policy counts: it pins rows, and without sketches it scores the pages that are attended."""
    chosen = options.selection
    values = ((field.name, getattr(chosen, field.name)) for field in fields(SelectionOptions) if field.name not in (*_OF_PROMPTS, *_ONLY_SHOWN))
    return options.placement.policy, options.cache.page_tokens, *values


def sparse_with(options: KvOptions) -> tuple[Any, ...]:
    """Of a sparse prompt, and of what is sampled behind it."""
    return *sampled_with(options), *((name, getattr(options.selection, name)) for name in _OF_PROMPTS)
