"""The shape of a model, read from its GGUF metadata without loading it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv.common.enums import Kinds
from edgekv.common.errors import ModelError
from edgekv.models.reader import MetadataReader, TensorInfo, open_gguf
from edgekv.models.recurrent import attending, recurrent_bytes
from edgekv.models.shape_weights import block_of, row_bytes
from edgekv.models.stock_layers import index_dims, index_rows, why_stock

ENCODERS = frozenset({
    "bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert", "modern-bert",
    "gemma-embedding", "llama-embed", "t5encoder",
})
"""Architectures that turn text into vectors and cannot continue it."""

_NO_CHAT = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "fills in a whole text at once, as diffusion models do"),
    **dict.fromkeys(("t5",), "reads with one half and writes with the other"),
    **dict.fromkeys(("wavtokenizer-dec",), "makes sound"),
}
"""Other architectures that cannot continue a text, and why; llama.cpp ends the process where one of them is asked to."""

_NOT_A_MODEL = {
    "adapter": "a LoRA adapter",
    "mmproj": "a multimodal projector",
    "imatrix": "an importance matrix",
}

# llama.cpp's patterns of sliding-window layers, for files that do not list them: (period, which layer of each period attends everything,
# the last or the first).
_SWA_PATTERNS = {
    "gemma2": (2, "last"), "gpt-oss": (2, "last"), "gemma3": (6, "last"), "gemma3n": (5, "last"), "cohere2": (4, "last"),
    "cohere2moe": (4, "first"), "exaone4": (4, "last"), "exaone-moe": (4, "last"), "llama4": (4, "last"), "olmo2": (4, "last"),
    "plamo3": (8, "last"), "afmoe": (4, "last"), "mellum": (4, "last"), "laguna": (4, "first"), "smallthinker": (4, "first"),
}

_N_LAYER_CACHE = {"gemma3n": 20}
"""First layers that have a cache of their own, for files that do not count those without one (llama.cpp: src/models)."""

_MAX_LAYERS = 512  # llama.cpp's own limit


@dataclass(frozen=True)
class Geometry:
    """The shape of a model, as its file gives it. Tuples have one entry for each layer."""

    path: Path
    architecture: str
    name: str | None
    file_type: str  # e.g. "Q4_1", "F16"
    file_bytes: int  # all parts of a split model together
    n_params: int
    tensor_bytes: int
    n_layer: int
    n_embd: int
    n_head: tuple[int, ...]  # 0: a layer without attention (recurrent)
    n_head_kv: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    n_ctx_train: int
    n_vocab: int
    rope_freq_base: float | None  # None: no RoPE
    rope_scaling: str | None  # e.g. "yarn"
    rope_scaling_factor: float | None
    rope_dim: int
    sliding_window: int  # tokens; 0: none
    swa: tuple[bool, ...]  # layers that attend only the window
    mla: bool  # one latent row instead of K and V
    chat_template: bool
    head_dim_swa: int = 0  # of K and V in sliding-window layers, where it is another one
    n_layer_shared: int = 0  # last layers, which have no cache of their own and attend an earlier one's
    index_rows: int = 0  # the most rows that an index, whose keys lie beside the rows, lets a token read; 0: there is no index
    index_dims: tuple[int, ...] = ()  # numbers of an index key, for each layer that keeps such keys; 0 for others, empty if none is known
    stock: str = ""  # why EdgeKV leaves all layers to stock, for their architecture; empty: it does not
    recurrent_bytes: int = 0  # f32 state of recurrent layers and convolutions, for one sequence of any length
    rope_sections: bool = False  # a token has several positions, as those of images have

    @property
    def turns(self) -> bool:
        """Whether keys can turn to other positions, so that positions stay in range in mode evict. The context decides
        (`runtime.cells.Cells.closes_gaps`)."""
        return self.rope_freq_base is not None and not self.rope_sections

    @property
    def n_layer_kv(self) -> int:
        """Layers that have a KV cache."""
        return sum(n > 0 for n in self.n_head_kv)

    def kv_bytes_per_token(self, type_k: Kinds = "f16", type_v: Kinds = "f16") -> int:
        """KV cache bytes of one token over all layers, those with sliding windows and keys of an index included. Types are ggml names, e.g.
        "f16", "q8_0", "q4_0", of all layers or of each."""
        return sum(self.layer_kv_bytes(il, type_k, type_v) for il in range(self.n_layer)) + self._index_bytes(type_k)

    def kv_bytes(self, n_ctx: int, type_k: Kinds = "f16", type_v: Kinds = "f16") -> int:
        """KV cache bytes of one sequence of `n_ctx` tokens; a sliding-window layer keeps only its window."""
        return n_ctx * self._index_bytes(type_k) + sum(
            self.layer_kv_bytes(il, type_k, type_v) * (min(n_ctx, self.sliding_window) if self.swa[il] else n_ctx)
            for il in range(self.n_layer)
        )

    def row_bytes(self, type_k: Kinds, type_v: Kinds) -> int:
        """Bytes of a token in the layers that keep a row of every token, including its keys in an index."""
        return sum(self.layer_kv_bytes(il, type_k, type_v) for il in range(self.n_layer) if not self.swa[il]) + self._index_bytes(type_k)

    def snapshot_bytes(self, type_k: Kinds, type_v: Kinds) -> int:
        """Bytes that a long sequence keeps besides those rows: full windows, and states."""
        windows = sum(self.layer_kv_bytes(il, type_k, type_v) for il in range(self.n_layer) if self.swa[il]) * self.sliding_window
        return windows + self.recurrent_bytes

    def _index_bytes(self, type_k: Kinds) -> int:
        return sum(row_bytes(dim, of_layer(type_k, il)) for il, dim in enumerate(self.index_dims))

    def head_row_bytes(self, type_k: str, type_v: str) -> tuple[int, int]:
        """Bytes of K and of V of one token in one KV head of a layer without a window."""
        return row_bytes(self.head_dim_k, type_k), row_bytes(self.head_dim_v, type_v)

    def not_held(self, type_name: str, value: bool) -> int:
        """A head size, of V where `value`, whose rows are not whole blocks of a type. 0: there is none."""
        dims = (self.head_dim_v if value else self.head_dim_k, self.head_dim_swa)
        return next((dim for dim in dims if dim % block_numbers(type_name)), 0) if self.n_layer_kv else 0

    def holds(self, type_name: str) -> bool:
        """Whether a type can hold both K and V."""
        return not (self.not_held(type_name, False) or self.not_held(type_name, True))

    def layer_kv_bytes(self, il: int, type_k: Kinds, type_v: Kinds) -> int:
        """KV cache bytes of one token in layer `il`."""
        if il >= self.n_layer - self.n_layer_shared:
            return 0
        dims = (self.head_dim_swa,) * 2 if self.swa[il] and self.head_dim_swa else (self.head_dim_k, self.head_dim_v)
        k, v = (row_bytes(self.n_head_kv[il] * dim, of_layer(kind, il)) for dim, kind in zip(dims, (type_k, type_v)))
        return k if self.mla else k + v


def of_layer(kinds: Kinds, il: int) -> str:
    """The type of a layer."""
    return kinds if isinstance(kinds, str) else kinds[il]


def block_numbers(type_name: str) -> int:
    """Numbers that a type stores together; 1: each by itself."""
    return block_of(type_name)[0]


@dataclass(frozen=True)
class ModelFile:
    """An opened model file, or all parts of a split one."""

    geometry: Geometry
    tensors: tuple[TensorInfo, ...]
    header: MetadataReader
    """The header of the first part, which has the metadata."""


def geometry(path: str | Path) -> Geometry:
    """The geometry of a model file. Raises as `open_model`."""
    return open_model(path).geometry


def open_model(path: str | Path, whole: bool = True) -> ModelFile:
    """Read the header of a model that can chat. whole: its tensors must be there too.

    Raises ModelError, with one sentence, if the file is missing, not GGUF, damaged or incomplete, or cannot generate text: a vocabulary
    without weights, an embedding model, an adapter, a projector.
    """
    path = Path(path)
    reader = open_gguf(path, whole)
    readers = [reader, *_other_parts(path, reader, whole)]
    _check_kind(path, reader)
    try:
        return ModelFile(_describe(path, readers), tuple(tensor for part in readers for tensor in part.tensor_infos), reader)
    except ModelError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError):
        raise ModelError(f"{path} is damaged: it does not say what layers, heads and positions its model has") from None


def _describe(path: Path, readers: list[MetadataReader]) -> Geometry:
    reader = readers[0]
    arch = reader.value("general.architecture")

    def get(key: str, default: Any = None) -> Any:
        return reader.value(f"{arch}.{key}", default)

    n_layer, n_embd, n_ctx_train = int(get("block_count")), int(get("embedding_length")), int(get("context_length"))
    if not 0 < n_layer <= _MAX_LAYERS:
        raise ValueError
    n_head = _per_layer(get("attention.head_count", 0), n_layer)
    # Recurrent layers of hybrids have zero KV heads; a model without heads has no attention at all.
    n_head_kv = _per_layer(get("attention.head_count_kv", n_head), n_layer)
    n_head_kv = attending(arch, reader, n_head_kv)
    default_dim = n_embd // max(n_head) if max(n_head) else 0
    head_dim_k = int(get("attention.key_length", default_dim))
    window = _largest(get("attention.sliding_window", 0))
    tensors = [tensor for part in readers for tensor in part.tensor_infos]
    scaling = get("rope.scaling.type")
    has_rope = default_dim > 0 and (get("rope.freq_base") is not None or get("rope.dimension_count") is not None)
    return Geometry(
        path=path,
        architecture=arch,
        name=reader.value("general.name"),
        file_type=_file_type(reader, tensors),
        file_bytes=sum(part.n_bytes for part in readers),
        n_params=sum(tensor.n_elements for tensor in tensors),
        tensor_bytes=sum(tensor.n_bytes for tensor in tensors),
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim_k=head_dim_k,
        head_dim_v=int(get("attention.value_length", default_dim)),
        n_ctx_train=n_ctx_train,
        n_vocab=reader.length("tokenizer.ggml.tokens") or int(get("vocab_size", 0)),
        rope_freq_base=float(get("rope.freq_base", 10000.0)) if has_rope else None,
        rope_scaling=None if scaling == "none" else scaling,
        rope_scaling_factor=get("rope.scaling.factor", get("rope.scale_linear")),
        rope_dim=int(get("rope.dimension_count", head_dim_k)) if has_rope else 0,
        sliding_window=window,
        swa=_swa_layers(arch, get("attention.sliding_window_pattern"), window, n_layer),
        mla=get("attention.key_length_mla") is not None,
        chat_template=reader.value("tokenizer.chat_template") is not None,
        head_dim_swa=int(get("attention.key_length_swa", 0)),
        n_layer_shared=n_layer - _N_LAYER_CACHE[arch] if arch in _N_LAYER_CACHE else int(get("attention.shared_kv_layers", 0)),
        index_rows=index_rows(arch, reader),
        index_dims=index_dims(arch, reader, n_layer),
        stock=why_stock(arch, reader, n_layer),
        recurrent_bytes=recurrent_bytes(arch, reader, n_embd, n_head, n_head_kv),
        rope_sections=get("rope.dimension_sections") is not None,
    )


def _check_kind(path: Path, reader: MetadataReader) -> None:
    kind = _NOT_A_MODEL.get(reader.value("general.type", "model"))
    arch = reader.value("general.architecture")
    if kind is None and arch == "clip":
        kind = _NOT_A_MODEL["mmproj"]
    if kind is not None:
        raise ModelError(f"{path} is {kind}, not a model; give the GGUF file of the model itself")
    if not isinstance(arch, str):
        raise ModelError(f"{path} does not name its architecture (general.architecture); it is not a model llama.cpp can load")
    if not reader.tensor_infos:
        raise ModelError(f"{path} holds only a vocabulary (no weights); give the GGUF file of the whole model")
    if arch in ENCODERS or reader.value(f"{arch}.pooling_type", 0) != 0:
        raise ModelError(f"{path} is an embedding model ({arch}): it makes vectors and cannot chat; give a text-generation model")
    if not reader.value(f"{arch}.attention.causal", True):
        raise ModelError(f"{path} is a {arch} model that attends in both directions and cannot chat; give another model")
    if arch in _NO_CHAT:
        raise ModelError(f"{path} is a {arch} model, which {_NO_CHAT[arch]}; give a text-generation model")


def _other_parts(path: Path, reader: MetadataReader, whole: bool) -> list[MetadataReader]:
    """The other parts of a split model; llama.cpp finds them by the first one's name."""
    n_parts = int(reader.value("split.count", 0) or 0)
    if n_parts <= 1:
        return []
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None:
        raise ModelError(f"{path} is one of {n_parts} parts of a model and must be named *-00001-of-{n_parts:05}.gguf; rename it")
    names = [path.with_name(f"{match[1]}-{i:05}-of-{n_parts:05}.gguf") for i in range(1, n_parts + 1)]
    if int(reader.value("split.no", 0)) != 0:
        raise ModelError(f"{path} is a later part of a split model; give the first one, {names[0]}")
    return [open_gguf(name, whole) for name in names[1:]]


