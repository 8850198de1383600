"""The settings that decide which rows a sparse step or prompt reads."""

from dataclasses import fields
from typing import Any

from edgekv.config import KvOptions, SelectionOptions

_OF_PROMPTS = ("prompts", "prompt_sample_budget")
_ONLY_SHOWN = ("error_every", "keep_rows")
"""These change reports only. Every other field of SelectionOptions counts, new ones too."""
_BEHIND_RESOLUTIONS = ("target_error", "head_errors")
"""Settings that choose resolutions; the resolutions count instead of them."""


def sampled_with(options: KvOptions) -> tuple[Any, ...]:
    """The settings of a decode step in mode sparse. The policy is one: it pins rows."""
    chosen = options.selection
    values = ((field.name, getattr(chosen, field.name)) for field in fields(SelectionOptions)
              if field.name not in (*_OF_PROMPTS, *_ONLY_SHOWN, *_BEHIND_RESOLUTIONS))
    own = () if (resolutions := chosen.resolutions) is None else (("resolutions", resolutions),)
    return options.placement.policy, options.cache.page_size, *values, *own


def sparse_with(options: KvOptions) -> tuple[Any, ...]:
    """The settings of a sparse prompt and of the steps after it."""
    return *sampled_with(options), *((name, getattr(options.selection, name)) for name in _OF_PROMPTS)
