"""The size of llama.cpp's work buffers, from llama.cpp itself: it reserves the graph of the longest ubatch without allocating anything."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from edgekv.common.errors import ModelError
from edgekv.config import KvOptions
from edgekv.measure.decoder import Decoder  # noqa: F401 - first: it puts llama_cpp on our libraries
from edgekv.models import geometry
from edgekv.models.geometry import ModelFile
from edgekv.planning.allocations import UBATCH_TOKENS, Slots
from edgekv.planning.fit import cells

import llama_cpp

_SIZE = re.compile(r"(?:compute|output) buffer size =\s*([\d.]+) MiB")
_NO_MMAP = 0


def reserved_compute(model: ModelFile, kv: KvOptions, n_ctx: int, slots: Slots) -> int:
    """Bytes for a context on the processor, as `edgekv serve` opens it. The header is enough. Raises ModelError if llama.cpp
    cannot read the header."""
    heard = _Heard()
    upstream, printed = (logging.getLogger(name) for name in ("edgekv.llama.cpp", "llama-cpp-python"))
    levels = upstream.level, printed.level
    upstream.addHandler(heard)
    upstream.setLevel(logging.INFO)
    printed.setLevel(logging.ERROR)  # or it would go to standard error too
    try:
        with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
            _reserve(_with_holes(model, Path(folder)), kv, n_ctx, slots, heard.lines)
    finally:
        upstream.removeHandler(heard)
        upstream.setLevel(levels[0])
        printed.setLevel(levels[1])
    sizes = [float(size) for line in heard.lines for size in _SIZE.findall(line)]
    if not sizes:
        raise ModelError("llama.cpp reserved its work buffers and did not say how large they are")
    return round(sum(sizes) * (1 << 20))


class _Heard(logging.Handler):
    """llama.cpp's messages, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _with_holes(model: ModelFile, folder: Path) -> Path:
    """The file itself if it is whole; otherwise a copy of its header with a hole for its weights. llama.cpp refuses a file that is
    too short, and reads no weight here."""
    path, end = model.geometry.path, max(tensor.end for tensor in model.tensors)
    if path.stat().st_size >= end or model.header.value("split.count", 0):
        return path
    copy = folder / "header.gguf"
    with path.open("rb") as source, copy.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.truncate(end)
    return copy


def _reserve(path: Path, kv: KvOptions, n_ctx: int, slots: Slots, lines: list[str]) -> None:
    model_params = llama_cpp.llama_model_default_params()
    model_params.no_alloc, model_params.load_mode, model_params.n_gpu_layers = True, _NO_MMAP, 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        raise ModelError(f"llama.cpp cannot read the header of {path}: {_complaint(lines)}")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = slots.n * cells(geometry(path), n_ctx, kv), slots.n, slots.unified
    params.n_batch, params.n_ubatch, params.n_outputs_max = UBATCH_TOKENS, UBATCH_TOKENS, slots.n
    params.type_k, params.type_v = kv.cache.type_k.ggml_type, kv.cache.type_v.ggml_type
    params.flash_attn_type, params.swa_full = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, False
    context = llama_cpp.llama_init_from_model(model, params)
    if context:
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    if not context:
        raise ModelError(f"llama.cpp cannot reserve a context of {n_ctx:,} tokens: {_complaint(lines)}")


def _complaint(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "it gives no reason")
