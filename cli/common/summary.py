"""One line about what a model needs of what is free: the first that `chat` and `serve` show; and for the log, once it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekv.amounts import size

if TYPE_CHECKING:
    from edgekv.live.runtime import Runtime
    from edgekv.memory.allocations import MemoryPart
    from edgekv.reports import MemoryReport
    from edgekv.serving.server import Server

_SHOWN = {"weights": "weights", "KV home": "KV home", "sketches": "sketches", "arena": "arena", "prefix store": "prefixes up to",
          "loaded later": "loaded later"}
"""Part: what it is called here; the others are buffers."""


def summary_line(server: Server, runtime: Runtime | None = None) -> str:
    """What a context needs, by part, and what was free before; a line more where parts of it lie on a GPU. runtime: of the context that is
    open now, whose own figures replace the estimates of what it keeps: "takes" in place of "needs".

    "needs 366.7 MiB (weights 92.1 MiB, KV home 180.0 MiB, sketches 18.5 MiB, arena 36.0 MiB, buffers 40.1 MiB), 20.9 GiB are free"
    """
    from edgekv.memory.allocations import HOST

    parts, request, verb = server.parts(), server.request, "needs"
    if runtime is not None:
        parts, verb = with_measured(parts, runtime.memory()), "takes"
    lines = [_line(verb, [part for part in parts if part.place == HOST], request.available)]
    if request.room is not None:
        on_it = [part for part in parts if part.place == request.room.name]
        lines.append(_line(f"{verb} on {request.room.name}", on_it, request.room.free))
    return "\n".join(lines)


def with_measured(parts: Sequence[MemoryPart], memory: MemoryReport) -> list[MemoryPart]:
    """The same parts, with the figures of a context that is open for what it keeps itself."""
    home = sum(part.bytes for part in parts if part.name == "KV home")
    others = max(0, home - memory.home_bytes) if memory.home_bytes else home  # caches that llama.cpp keeps alone
    found = {"KV home": memory.home_bytes + others, "sketches": memory.sketch_bytes, "arena": memory.arena_bytes,
             "tables": memory.table_bytes + memory.observation_bytes, "work space": memory.workspace_bytes}
    return [replace(part, bytes=found.get(part.name, part.bytes)) for part in parts]


def _line(verb: str, parts: Sequence[MemoryPart], free: int) -> str:
    amounts = [(name, sum(part.bytes for part in parts if part.name == of)) for of, name in _SHOWN.items()]
    needed = sum(part.bytes for part in parts)
    amounts.append(("buffers", needed - sum(n_bytes for _, n_bytes in amounts)))
    shown = ", ".join(f"{name} {size(n_bytes)}" for name, n_bytes in amounts if n_bytes > 0)
    return f"{verb} {size(needed)} ({shown}), {size(free)} are free"
