"""What `Llama` takes, as type checkers and editors see it; all else is refused. `tests/runtime/test_drop_in.py` compares it with what is read."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from edgekv.common.errors import ConfigError
from edgekv.common.machine import MOST_THREADS
from edgekv.common.units import MOST_TOKENS

if TYPE_CHECKING:
    from edgekv.common.enums import KvMode, PromptReading, Split
    from edgekv.config import HeadErrors, Keep, LayerTypes


class KvKeywords(TypedDict, total=False):
    """Each option of KvOptions by its own name; texts are read as on the command line."""

    mode: KvMode | str
    page_size: int
    kv_bytes: int | str | None
    layer_types: LayerTypes | None
    kv_dir: Path | str | None
    sample_budget: float | str
    target_error: float | str | None
    head_errors: HeadErrors | None
    prompts: PromptReading | str
    prompt_sample_budget: float
    exact_tokens: int
    recent_tokens: int
    sink_tokens: int
    error_every: int
    keep_rows: bool
    evict_to: Keep | str | int
    split: Split | str
    positions: int | None
    sample: bool
    observe: bool
    observe_prompt: bool
    policy: str
    prefetch: str
    plan_every: int
    attention_device: str
    kv_budget: int | str | None
    kv_vram: int | str | None


class LlamaKeywords(KvKeywords, total=False):
    """These, and those of llama_cpp.Llama that have the same meaning here."""

    n_gpu_layers: int
    split_mode: int
    main_gpu: int
    tensor_split: list[float] | None
    vocab_only: bool
    use_mmap: bool
    use_mlock: bool
    kv_overrides: dict[str, bool | int | float | str] | None
    seed: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int | None
    n_threads_batch: int | None
    rope_scaling_type: int | None
    pooling_type: int
    attention_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    logits_all: bool
    embedding: bool
    offload_kqv: bool
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool
    last_n_tokens_size: int
    lora_base: str | None
    lora_scale: float
    lora_path: str | None
    numa: bool | int
    chat_format: str | None
    chat_handler: Any
    draft_model: Any
    tokenizer: Any
    spm_infill: bool
    verbose: bool


_NAMES = (*LlamaKeywords.__annotations__, "kv", "kv_options", "type_k", "type_v", "flash_attn", "weights_from_disk", "report")


def known(name: str) -> bool:
    """Whether `Llama` has this keyword."""
    from edgekv.config.setting_table import OLD_KEYWORDS

    return name in _NAMES or name in OLD_KEYWORDS


def check_names(given: Iterable[str]) -> None:
    """Raise ConfigError for a keyword that `Llama` does not have. llama_cpp.Llama takes any, and ignores it."""
    for name in given:
        if not known(name):
            import difflib

            near = difflib.get_close_matches(name, _NAMES, 1)
            raise ConfigError(f"Llama has no keyword {name!r}; " + (f"did you mean {near[0]!r}?" if near else "leave it out"))


_TOKENS, _THREADS = "tokens", "threads"
_LEAST = {"n_ctx": (_TOKENS, 0), "n_batch": (_TOKENS, 1), "n_ubatch": (_TOKENS, 0), "n_threads": (_THREADS, 0), "n_threads_batch": (_THREADS, 0)}
"""Numbers, and the least of each: 0 is the context that the model was trained for, n_batch, or llama_cpp's own number of threads."""
_MOST = {_TOKENS: MOST_TOKENS, _THREADS: MOST_THREADS}


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a number of tokens or threads that is none, too small or too large."""
    for name in _LEAST.keys() & given:
        value, (noun, least) = given[name], _LEAST[name]
        if value is None and noun == _THREADS:
            continue
        if not hasattr(value, "__index__") or not least <= value <= _MOST[noun]:
            raise ConfigError(f"{name} is {value!r}; it must be a number of {noun} from {least} to {_MOST[noun]:,}")


def signature_of(init: Callable[..., None], base: Callable[..., None]) -> inspect.Signature:
    """The parameters of an `init` that takes keywords, with those of `base` and KvOptions among them, for help() and editors."""
    own = [one for one in inspect.signature(init).parameters.values() if one.kind is not one.VAR_KEYWORD]
    theirs = inspect.signature(base).parameters
    have = {one.name for one in own}
    more = [one.replace(kind=one.KEYWORD_ONLY) for one in theirs.values() if one.name not in have and one.kind is not one.VAR_KEYWORD]
    have |= {one.name for one in more}
    kv: list[Any] = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in KvKeywords.__annotations__ if name not in have]
    return inspect.Signature([*own, *more, *kv])


P = ParamSpec("P")
T = TypeVar("T")


def as_in(stock: Callable[P, T]) -> Callable[[Callable[..., Any]], Callable[P, T]]:
    """A method with the parameters and types of the one that it replaces, for help(), editors and type checkers."""
    return functools.partial(functools.update_wrapper, wrapped=stock, assigned=(), updated=())


_IN_PYTHON = {"ctx": "n_ctx", "threads": "n_threads", "gpu-layers": "n_gpu_layers", "weights-from-disk": "weights_from_disk", "kv": "kv"}
_VALUE = r"(?: (\d[\w.%]*|auto|cpu|cuda|f16|q8_0|q4_0|none|exact|sparse|evict|off)(?![\w-]))?"


def in_python(text: str) -> str:
    """A sentence about options of the command line, in Python's words: --ctx 4096 is n_ctx=4096, --kv-vram 64MiB is kv_vram="64MiB"."""
    from edgekv.config.setting_table import OF_KV

    names = _IN_PYTHON | {setting.name: name for name, setting in OF_KV.items() if name != "mode"}

    def keyword(found: re.Match[str]) -> str:
        name, value = names.get(found[1]), found[2]
        if name is None:
            return found[0]
        return name if value is None else f"{name}={value}" if value.isdigit() else f'{name}="{value}"'

    return re.sub(rf"--([a-z]+(?:-[a-z]+)*){_VALUE}", keyword, text)
