"""The KV options of one context, from arguments and EDGEKV_* variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypeVar

from edgekv.amounts import SWITCH, parse_bytes, parse_tokens, size
from edgekv.errors import ConfigError
from edgekv.vocab import PAGE_TOKENS, CacheType, DeviceKind, KvMode, PromptReading, SketchKind, Split

E = TypeVar("E", bound=Enum)

AUTO_DEVICE = "auto"
_MOST_RESOLUTION = 1e9  # everything that attention in single precision can tell from nothing
DEVICES = (AUTO_DEVICE, DeviceKind.HOST.value, DeviceKind.CUDA.value)
"""What a person can ask for; the emulated device is for tests and can be had besides."""

AUTO_ARENA = 0.2
"""Of the pages, what an automatic arena in host memory has slots for."""


@dataclass(frozen=True)
class Attend:
    """What a token attends in mode sparse without sketches: a share of the visible pages, or a number of tokens."""

    share: float = 0.125
    tokens: int = 0
    """Counts instead of the share where it is not 0."""

    @classmethod
    def parse(cls, value: Attend | str | float) -> Attend:
        """ "12.5%" is a share, "1024" a number of tokens. Raises ConfigError."""
        if isinstance(value, Attend):
            return value
        text = str(value).strip()
        try:
            if text.endswith("%") and 0 < float(text[:-1]) <= 100:
                return cls(share=float(text[:-1]) / 100)
        except ValueError:
            pass
        if n_tokens := parse_tokens(text):
            return cls(tokens=n_tokens)
        raise ConfigError(f"what is attended is {text!r}; it must be a share of the context such as 12.5%, or a number of tokens")

    def pages(self, n_visible: int, page_tokens: int) -> int:
        """Of `n_visible` pages, rounded as native selection rounds."""
        return min(n_visible, -(-self.tokens // page_tokens) if self.tokens else int(self.share * n_visible + 0.5))

    def __str__(self) -> str:
        return f"{self.tokens}" if self.tokens else f"{100 * self.share:g}%"


@dataclass(frozen=True)
class Keep:
    """The bound of mode evict: a number of tokens, or of bytes of K and V together."""

    tokens: int = 4096
    bytes: int = 0
    """Counts instead of the tokens where it is not 0, until a model says how many tokens that are."""

    @classmethod
    def parse(cls, value: Keep | str | int) -> Keep:
        """ "4096" is a number of tokens, "64MiB" (with a unit) of bytes. Raises ConfigError."""
        if isinstance(value, Keep):
            return value
        text = str(value).strip()
        if n_tokens := parse_tokens(text):
            return cls(tokens=n_tokens)
        if text[:1].isdigit() and not text.isdigit():
            n_bytes = parse_bytes(text, "what is kept")
            if n_bytes:
                return cls(tokens=0, bytes=n_bytes)
        raise ConfigError(f"what is kept is {text!r}; it must be a number of tokens such as 4096, or bytes with their unit such as 64MiB")

    def __str__(self) -> str:
        return f"{self.bytes}B" if self.bytes else f"{self.tokens}"


@dataclass(frozen=True)
class KvOptions:
    """How a context's KV cache is kept and attended."""

    mode: KvMode = KvMode.EXACT
    page_tokens: int = PAGE_TOKENS
    observe: bool = True
    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    resolution: float = 2000.0
    """Mode sparse: a token with more than 1/resolution of a head's estimated attention is read for certain; the others are read by
    chance, in proportion to their estimate, and weigh what they stand for."""
    sketch: SketchKind = SketchKind.B3
    prompts: PromptReading = PromptReading.EXACT
    """Mode sparse with sketches: how batches of more than 16 tokens attend; not on a GPU."""
    prompt_resolution: float = 125.0
    """With sparse prompts: up to 160 tokens at a time attend a block of 64 cells for certain where it has more than 1/prompt_resolution
    of their estimated attention, as a root mean square; they attend the others by chance, and weigh them by what they stand for."""
    attend: Attend = Attend()
    """Mode sparse without sketches: the pages that each head attends."""
    exact_tokens: int = 768
    """Mode sparse: a context of at most so many cells is attended whole."""
    recent_tokens: int = 64
    """The newest tokens, always read."""
    sink_tokens: int = 16
    """The first tokens, always read."""
    error_every: int = 8
    """The error of a head's output is estimated for one in so many tokens, the heads in turn; 0: never."""
    keep_rows: bool = False
    """What the last step read can be asked for (`Runtime.last_rows`); not on a GPU."""
    observe_prompt: bool = True
    """In modes sparse and evict policies see what the last 16 tokens of each batch of a prompt attend to; not on a GPU."""
    keep: Keep = Keep()
    """Mode evict: what is kept. A context created in this mode has cells for no more."""
    split: Split = Split.POOLED
    """Mode evict: how that is divided over layers and heads."""
    policy: str = "ema+anchor+recent"
    prefetch: str = "none"
    kv_budget: int | None = None
    """Bytes of the arena in host memory; 0: none, None: room for AUTO_ARENA of the pages. On a GPU `kv_vram` counts instead."""
    device: str = AUTO_DEVICE
    """Where attention runs: one of DEVICES. auto: a GPU where there is one that can be used."""
    kv_vram: int | None = None
    """Bytes of GPU memory for everything of ours: sketches, tables, what prompts are staged in, arena. None: what is free, less a
    margin."""
    plan_every: int = 32
    """Decoded ubatches between two plans of what moves. The policy runs after so many, at most 16: what they attended adds up meanwhile."""

    def __post_init__(self) -> None:
        for name, kind, noun in (("mode", KvMode, "KV mode"), ("type_k", CacheType, "K cache type"),
                                 ("type_v", CacheType, "V cache type"), ("split", Split, "budget split"),
                                 ("sketch", SketchKind, "sketch"), ("prompts", PromptReading, "way of reading prompts")):
            object.__setattr__(self, name, choice(kind, getattr(self, name), noun))
        object.__setattr__(self, "attend", Attend.parse(self.attend))
        object.__setattr__(self, "keep", Keep.parse(self.keep))
        object.__setattr__(self, "resolution", parse_resolution(self.resolution))
        object.__setattr__(self, "prompt_resolution", parse_resolution(self.prompt_resolution, "prompt_resolution"))
        for name, least in (("exact_tokens", 0), ("recent_tokens", 0), ("sink_tokens", 0), ("error_every", 0), ("plan_every", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a whole number from {least}")
        if self.kv_budget is not None and (not isinstance(self.kv_budget, int) or self.kv_budget < 0):
            raise ConfigError(f"the KV budget is {self.kv_budget!r}; it must be a number of bytes, 0 for none, or auto")
        if self.kv_vram is not None and (not isinstance(self.kv_vram, int) or self.kv_vram < 1):
            raise ConfigError(f"the KV budget in GPU memory is {self.kv_vram!r}; it must be a number of bytes, or auto; "
                              "use --device cpu to run without a GPU")
        if self.mode is KvMode.EVICT and self.keep.tokens and self.keep.tokens < self.page_tokens:
            raise ConfigError(f"{self.keep.tokens} tokens are less than one page; keep at least {self.page_tokens}")
        object.__setattr__(self, "device", str(getattr(self.device, "value", self.device)))
        if self.device not in (*DEVICES, DeviceKind.EMULATED.value):
            raise ConfigError(f"there is no device {self.device!r}; use one of: {', '.join(DEVICES)}")
        if not isinstance(self.page_tokens, int) or self.page_tokens < 16 or self.page_tokens % 16 or self.page_tokens > 4096:
            raise ConfigError(f"page_tokens is {self.page_tokens!r}; it must be a multiple of 16 from 16 to 4096")

    @property
    def keep_tokens(self) -> int:
        """Tokens that mode evict keeps. Raises ConfigError where bytes were given and no model has said how many tokens they hold."""
        if self.keep.bytes:
            if self.mode is KvMode.EVICT:
                raise ConfigError(f"convert {size(self.keep.bytes)} to tokens first; how many that are depends on the model")
            return 0
        return self.keep.tokens

    def check_effect(self, named: Collection[str], spelled: Callable[[str], str] = str) -> None:
        """ConfigError where one of the fields `named` does nothing in mode sparse because of another; `spelled`: what a person calls
        it."""
        if self.mode is not KvMode.SPARSE:
            return
        attend, resolution, sketch, prompts = (spelled(name) for name in ("attend", "resolution", "sketch", "prompts"))
        if "attend" in named and self.sketch is not SketchKind.NONE:
            raise ConfigError(f"{attend} works without sketches only, and the sketch is {self.sketch.value}; "
                              f"use {resolution}, or {sketch} none")
        if "resolution" in named and self.sketch is SketchKind.NONE:
            raise ConfigError(f"{resolution} needs sketches, and the sketch is none; use {attend}, or {sketch} "
                              f"{SketchKind.B3.value}")

        if self.prompts is PromptReading.SPARSE and self.sketch is SketchKind.NONE:
            raise ConfigError(f"{prompts} sparse needs sketches, and the sketch is none; use {sketch} {SketchKind.B3.value}, "
                              f"or {prompts} exact")

    @classmethod
    def from_env(cls, **overrides) -> KvOptions:
        """Defaults, then the EDGEKV_* variables of `_VARIABLES`, then every override that is not None."""
        values: dict = {}
        for name, variable, convert in _VARIABLES:
            if overrides.get(name) is None and (text := os.environ.get(variable)):
                values[name] = convert(text, variable)
        values.update({name: value for name, value in overrides.items() if value is not None})
        if unknown := set(values) - {field.name for field in fields(cls)}:
            raise ConfigError(f"there is no KV option {min(unknown)!r}; the options are: "
                              f"{', '.join(field.name for field in fields(cls))}")
        return cls(**values)

    def with_(self, **changes) -> KvOptions:
        return replace(self, **changes)


def choice(kind: type[E], value: E | str, noun: str) -> E:
    """`value` as a member of `kind`; a ConfigError lists what is allowed."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"there is no {noun} {value!r}; use one of: {', '.join(str(member.value) for member in kind)}") from None


def _integer(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{variable}={text} is not a whole number") from None


def _boolean(text: str, variable: str) -> bool:
    try:
        return SWITCH[text.lower()]
    except KeyError:
        raise ConfigError(f"{variable}={text} is neither on nor off") from None


def _text(text: str, variable: str) -> str:
    return text


def parse_resolution(value: str | float, name: str = "resolution") -> float:
    """A number of at least 1. Raises ConfigError."""
    try:
        resolution = float(value)
        if 1 <= resolution <= _MOST_RESOLUTION:
            return resolution
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"the {name} is {value!r}; it must be a number from 1 to {_MOST_RESOLUTION:g}, such as {getattr(KvOptions, name):g}")


def _resolution(text: str, variable: str) -> float:
    return parse_resolution(text)


def _bytes(text: str, variable: str) -> int | None:
    return parse_bytes(text, variable)


_VARIABLES = (
    ("mode", "EDGEKV_KV", _text),
    ("page_tokens", "EDGEKV_PAGE_TOKENS", _integer),
    ("observe", "EDGEKV_OBSERVE", _boolean),
    ("type_k", "EDGEKV_TYPE_K", _text),
    ("type_v", "EDGEKV_TYPE_V", _text),
    ("resolution", "EDGEKV_RESOLUTION", _resolution),
    ("sketch", "EDGEKV_SKETCH", _text),
    ("prompts", "EDGEKV_KV_PROMPTS", _text),
    ("attend", "EDGEKV_ATTEND", _text),
    ("split", "EDGEKV_SPLIT", _text),
    ("observe_prompt", "EDGEKV_OBSERVE_PROMPT", _boolean),
    ("keep", "EDGEKV_KEEP", _text),
    ("policy", "EDGEKV_POLICY", _text),
    ("prefetch", "EDGEKV_PREFETCH", _text),
    ("kv_budget", "EDGEKV_KV_BUDGET", _bytes),
    ("kv_vram", "EDGEKV_KV_VRAM", _bytes),
    ("device", "EDGEKV_DEVICE", _text),
)
