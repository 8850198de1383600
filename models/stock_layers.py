"""Architectures whose KV cache EdgeKV leaves to stock llama.cpp, besides windows, MLA, shared caches and head sizes."""

from typing import Any

from edgekv.models.reader import MetadataReader

ALIBI = "ALiBi position bias"

INDEX = "its attention follows an index or compressed rows beside its cache"

_ALIBI = frozenset({"bloom", "refact"})
"""Architectures with a position bias that their files do not tell (llama.cpp: src/models)."""

_TELLS_ALIBI = frozenset({"jais", "mpt"})

_LISTED = frozenset({"deepseek32", "dots3note", "glm-dsa", "hy_v4", "qwen4exp"})
"""Architectures whose index lists the cells that a token attends; in others the index takes part in attention in another way."""

_BAICHUAN_13B_LAYERS = 40
"""This size of baichuan has a position bias; the others rotate."""


def why_stock(arch: str, reader: MetadataReader, n_layer: int) -> str:
    """Why mode sparse serves no layer of a model; empty if this table has no reason."""

    def get(key: str, default: Any) -> Any:
        return reader.value(f"{arch}.{key}", default)

    told = arch in _TELLS_ALIBI and get("attention.max_alibi_bias", 0.0) > 0
    if told or arch in _ALIBI or arch == "baichuan" and n_layer == _BAICHUAN_13B_LAYERS:
        return ALIBI
    if arch == "grok":
        return "llama.cpp runs it without flash attention"
    if get("attention.indexer.key_length", 0) > 0 and arch not in _LISTED:
        return INDEX
    return ""


def index_rows(arch: str, reader: MetadataReader) -> int:
    """The maximum number of rows that an index beside the cache lets a token read; 0: there is no index."""
    if reader.value(f"{arch}.attention.indexer.key_length", 0) == 0:
        return 0
    return int(reader.value(f"{arch}.attention.indexer.top_k", 0))


def index_dims(arch: str, reader: MetadataReader, n_layer: int) -> tuple[int, ...]:
    """Numbers of an index key that each layer keeps beside its rows: 0 for a layer that uses another's choice; empty: no index lists
    cells."""
    if arch not in _LISTED or index_rows(arch, reader) == 0:
        return ()
    n = int(reader.value(f"{arch}.attention.indexer.key_length"))
    keeps = {"deepseek32": None, "qwen4exp": "attention.compress_ratios"}.get(arch, "attention.indexer.types")
    kept = reader.value(f"{arch}.{keeps}") if keeps else None
    return (n,) * n_layer if kept is None else tuple(n * (one > 0) for one in kept[:n_layer])
