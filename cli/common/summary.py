"""One line about a model's memory and the free memory: `chat` and `serve` begin with it, and log it once the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from edgekv.common.units import size, size_of

if TYPE_CHECKING:
    from edgekv.common.reports import MemoryReport
    from edgekv.planning.allocations import MemoryPart
    from edgekv.runtime.runtime import Runtime
    from edgekv.server.server import Server

_SHOWN = {"weights": "weights", "KV home": "KV home", "sketches": "sketches", "arena": "arena", "prefix store": "prefixes up to",
          "loaded later": "loaded later"}
"""Names of parts in the line; all others are buffers."""


def summary_line(server: Server, runtime: Runtime | None = None) -> str:
    """The memory of a context by part, and the free memory before; with parts on a GPU a second line. runtime: of the opened context: its
    figures replace the estimates, and the line says "takes" instead of "needs".

    "needs 366.7 MiB (weights 92.1 MiB, KV home 180.0 MiB, sketches 18.5 MiB, arena 36.0 MiB, buffers 40.1 MiB), 20.9 GiB are free"
    """
    from edgekv.planning.allocations import HOST

    parts, request, verb = server.parts(), server.request, "needs"
    if runtime is not None:
        parts, verb = with_measured(parts, runtime.memory()), "takes"
    lines = [_line(verb, [part for part in parts if part.place == HOST], request.available)]
    if request.room is not None:
        on_it = [part for part in parts if part.place == request.room.name]
        lines.append(_line(f"{verb} on {request.room.name}", on_it, request.room.free))
    return "\n".join(lines)


def memory_line(server: Server) -> str:
    """What the process takes now, and may take at most, of the free memory; the second also of a GPU: "155.1 MiB used, up to 1.3 of 22.3 GiB".
    """
    from edgekv.planning.allocations import HOST

    parts, request = server.parts(), server.request
    rooms = [(HOST, "", request.available)] + ([(request.room.name, f" on {request.room.name}", request.room.free)] if request.room is not None else [])
    return f"{size(psutil.Process().memory_info().rss)} used, up to " + ", ".join(
        f"{size_of(sum(part.bytes for part in parts if part.place == place), free)}{where}" for place, where, free in rooms)


def told_cost(server: Server) -> str | None:
    """What the types of K and V cost the model, as far as this machine knows; None: nothing. Ask before the server starts: llama_cpp, which this
    imports, takes llama.cpp's log for itself."""
    options = server.options
    if options.kv.cache.is_f16:
        return None
    from edgekv.cache_types import known_cost

    cost = known_cost(options.model, options.kv.cache)
    return None if cost is None else str(cost)


def with_measured(parts: Sequence[MemoryPart], memory: MemoryReport) -> list[MemoryPart]:
    """The parts, with an opened context's own figures instead of estimates."""
    home = sum(part.bytes for part in parts if part.name == "KV home")
    others = max(0, home - memory.home_bytes) if memory.home_bytes else home  # caches of llama.cpp's other layers
    found = {"KV home": memory.home_bytes + others, "sketches": memory.sketch_bytes, "arena": memory.arena_bytes,
             "tables": memory.table_bytes + memory.observation_bytes, "work space": memory.workspace_bytes}
    return [replace(part, bytes=found.get(part.name, part.bytes)) for part in parts]


def _line(verb: str, parts: Sequence[MemoryPart], free: int) -> str:
    amounts = [(name, sum(part.bytes for part in parts if part.name == of)) for of, name in _SHOWN.items()]
    needed = sum(part.bytes for part in parts)
    amounts.append(("buffers", needed - sum(n_bytes for _, n_bytes in amounts)))
    shown = ", ".join(f"{name} {size(n_bytes)}" for name, n_bytes in amounts if n_bytes > 0)
    return f"{verb} {size(needed)} ({shown}), {size(free)} are free"
