"""Architectures whose KV cache EdgeKV leaves to stock llama.cpp, besides windows, MLA, shared caches and head sizes."""

from typing import Any

from edgekv.models.reader import MetadataReader

INDEX = "an index or compressed rows beside its cache say what it attends"

_ALIBI = frozenset({"bloom", "refact"})
"""Architectures with a position bias that their files do not tell (llama.cpp: src/models)."""

_TELLS_ALIBI = frozenset({"jais", "mpt"})

_BAICHUAN_13B_LAYERS = 40
"""This size of baichuan has a position bias; the others rotate."""


def why_stock(arch: str, reader: MetadataReader, n_layer: int) -> str:
    """Why EdgeKV attends no layer of a model; empty where this table says nothing against it."""

    def get(key: str, default: Any) -> Any:
        return reader.value(f"{arch}.{key}", default)

    told = arch in _TELLS_ALIBI and get("attention.max_alibi_bias", 0.0) > 0
    if told or arch in _ALIBI or arch == "baichuan" and n_layer == _BAICHUAN_13B_LAYERS:
        return "ALiBi position bias"
    if arch == "grok":
        return "llama.cpp runs it without flash attention"
    if get("attention.indexer.key_length", 0) > 0:
        return INDEX
    return ""
