"""What the KV cache of this process's server is doing, for the footer and the /memory and /stats commands."""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.server import Server


@dataclass(frozen=True)
class KvStatus:
    """`mode` is the one in force, and says so if only some layers are served by our kernel; bytes are of K and V together."""

    mode: str
    used_bytes: int
    total_bytes: int
    n_ctx: int


def kv_status(server: Server, n_used: int) -> KvStatus:
    """The state of the cache with `n_used` tokens in it."""
    from edgekv import runtime

    context, kv = server.context, server.options.kv
    per_token = server.model.kv_bytes_per_token(kv.type_k.value, kv.type_v.value)
    live = runtime.live()
    if not live:
        return KvStatus("off", per_token * n_used, context.kv_bytes, context.n_ctx)
    memory, layers = live[0].memory(), live[0].layers
    n_hooked = sum(layer.hooked for layer in layers)
    mode = live[0].mode.value
    if mode != "off" and n_hooked < len(layers):
        mode += f" on {n_hooked} of {len(layers)} layers"
    return KvStatus(mode, memory.used_bytes, memory.home_bytes, context.n_ctx)


def memory_rows(server: Server) -> list[tuple[str, str]]:
    """Name and size of everything that the KV cache occupies."""
    from edgekv import runtime

    rows = []
    for attached in runtime.live():
        memory = attached.memory()
        rows += [
            ("K and V", f"{size(memory.home_bytes)} for {memory.n_cells:,} tokens, {memory.n_cells_used:,} in use"),
            ("attention mass", size(memory.observation_bytes)),
            ("work space", size(memory.workspace_bytes)),
        ]
    if not rows:
        rows.append(("K and V", f"{size(server.context.kv_bytes)} for {server.context.n_ctx:,} tokens (stock llama.cpp)"))
    return [*rows, ("model", size(server.model.tensor_bytes))]


def layer_rows() -> list[tuple[str, str]]:
    """Which layers our kernel serves, and why it does not serve the others, grouped by the reason."""
    from edgekv import runtime

    rows = []
    for attached in runtime.live():
        rows.append(("mode", f"{attached.mode.value}: {attached.mode.description}"))
        by_reason: dict[str, list[int]] = {}
        for layer in attached.layers:
            by_reason.setdefault("served by our kernel" if layer.hooked else layer.reason, []).append(layer.il)
        rows += [("layers", f"{len(layers)} {reason}") for reason, layers in by_reason.items()]
    return rows or [("mode", "off: stock llama.cpp attention")]


def size(n_bytes: int) -> str:
    """Bytes for people: "27.0 MiB"."""
    value, unit = float(n_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{n_bytes} B"
