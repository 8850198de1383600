"""A process that asks llama.cpp about models: a line of JSON for each question, and one for its answer. It may die of a bad file, and ends where no
question comes for some seconds."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekv._native.headers import OpenHeader

IDLE_S = 5.0
MOST_BYTES = 2 << 30
"""Of memory of its own: a header that asks for more is damaged."""
MOST_S = 30
"""Of computing for a question: a busy machine takes longer by the clock."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`path`, its `end` with all tensors, and `sizes`, each the arguments of `OpenHeader.inspect()`: `found` for each, or why not."""
    from edgekv.common.errors import EdgeKVError

    path = Path(question["path"])
    try:
        state = path.stat()
        model = _open(path, question["end"], state.st_size, state.st_mtime_ns)
        return {"found": [model.inspect(*size) for size in question["sizes"]]}
    except (EdgeKVError, OSError) as error:
        return {"refused": str(error)}


@lru_cache(maxsize=1)
def _open(path: Path, end: int, *identity: int) -> OpenHeader:
    """Kept for the next question: opening takes most of the time."""
    from edgekv._native.headers import OpenHeader

    with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
        return OpenHeader(_with_holes(path, end, Path(folder)))


def _with_holes(path: Path, end: int, folder: Path) -> Path:
    """The file itself if it is whole; otherwise a copy of its header with a hole for its weights. llama.cpp refuses a file that is too short, and
    reads no weight here."""
    if path.stat().st_size >= end:
        return path
    copy = folder / path.name
    with path.open("rb") as source, copy.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.truncate(end)
    return copy


def main() -> None:
    # what the libraries print is no answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.platform.startswith("linux"):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        if sys.platform.startswith("linux"):
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MOST_S, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
