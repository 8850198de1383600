"""`install`: programs that make a `llama_cpp.Llama` themselves get ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from edgekv.common.enums import KvMode
from edgekv.config import option_names
from edgekv.llama import Llama  # first: it puts llama_cpp on our libraries
from edgekv.llama_keywords import known

import llama_cpp

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgekv.llama_keywords import LlamaKeywords

log = logging.getLogger("edgekv")


def install(kv: KvMode | str | None = None, *, flash_attn: bool = True, **options: Unpack[LlamaKeywords]) -> None:
    """From now on `llama_cpp.Llama` is `edgekv.Llama` with these options, also for packages that are imported already, unless they took the class
    itself with `from llama_cpp import Llama`. What they name themselves counts before `options`, but not before `flash_attn`: most say that it is
    off, and then no layer could be served. Keywords that llama_cpp.Llama takes and ignores are left out, and the log says so. A second call
    replaces the first. Options are checked when a model is opened."""
    given: dict[str, Any] = {**options} if kv is None else {**options, "kv": kv}

    class Installed(Llama):
        def __init__(self, model_path: str, **named: Any) -> None:
            if none := [name for name in named if not known(name)]:  # packages name what older ones had
                log.info("%s: llama_cpp.Llama has no such keywords, and ignores them", ", ".join(none))
            own = {name: value for name, value in named.items() if name not in none and (value is not None or name not in given)}
            left_out = ("kv", *option_names()) if named.get("kv_options") is not None else ()  # which a copy has
            ours = {name: value for name, value in given.items() if name not in left_out}
            super().__init__(model_path, **{**ours, **own, "flash_attn": flash_attn})

    Installed.__name__ = Installed.__qualname__ = Llama.__name__
    Installed.__module__ = llama_cpp.__name__  # where pickle finds it
    Installed.__doc__ = Llama.__doc__
    llama_cpp.Llama = llama_cpp.llama.Llama = Installed  # type: ignore[misc]
