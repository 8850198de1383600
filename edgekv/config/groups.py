"""The four groups of KV options. Each defines its options and checks each option by itself."""

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from edgekv.common.enums import PAGE_TOKENS, CacheType, DeviceKind, Kinds, PromptReading, Split
from edgekv.common.errors import ConfigError
from edgekv.common.units import MOST_TOKENS
from edgekv.config.head_errors import DEFAULT_RESOLUTION, HeadErrors, Table
from edgekv.config.layer_types import NEAR_STOCK, LayerTypes
from edgekv.config.values import (
    Keep,
    choice,
    parse_kv_dir,
    parse_sample_budget,
    parse_target_error,
)

AUTO_DEVICE = "auto"
DEVICES = (AUTO_DEVICE, DeviceKind.HOST.value, DeviceKind.CUDA.value)
"""The devices that a person can ask for; tests also have the emulated one."""


@dataclass(frozen=True)
class CacheOptions:
    """The cells of a context, which cannot change once it is created."""

    page_size: int = PAGE_TOKENS
    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    kv_bytes: int | None = None
    """Instead of two types: the most bytes of K and V of a token, in all layers together; NEAR_STOCK (0, "auto"): as few as stay within twice stock's
    own noise. Each layer gets the types that the model bears there, by
    divergences that are measured once (`edgekv.with_layer_types`)."""
    layer_types: LayerTypes | None = field(default=None, repr=False)
    """The types by layer that were chosen for `kv_bytes`; `type_k` and `type_v` are then the coarsest of them."""

    kv_dir: Path | None = None
    """A folder on a disk: K and V lie in a file there, for contexts that are larger than memory. None: in memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_dir", parse_kv_dir(self.kv_dir))
        _choose(self, "type_k", CacheType, "K cache type")
        _choose(self, "type_v", CacheType, "V cache type")
        if self.kv_bytes is not None and (not isinstance(self.kv_bytes, int) or self.kv_bytes < NEAR_STOCK):
            raise ConfigError(f"the bytes of K and V are {self.kv_bytes!r}; they must be a number of bytes a token, or 0 for as few as stay near stock")
        if not isinstance(self.layer_types, LayerTypes | None):
            raise ConfigError(f"layer_types is {self.layer_types!r}; it must be what edgekv.with_layer_types chose, or None")
        if not isinstance(self.page_size, int) or self.page_size < 16 or self.page_size % 16 or self.page_size > 4096:
            raise ConfigError(f"page_size is {self.page_size!r}; it must be a multiple of 16 from 16 to 4096")


    @property
    def lacks_types(self) -> bool:
        """Whether bytes are set without the types that were chosen for them."""
        return self.kv_bytes is not None and self.layer_types is None

    @property
    def is_f16(self) -> bool:
        """Whether K and V are stored as llama.cpp does by itself, and no bytes ask for less."""
        return self.kv_bytes is None and (self.type_k, self.type_v) == (CacheType.F16, CacheType.F16)

    @property
    def kinds(self) -> tuple[Kinds, Kinds]:
        """The names of K's and V's types, of all layers or of each: for `models.Geometry`."""
        if self.layer_types is None:
            return self.type_k.value, self.type_v.value
        return tuple(one.value for one in self.layer_types.k), tuple(one.value for one in self.layer_types.v)

    @property
    def names(self) -> tuple[str, str]:
        """The types of K and of V as a table says them: "q8_0", or a digit for each layer."""
        return (self.type_k.value, self.type_v.value) if self.layer_types is None else self.layer_types.codes

    @property
    def types_text(self) -> str:
        """ "q8_0/q4_0" for K and V, or the types by layer in words."""
        return f"{self.type_k.value}/{self.type_v.value}" if self.layer_types is None else str(self.layer_types)


@dataclass(frozen=True)
class SelectionOptions:
    """The selection of the rows that a token reads in mode sparse, and in mode evict where a sample budget is named (`EvictionOptions.sample`)."""

    sample_budget: float = DEFAULT_RESOLUTION
    """A token with more than 1/sample_budget of a head's estimated attention is read for certain. Others are read by chance, in proportion to
    their estimate; their weights stand for the attention on unread tokens."""
    target_error: float | None = None
    """Instead of a sample budget: the wanted relative error of a head's output, 0.01 or "1%". Each layer and KV head gets a budget of its own
    for it (`resolutions`), by the errors of the model's heads, which are measured once (`edgekv.with_head_errors`)."""
    head_errors: HeadErrors | None = field(default=None, repr=False)
    """The measured errors; `edgekv.Llama` and the server find them themselves."""
    prompts: PromptReading = PromptReading.EXACT
    """How batches of more than 16 tokens attend; not on a GPU."""
    prompt_sample_budget: float = 125.0
    """With sparse prompts: up to 160 tokens together attend a block of 64 cells for certain where it has more than 1/prompt_sample_budget of
    their estimated attention, as a root mean square. They attend other blocks by chance, whose weights stand for the unread blocks."""
    exact_tokens: int = 768
    """Tokens that see at most so many cells read them all."""
    recent_tokens: int = 64
    """The newest tokens, which are always read."""
    sink_tokens: int = 16
    """The first tokens, which are always read."""
    error_every: int = 8
    """One in so many tokens estimates the error of a head's output, the heads in turn; 0: never."""
    keep_rows: bool = False
    """`Runtime.last_rows` can tell what the last step read; not on a GPU."""

    def __post_init__(self) -> None:
        _choose(self, "prompts", PromptReading, "way of reading prompts")
        object.__setattr__(self, "sample_budget", parse_sample_budget(self.sample_budget))
        object.__setattr__(self, "target_error", parse_target_error(self.target_error))
        if not isinstance(self.head_errors, HeadErrors | None):
            raise ConfigError(f"head_errors is {self.head_errors!r}; it must be what edgekv.with_head_errors measured, or None")
        object.__setattr__(self, "prompt_sample_budget", parse_sample_budget(self.prompt_sample_budget, "prompt_sample_budget", such_as=125))
        for name in ("exact_tokens", "recent_tokens", "sink_tokens", "error_every"):
            _at_least(self, name, 0)

    @property
    def resolutions(self) -> Table | None:
        """The sample budget of each KV head of each layer of the model, 0: `sample_budget`; None: the same for all."""
        return None if self.target_error is None or self.head_errors is None else self.head_errors.resolutions_for(self.target_error)

    @property
    def typical_resolution(self) -> float:
        """One sample budget that reads about as many rows as the heads' own do, because rows grow with its square root; `sample_budget` without
        measured errors."""
        own = [one or self.sample_budget for heads in self.resolutions or () for one in heads]
        return (sum(map(math.sqrt, own)) / len(own)) ** 2 if own else self.sample_budget

    @property
    def lacks_head_errors(self) -> bool:
        """Whether an error is set without the measured errors that give its resolutions."""
        return self.target_error is not None and self.head_errors is None

    @property
    def sampled_by(self) -> tuple[str, str]:
        """("sample budget", "2,000") or ("target error", "1 %"): the setting that is in force."""
        return ("sample budget", f"{self.sample_budget:,.15g}") if self.target_error is None else ("target error", f"{100 * self.target_error:.3g} %")


