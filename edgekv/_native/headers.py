"""Models and contexts as llama.cpp makes them of a file's header alone. llama.cpp ends the process for some bad files: `inspecting` calls this in
one of its own."""

import json
import os
from pathlib import Path
from typing import Any

from edgekv._native import core
from edgekv._native._core import ffi, lib
from edgekv._native.core import _check

_STATES = {number: name.removeprefix("EDGEKV_LAYER_").lower() for number, name in ffi.typeof("edgekv_layer_state").elements.items()}

CONTENT = ("all", "window", "index", "compressed", "state")
"""enum llama_edgekv_content, by number."""


class OpenHeader:
    """A model without its weights."""

    def __init__(self, path: Path):
        """Raises NativeError, in llama.cpp's words, if llama.cpp refuses the file."""
        core.init()
        out = ffi.new("struct llama_model **")
        _check(lib.edgekv_open_header(os.fsencode(path), out))
        self._model = ffi.gc(out[0], lib.llama_model_free)

    def inspect(self, n_ctx: int, n_seq: int, unified: bool, n_ubatch: int, type_k: int, type_v: int) -> dict[str, Any]:
        """What llama.cpp makes of a context of `n_ctx` tokens of all sequences together; types are numbers of `enum ggml_type`. Raises NativeError,
        in llama.cpp's words, if it makes none."""
        out = ffi.new("const char **")
        size = ffi.new("edgekv_context_size *", (n_ctx, n_seq, unified, n_ubatch, type_k, type_v))
        _check(lib.edgekv_inspect(self._model, size, out))
        found: dict[str, Any] = json.loads(ffi.string(out[0]))
        found["layers"] = [(_STATES[state], ffi.string(lib.edgekv_layer_state_text(state)).decode(), *heads) for _, state, *heads in found["layers"]]
        found["caches"] = [(CONTENT[content], *rows) for content, *rows in found["caches"]]
        return found