def _per_layer(value: Any, n_layer: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        return (int(value),) * n_layer
    if len(value) < n_layer:
        raise ValueError
    return tuple(int(v) for v in value[:n_layer])


def _largest(value: Any) -> int:
    return max(map(int, value), default=0) if isinstance(value, list) else int(value)


def _swa_layers(arch: str, listed: Any, window: int, n_layer: int) -> tuple[bool, ...]:
    if window == 0:
        return (False,) * n_layer
    if isinstance(listed, list):
        return tuple(bool(v) for v in listed[:n_layer])
    period, full = _SWA_PATTERNS.get(arch, (0, "last"))
    period = int(listed) if listed is not None else period
    if period == 0:  # a window that llama.cpp does not apply to this architecture, e.g. phi3
        return (False,) * n_layer
    return tuple(il % period != (0 if full == "first" else period - 1) for il in range(n_layer))


def _file_type(reader: MetadataReader, tensors: list[TensorInfo]) -> str:
    from edgekv._native.gguf_header import file_types

    said = reader.value("general.file_type")
    if isinstance(said, int) and said in file_types():
        return file_types()[said]
    by_type: dict[str, int] = {}  # not said, or newer than llama.cpp: the type of most weights
    for tensor in tensors:
        by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.n_bytes
    return max(by_type, key=lambda name: by_type[name])
