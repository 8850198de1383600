"""One line about what a model needs of what is free: the first that `chat` and `serve` may show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekv.amounts import size

if TYPE_CHECKING:
    from edgekv.live.runtime import Runtime
    from edgekv.memory.fit import ContextChoice
    from edgekv.models import Geometry


def summary_line(model: Geometry, context: ContextChoice, available: int, store_bytes: int = 0, runtime: Runtime | None = None) -> str:
    """What a context needs, by part. available: bytes of host memory that were free before. runtime: of the context that is open now,
    whose own figures replace the estimates of what it keeps.

    "memory: weights 92.1 MiB, KV home 180.0 MiB, sketches 18.5 MiB, arena 36.0 MiB; 340.1 MiB of 20.9 GiB free (estimated)"
    """
    kept = context.bytes
    parts = {"weights": model.tensor_bytes, "KV home": kept.home, "sketches": kept.sketches, "arena": kept.arena,
             "tables": kept.tables + kept.workspace, "prefixes up to": store_bytes}
    how = "estimated"
    if runtime is not None:
        memory = runtime.memory()
        others = max(0, kept.home - memory.home_bytes) if memory.home_bytes else kept.home
        parts |= {"KV home": memory.home_bytes + others, "sketches": memory.sketch_bytes, "arena": memory.arena_bytes,
                  "tables": memory.table_bytes + memory.workspace_bytes + memory.observation_bytes}
        how = "measured"
    shown = ", ".join(f"{name} {size(n_bytes)}" for name, n_bytes in parts.items() if n_bytes)
    return f"memory: {shown}; {size(sum(parts.values()))} of {size(available)} free ({how})"
