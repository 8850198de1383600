"""The shape of a model: what its GGUF file says, and what llama.cpp makes of it, without its weights."""

import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.common.enums import Kinds
from edgekv.common.errors import ModelError
from edgekv.models.inspector import Asked, Content, inspector, open_inspector, rounded
from edgekv.models.reader import MetadataReader, TensorInfo, open_gguf
from edgekv.models.shape_weights import block_of, row_bytes

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

UBATCH_TOKENS = 512
"""Most prompt tokens that llama.cpp computes at once on the processor."""

_NOT_A_MODEL = {
    "adapter": ("a LoRA adapter", "; `edgekv serve MODEL --lora FILE` takes it"),
    **dict.fromkeys(("mmproj", "clip"), ("a multimodal projector", "; `edgekv serve MODEL --mmproj FILE` takes it")),
    "controlvector": ("a control vector", "; `edgekv serve MODEL --control-vector FILE` takes it"),
    "imatrix": ("an importance matrix", ""),
}
"""Files that go with a model, by `general.type` or architecture, and how."""

class Geometry(Struct, frozen=True):
    """The shape of a model. Names and sizes are its file's; layers, heads, and what each layer keeps are llama.cpp's. Tuples have one entry for each
    layer."""

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
    states: tuple[str, ...]  # "hooked", "window" or "biased": attended by EdgeKV on the processor, the last two whole; else why not
    reasons: tuple[str, ...]  # the same in words
    k_numbers: tuple[int, ...]  # of a row of K in the layer's cache; 0: it has none of its own
    v_numbers: tuple[int, ...]  # 0: rows of K hold V
    chunks: bool  # windows begin at multiples of their size
    ends: tuple[int, ...]  # tokens that end an answer
    head_dim_swa: int = 0  # of K and V in sliding-window layers, where it is another one
    index_rows: int = 0  # the most rows that an index, whose keys lie beside the rows, lets a token read; 0: there is no index
    index_dims: tuple[int, ...] = ()  # numbers of an index key, for each layer that keeps such keys; 0 for others, empty if none does
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

    def kv_bytes(self, n_ctx: int, type_k: Kinds = "f16", type_v: Kinds = "f16", n_sequences: int = 1, unified: bool = False,
                 n_ubatch: int = UBATCH_TOKENS) -> int:
        """KV cache bytes as llama.cpp allocates them on the processor for `n_sequences` of `n_ctx` tokens each, read in ubatches of up to `n_ubatch`
        tokens. unified: they share one cache."""
        n_cells = rounded(n_ctx * (n_sequences if unified else 1))
        found = inspector(self.path).caches(n_cells, Asked(n_sequences, unified, n_ubatch)) if n_cells else ()
        return sum(
            rows.n_streams * rows.n_cells * (row_bytes(rows.k_numbers, of_layer(type_k, rows.il)) + row_bytes(rows.v_numbers, of_layer(type_v, rows.il)))
            for rows in found if rows.content is not Content.STATE
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
        return row_bytes(self.k_numbers[il], of_layer(type_k, il)) + row_bytes(self.v_numbers[il], of_layer(type_v, il))


def of_layer(kinds: Kinds, il: int) -> str:
    """The type of a layer."""
    return kinds if isinstance(kinds, str) else kinds[il]


def block_numbers(type_name: str) -> int:
    """Numbers that a type stores together; 1: each by itself."""
    return block_of(type_name)[0]


class ModelFile(Struct, frozen=True):
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

    n_embd, n_ctx_train = int(get("embedding_length")), int(get("context_length"))
    int(get("block_count"))
    tensors = [tensor for part in readers for tensor in part.tensor_infos]
    made = open_inspector(path, {part.path: max((tensor.end for tensor in part.tensor_infos), default=0) for part in readers}).first()
    layers, own = made.layers, {rows.il: rows for rows in made.caches if rows.content in (Content.ALL, Content.WINDOW)}
    slides = tuple(layer.slides or il in own and own[il].content is Content.WINDOW for il, layer in enumerate(layers))
    attends = [layer.n_head_kv > 0 and layer.state not in ("recurrent", "idle") for layer in layers]
    plain = next((layer for il, layer in enumerate(layers) if attends[il] and not slides[il]), None)
    window = next((layer for il, layer in enumerate(layers) if attends[il] and slides[il]), None)
    of_heads = plain or window or layers[0]
    index = {rows.il: rows.k_numbers for rows in made.caches if rows.content is Content.INDEX}
    scaling = get("rope.scaling.type")
    has_rope = any(layer.n_head for layer in layers) and (get("rope.freq_base") is not None or get("rope.dimension_count") is not None)
    return Geometry(
        path=path,
        architecture=arch,
        name=reader.value("general.name"),
        file_type=_file_type(reader, tensors),
        file_bytes=sum(part.n_bytes for part in readers),
        n_params=sum(tensor.n_elements for tensor in tensors),
        tensor_bytes=sum(tensor.n_bytes for tensor in tensors),
        n_layer=len(layers),
        n_embd=n_embd,
        n_head=tuple(layer.n_head for layer in layers),
        n_head_kv=tuple(layer.n_head_kv * attends[il] for il, layer in enumerate(layers)),
        head_dim_k=of_heads.head_dim_k,
        head_dim_v=of_heads.head_dim_v,
        n_ctx_train=n_ctx_train,
        n_vocab=made.n_vocab,
        rope_freq_base=float(get("rope.freq_base", 10000.0)) if has_rope else None,
        rope_scaling=None if scaling == "none" else scaling,
        rope_scaling_factor=get("rope.scaling.factor", get("rope.scale_linear")),
        rope_dim=int(get("rope.dimension_count", of_heads.head_dim_k)) if has_rope else 0,
        sliding_window=made.n_window if any(slides) else 0,
        swa=slides,
        mla=made.mla,
        chat_template=made.template,
        states=tuple(layer.state for layer in layers),
        reasons=tuple(layer.reason for layer in layers),
        k_numbers=tuple(own[il].k_numbers if il in own else 0 for il in range(len(layers))),
        v_numbers=tuple(own[il].v_numbers if il in own else 0 for il in range(len(layers))),
        chunks=made.chunks,
        ends=made.ends,
        head_dim_swa=window.head_dim_k if plain and window and window.head_dim_k != plain.head_dim_k else 0,
        index_rows=made.n_listed,
        index_dims=tuple(index.get(il, 0) for il in range(len(layers))) if index else (),
        recurrent_bytes=made.cache_bytes - sum(rows.bytes for rows in made.caches if rows.content is not Content.STATE),  # deepseek4 has others too
        rope_sections=get("rope.dimension_sections") is not None,
    )


def _check_kind(path: Path, reader: MetadataReader) -> None:
    arch = reader.value("general.architecture")
    other = _NOT_A_MODEL.get(reader.value("general.type", "model")) or _NOT_A_MODEL.get(arch)
    if other is not None:
        raise ModelError(f"{path} is {other[0]}, not a model; give the GGUF file of the model itself{other[1]}")
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
    for name in names[1:]:
        if not name.exists():
            raise ModelError(f"there is no file {name}, one of {n_parts} parts of {path}; put all of them beside it")
    return [open_gguf(name, whole) for name in names[1:]]


def _file_type(reader: MetadataReader, tensors: list[TensorInfo]) -> str:
    from edgekv._native.gguf_header import file_types

    said = file_types().get(reader.value("general.file_type"), "")
    if any(tensor.type.partition("_")[0] == said.partition("_")[0] for tensor in tensors):  # IQ3_M has IQ3_S
        return said
    by_type: dict[str, int] = {}  # not said, newer than llama.cpp, or of rows that held no such block: the type of most weights
    for tensor in tensors:
        by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.n_bytes
    return max(by_type, key=lambda name: by_type[name])
