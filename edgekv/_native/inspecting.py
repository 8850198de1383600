"""A process that asks llama.cpp about models: a line of JSON for each question, and one for its answer. It may die of a bad file, and ends where no
question comes for some seconds."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekv._native.headers import OpenHeader

IDLE_S = 5.0
MOST_BYTES = 2 << 30
"""Of memory of its own: a header that asks for more is damaged. llama.cpp reserves a projector's work buffers, however large, and does not use them."""
MOST_S = 30
"""Of computing for a question: a busy machine takes longer by the clock."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`parts` of a file, with their ends, and `sizes`, each the arguments of `OpenHeader.inspect()`: `found` for each, or why not. Or a `projector`:
    its bytes."""
    from edgekv.common.errors import EdgeKVError

    try:
        if "projector" in question:
            return {"found": [_projector_bytes(Path(question["projector"]))]}
        states = ((Path(path), end, os.stat(path)) for path, end in question["parts"])
        model = _open(tuple((path, end, state.st_size, state.st_mtime_ns) for path, end, state in states))
        return {"found": [model.inspect(*size) for size in question["sizes"]]}
    except (EdgeKVError, OSError) as error:
        return {"refused": str(error)}


def _projector_bytes(path: Path) -> int:
    from edgekv import _native
    from edgekv._native import http_server

    _native.load()
    _limit_memory(None)
    try:
        return http_server.projector_bytes(path)
    finally:
        _limit_memory(MOST_BYTES)


def _limit_memory(n_bytes: int | None) -> None:
    """None: to what this process got."""
    if sys.platform.startswith("linux"):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if n_bytes is None else n_bytes, most))


@lru_cache(maxsize=1)
def _open(parts: tuple[tuple[Path, int, int, int], ...]) -> OpenHeader:
    """Kept for the next question: opening takes most of the time."""
    from edgekv._native.headers import OpenHeader
    from edgekv.common.errors import NativeError

    if all(size >= end for _, end, size, _ in parts):
        return OpenHeader(parts[0][0])
    import tempfile  # most files are whole

    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        try:
            first, *_ = [_with_holes(path, end, size, Path(folder)) for path, end, size, _ in parts]
            return OpenHeader(first)
        except NativeError as error:
            raise NativeError(str(error).replace(f"{folder}{os.sep}", "")) from None


def _with_holes(path: Path, end: int, size: int, folder: Path) -> Path:
    """A link to a whole file; otherwise a copy of its header with a hole for its weights. llama.cpp refuses a file that is too short, and reads
    no weight here."""
    import shutil  # tempfile has it

    beside = folder / path.name  # where llama.cpp looks for the other parts
    if size >= end:
        beside.symlink_to(path)
        return beside
    with path.open("rb") as source, beside.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.truncate(end)
    return beside


def main() -> None:
    # what the libraries print is no answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.platform.startswith("linux"):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(MOST_BYTES)
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        if sys.platform.startswith("linux"):
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MOST_S, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # to take a model's vocabulary apart is work for nothing
