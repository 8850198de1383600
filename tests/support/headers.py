"""Model files with other keys, and what llama.cpp allocates for them."""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
from support.adapters import finish

from edgekv import llama as _first  # noqa: F401 - it takes llama.cpp's lines into `logging`

import llama_cpp

MIB = 1 << 20
PARTS = {"weights": ("model",), "KV home": ("KV",), "recurrent state": ("RS", "state"), "compute": ("compute", "output")}
"""The plan's parts, and llama.cpp's names of the buffers that they are in."""
_BUFFER = re.compile(r"(\w+) buffer size = +([\d.]+) MiB")


def with_keys(source: Path, target: Path, keys: Mapping[str, Any], tensors: Sequence[gguf.ReaderTensor] | None = None) -> Path:
    """A copy of a model with other values of its architecture's keys, or of those named in full; None: without the key. tensors: those of one part."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    given = {name if name.startswith(("split.", "general.", "tokenizer.")) else f"{arch}.{name}": value for name, value in keys.items()}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in given:
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1] if is_array else None)
    for name, value in given.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif name == "general.alignment":
            writer.add_custom_alignment(value)
        elif value is not None:
            kind = {"split.count": gguf.GGUFValueType.UINT16, "split.no": gguf.GGUFValueType.UINT16, "split.tensors.count": gguf.GGUFValueType.INT32}
            writer.add_key_value(name, value, kind.get(name, gguf.GGUFValueType.UINT32))
    for tensor in reader.tensors if tensors is None else tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return finish(writer, target)


def allocated(path: Path, n_ctx: int, n_seq: int = 1, unified: bool = False, cache_type: int = 1) -> dict[str, tuple[float, float]] | None:
    """MiB that llama.cpp logs when it allocates what each of PARTS names, and by how much its rounding may be off. n_ctx: tokens of each sequence;
    cache_type: enum ggml_type. None: it refuses the context."""
    with _heard() as lines:
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified, params.n_ubatch, params.n_outputs_max = n_ctx * n_seq, n_seq, unified, 512, n_seq
        params.type_k = params.type_v = cache_type
        params.flash_attn_type, params.swa_full = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, False
        context = llama_cpp.llama_init_from_model(model, params)
    if context:
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    sizes = [(name, float(size)) for line in lines for name, size in _BUFFER.findall(line)]
    return {part: (sum(one), 0.005 * len(one)) for part, names in PARTS.items() for one in [[n for name, n in sizes if name in names]]} if context else None


@contextmanager
def _heard():
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("edgekv.llama.cpp")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
