"""Layers without a KV cache, and the state that they keep instead."""

from typing import Any

from edgekv.models.reader import MetadataReader

_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""For files that do not list recurrent layers: in each run of so many layers only the last one attends (llama.cpp: src/models)."""

_BOTH = frozenset({"falcon-h1"})
"""Architectures in which every layer attends and also has a state."""


def attending(arch: str, reader: MetadataReader, n_head_kv: tuple[int, ...]) -> tuple[int, ...]:
    """KV heads of each layer; 0 for a layer that keeps a state instead."""
    if arch not in _INTERVALS:
        return n_head_kv
    interval = int(reader.value(f"{arch}.full_attention_interval", _INTERVALS[arch]))
    return tuple(n if (il + 1) % interval == 0 else 0 for il, n in enumerate(n_head_kv))


def recurrent_bytes(arch: str, reader: MetadataReader, n_embd: int, n_head: tuple[int, ...], n_head_kv: tuple[int, ...]) -> int:
    """Bytes of one sequence's state, f32, as llama_hparams::n_embd_r and n_embd_s count it."""
    per_layer = 4 * _numbers(lambda key, default=0: reader.value(f"{arch}.{key}", default), n_embd, max(n_head))
    widths = reader.value(f"{arch}.feed_forward_length", 1)
    widths = widths if isinstance(widths, list) else [widths] * len(n_head_kv)
    # some layers of a hybrid are neither, only a feed-forward network (nemotron_h)
    alone = arch.startswith("nemotron_h")
    recurrent = [arch in _BOTH or not n and not (alone and widths[il]) for il, n in enumerate(n_head_kv)]
    return per_layer * sum(recurrent)


def _numbers(get: Any, n_embd: int, n_head: int) -> int:
    if size := get("wkv.head_size"):  # RWKV
        return n_embd * (int(get("token_shift_count", 2)) + int(size))
    if kernel := get("shortconv.l_cache"):  # LFM2
        return n_embd * (int(kernel) - 1)
    if dim := get("kda.head_dim"):  # Kimi Linear
        return 3 * (int(get("ssm.conv_kernel", 4)) - 1) * n_head * int(dim) + int(dim) ** 2 * n_head
    inner, state = int(get("ssm.inner_size")), int(get("ssm.state_size"))  # Mamba and its kin
    kernel, groups = int(get("ssm.conv_kernel")), int(get("ssm.group_count"))
    return max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner
