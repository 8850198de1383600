"""The layers that EdgeKV's attention serves, and the reasons for the others, on the processor."""

from msgspec import Struct

from edgekv.models.geometry import Geometry
from edgekv.planning.fit import sparse_layers, whole_layers


class LayerService(Struct, frozen=True):
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
    if model.swa[il]:
        return f"{model.reasons[il]} ({model.sliding_window:,} tokens)"
    if model.states[il] != "head_dim":
        return model.reasons[il]
    return f"{model.reasons[il]}: K has {model.head_dim_k} numbers and V {model.head_dim_v}"
