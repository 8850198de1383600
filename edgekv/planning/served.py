"""The layers that EdgeKV's attention serves, and the reasons for the others, on the processor."""

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
    return [LayerService(il, il in served, il in whole, kind if il in served else model.reasons[il], model.n_head[il], model.n_head_kv[il])
            for il in range(model.n_layer)]
