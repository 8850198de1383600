"""The layers that EdgeKV's attention serves, and the reasons for the others, by a model's header. `edgekv doctor` opens a context to be certain."""

from dataclasses import dataclass

from edgekv.models.geometry import Geometry
from edgekv.planning.fit import sparse_layers, whole_layers


@dataclass(frozen=True)
class LayerService:
    il: int
    served: bool
    """Whether mode sparse serves it."""
    whole: bool
    """On the processor EdgeKV attends it whole in every mode."""
    reason: str
    n_head: int
    n_head_kv: int


def layers(model: Geometry) -> list[LayerService]:
    served, whole = set(sparse_layers(model)), set(whole_layers(model))
    kind = ("compressed KV (MLA)" if model.mla else "plain KV cache") + (", an index lists what it attends" if model.index_rows else "")
    return [LayerService(il, il in served, il in whole, kind if il in served else _why_not(model, il), model.n_head[il], model.n_head_kv[il])
            for il in range(model.n_layer)]


def _why_not(model: Geometry, il: int) -> str:
    if not model.n_head_kv[il]:
        return "no KV cache: recurrent, a convolution, or no attention"
    if il >= model.n_layer - model.n_layer_shared:
        return "no KV cache of its own: it attends an earlier layer's"
    if model.swa[il]:
        return f"sliding window of {model.sliding_window:,} tokens"
    if model.stock:
        return model.stock
    if model.mla:
        return f"no kernel for compressed KV (MLA) of {model.head_dim_k} and {model.head_dim_v} numbers"
    if model.head_dim_k != model.head_dim_v:
        return f"heads of K have {model.head_dim_k} numbers and those of V {model.head_dim_v}"
    return f"no kernel for heads of {model.head_dim_k}"