@dataclass(frozen=True)
class EvictionOptions:
    """The tokens that mode evict keeps, and what a token reads of them."""

    evict_to: Keep = Keep()
    """K and V of a context created in mode evict take no more memory than so many tokens do in all layers."""
    split: Split = Split.UNIFORM
    """The division of `evict_to` over layers. The heads of a layer choose together, so that `layer` is as `uniform`."""

    positions: int | None = None
    """Gaps that dropped tokens leave close before a token would be rotated by this position or a later one; None: half way from the cells to
    the trained length."""
    sample: bool = False
    """A sample of what is kept is read, at `SelectionOptions.sample_budget`, and not all of it. KvOptions sets it where a sample budget is named."""

    def __post_init__(self) -> None:
        _choose(self, "split", Split, "budget split")
        if self.positions is not None and (not isinstance(self.positions, int) or not 1 <= self.positions <= MOST_TOKENS):
            raise ConfigError(f"positions is {self.positions!r}; it must be a whole number from 1 to {MOST_TOKENS:,}, or None")
        object.__setattr__(self, "evict_to", Keep.parse(self.evict_to))


@dataclass(frozen=True)
class PlacementOptions:
    """The place of attention and its pages: the observation of policies, the pages that they move, and their memory."""

    observe: bool = True
    """Attention mass is kept, for policies and observers."""
    observe_prompt: bool = True
    """In modes sparse and evict policies see the attention of the last 16 tokens of each batch of a prompt; not on a GPU."""
    policy: str = "ema+anchor+recent"
    prefetch: str = "none"
    plan_every: int = 32
    """Decoded ubatches between two plans. The policy runs after so many ubatches too, but after at most 16; their attention mass adds up."""
    attention_device: str = AUTO_DEVICE
    """One of DEVICES. auto: a GPU where one can be used."""
    kv_budget: int | None = None
    """With a `kv_dir`: bytes for copies of the rows that mode sparse read most lately. On a device: the most bytes of the arena. None: as many as fit."""
    kv_vram: int | None = None
    """Bytes of GPU memory for everything of ours: sketches, tables, staging of prompts, arena. None: all that is free, less a margin."""

    def __post_init__(self) -> None:
        _at_least(self, "plan_every", 1)
        if self.kv_budget is not None and (not isinstance(self.kv_budget, int) or self.kv_budget < 0):
            raise ConfigError(f"the KV budget is {self.kv_budget!r}; it must be a number of bytes, 0 for none, or auto")
        if self.kv_vram is not None and (not isinstance(self.kv_vram, int) or self.kv_vram < 1):
            raise ConfigError(f"the KV budget in GPU memory is {self.kv_vram!r}; it must be a number of bytes, or auto; "
                              "use --attention-device cpu to run without a GPU")
        object.__setattr__(self, "attention_device", str(getattr(self.attention_device, "value", self.attention_device)))
        if self.attention_device not in (*DEVICES, DeviceKind.EMULATED.value):
            raise ConfigError(f"there is no device {self.attention_device!r}; use one of: {', '.join(DEVICES)}")


def _choose(group: object, name: str, kind: type[Enum], noun: str) -> None:
    """Make the option a member of `kind`. Raises ConfigError."""
    object.__setattr__(group, name, choice(kind, getattr(group, name), noun))


def _at_least(group: object, name: str, least: int) -> None:
    value = getattr(group, name)
    if not isinstance(value, int) or not least <= value <= MOST_TOKENS:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {least} to {MOST_TOKENS:,}")
