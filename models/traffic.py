"""The weights that a token reads: the part of its time that no KV cache changes."""

from collections.abc import Mapping

from msgspec import Struct

from edgekv.models.geometry import ModelFile

TABLES = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
"""Tensors of which a token reads one row."""

EXPERTS = " of experts"


class Traffic(Struct, frozen=True):
    """Amounts by kind: the ggml type of the tensors, in lower case, and for those of experts with EXPERTS behind it."""

    decode_bytes: Mapping[str, int]
    """Bytes that one decoded token reads, the head included."""
    prompt_weights: Mapping[str, int]
    """Numbers that each token of a prompt is multiplied with. Only the last token needs the head and the weights after the last layer's
    attention: they do not count."""
    kept_bytes: int
    """Bytes of all weights that some token reads: of each expert."""

    @property
    def active_bytes(self) -> int:
        return sum(self.decode_bytes.values())


def traffic(model: ModelFile) -> Traffic:
    """The weights that a token reads; of a mixture of experts only those that it is sent to."""
    n_used, n_expert = experts_used(model)
    is_tied = not any(tensor.name == "output.weight" for tensor in model.tensors)
    last = f"blk.{model.geometry.n_layer - 1}.ffn_"
    decode: dict[str, int] = {}
    prompt: dict[str, int] = {}
    kept = 0
    for tensor in model.tensors:
        is_head = tensor.name == ("token_embd.weight" if is_tied else "output.weight")
        if tensor.name in TABLES and not is_head or _layer(tensor.name) >= model.geometry.n_layer:  # those that predict are for drafts
            continue
        kind = tensor.type.lower()
        used, of = 1, 1
        if "_exps." in tensor.name:
            kind, used, of = kind + EXPERTS, n_used, n_expert
        decode[kind] = decode.get(kind, 0) + tensor.n_bytes * used // of
        kept += tensor.n_bytes
        if not is_head and len(tensor.shape) > 1 and not tensor.name.startswith(last):
            prompt[kind] = prompt.get(kind, 0) + tensor.n_elements * used // of
    return Traffic(decode, prompt, kept)


def experts_used(model: ModelFile) -> tuple[int, int]:
    """Experts of a layer that a token is sent to, and all; (1, 1) without experts."""
    n_used, n = (int(model.header.value(f"{model.geometry.architecture}.{key}", 0) or 0) for key in ("expert_used_count", "expert_count"))
    return (n_used, n) if n else (1, 1)


def _layer(name: str) -> int:
    """-1: the tensor belongs to none."""
    block, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if block == "blk" else -1
