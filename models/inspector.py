"""What llama.cpp makes of a model file: layers, caches and work buffers, asked in a process of its own and kept by the file's identity."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import select
import signal
import sys
import threading
from bisect import bisect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, structs
from msgspec.structs import replace

from edgekv.common.errors import ModelError
from edgekv.models.kept import Kept, identity
from edgekv.models.reader import open_gguf

if TYPE_CHECKING:
    import subprocess

CONTEXT_STEP = 256
"""llama.cpp rounds the cells of a sequence up to a multiple of this."""

MOST_CELLS = 1 << 18
"""Of the longest context that is asked for: caches of a longer one go on as these do."""

TIMEOUT_S = 300.0
"""On a system that does not limit what the process computes (`inspecting.MOST_S`)."""

F16 = 1


def rounded(n: int) -> int:
    """The length to which llama.cpp rounds a context of `n` tokens."""
    return -(-n // CONTEXT_STEP) * CONTEXT_STEP


class Asked(Struct, frozen=True):
    """A kind of context: everything but its length."""

    n_seq: int = 1
    unified: bool = False
    """The sequences share one cache, as long as all together."""
    n_ubatch: int = 512
    type_k: int = F16
    """enum ggml_type."""
    type_v: int = F16

    @property
    def n_cells_of_ubatch(self) -> int:
        """The shortest context, in cells of a stream, that has a whole ubatch of tokens."""
        return rounded(-(-self.n_ubatch // (1 if self.unified else self.n_seq)))

    @property
    def most_cells(self) -> int:
        """The longest context that is asked for, in cells of a stream."""
        return max(2, MOST_CELLS // CONTEXT_STEP // (1 if self.unified else self.n_seq)) * CONTEXT_STEP


class Layer(Struct, frozen=True, array_like=True):
    state: str
    """The name of an edgekv_layer_state, on the processor with K and V in the types that were asked for."""
    reason: str
    """The state in words."""
    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int

    @property
    def slides(self) -> bool:
        return self.state in ("swa", "window")


class Content(str, enum.Enum):
    """What a cache holds, as llama_edgekv_content names it."""

    ALL = "all"
    WINDOW = "window"
    INDEX = "index"
    COMPRESSED = "compressed"
    """A row for several tokens."""
    STATE = "state"


class Rows(Struct, frozen=True, array_like=True):
    """K and V of one layer in one cache, or a layer's state."""

    content: Content
    il: int
    k_numbers: int
    k_bytes: int
    """Of one cell."""
    v_numbers: int
    """0: rows of K hold V."""
    v_bytes: int
    n_cells: int
    """Of a stream."""
    n_streams: int

    @property
    def bytes(self) -> int:
        return (self.k_bytes + self.v_bytes) * self.n_cells * self.n_streams


class Inspected(Struct, frozen=True):
    """A context as llama.cpp makes it on the processor."""

    layers: tuple[Layer, ...]
    caches: tuple[Rows, ...]
    n_vocab: int
    ends: tuple[int, ...]
    """Tokens that end an answer."""
    template: bool
    n_window: int
    chunks: bool
    """Windows begin at multiples of their size."""
    n_listed: int
    """The most cells that an index lists for a token; 0: there is no index."""
    mla: bool
    cache_bytes: int
    """Of all caches and states."""
    compute_bytes: int


class Inspector:
    """Asks llama.cpp about one file, once for each question."""

    def __init__(self, path: Path, ends: Mapping[Path, int]):
        """ends: of the last tensor in each of its parts, which may hold headers alone."""
        self._path, self._ends = path, ends
        self._kept = _Answers(path, identity(ends), "answers.json")
        self._made: dict[tuple[Asked, int], Inspected] = {}

    def is_current(self) -> bool:
        """Whether the file is what it was."""
        return self._kept.of == identity(self._ends)

    def first(self) -> Inspected:
        """The shortest context. Raises ModelError."""
        return self.context(CONTEXT_STEP)

    def context(self, n_cells: int, asked: Asked = Asked()) -> Inspected:
        """The context with `n_cells` cells for each stream, a multiple of CONTEXT_STEP. Raises ModelError."""
        return self._contexts(asked, n_cells)[0]

    def caches(self, n_cells: int, asked: Asked = Asked()) -> tuple[Rows, ...]:
        """Its caches, deduced from other lengths where these leave no choice: cells grow with the length, by no more than it does. Raises
        ModelError."""
        low, high = self._around(n_cells, asked)
        between = [_between(a, b, low, high, n_cells) for a, b in zip(*(one.caches for one in self._contexts(asked, low, high)), strict=True)]
        known = tuple(rows for rows in between if rows is not None)
        return known if len(known) == len(between) else self.context(n_cells, asked).caches

    def compute_bytes(self, n_cells: int, asked: Asked, exact: bool = True) -> int:
        """Its work buffers. exact False: on the line between the two nearest lengths that are known, for whoever tries many. Raises ModelError."""
        if n_cells <= asked.n_cells_of_ubatch or (exact and n_cells <= asked.most_cells):
            return self.context(n_cells, asked).compute_bytes
        low, high = self._around(n_cells, asked)
        a, b = (one.compute_bytes for one in self._contexts(asked, low, high))
        return a + (b - a) * (n_cells - low) // (high - low)

    def _around(self, n_cells: int, asked: Asked) -> tuple[int, int]:
        """The two known lengths between which one is, or the two longest."""
        points = self._kept.points(asked)
        if asked.most_cells not in points:
            points = self._first(asked)
        at = max(1, min(bisect(points, n_cells), len(points) - 1))
        return points[at - 1], points[at]

    def _first(self, asked: Asked) -> list[int]:
        """Asks for lengths between which caches begin to grow less than the context, and for some that show how work buffers grow."""
        most = asked.most_cells
        *_, full = self._contexts(asked, *sorted({CONTEXT_STEP, asked.n_cells_of_ubatch, *(rounded(most // part) for part in (32, 8, 2)), most}))
        self._contexts(asked, *(rows.n_cells for rows in full.caches if CONTEXT_STEP < rows.n_cells < most and rows.n_cells % CONTEXT_STEP == 0))
        return self._kept.points(asked)

    def _contexts(self, asked: Asked, *n_cells: int) -> list[Inspected]:
        sizes = {n: (n if asked.unified else n * asked.n_seq, *structs.astuple(asked)) for n in n_cells if not self._kept.has(n, asked)}
        if sizes:
            found = _process().ask(self._path, {"parts": [(str(part.absolute()), end) for part, end in self._ends.items()],
                                                "sizes": list(sizes.values())})
            self._kept.add(asked, dict(zip(sizes, found, strict=True)))
        for n in n_cells:
            if (asked, n) not in self._made:  # plans ask for the same few lengths hundreds of times
                self._made[asked, n] = convert(self._kept.get(n, asked), Inspected, strict=False)  # flags are 0 or 1
        return [self._made[asked, n] for n in n_cells]


@cache
def _opened() -> dict[Path, Inspector]:
    return {}


def open_inspector(path: Path, ends: Mapping[Path, int]) -> Inspector:
    """The inspector of a file as it is now, which `inspector()` finds from now on."""
    known = _opened().get(path)
    if known is None or not known.is_current():
        known = _opened()[path] = Inspector(path, ends)
    return known


def inspector(path: Path) -> Inspector:
    """That of a file that was opened. Raises KeyError."""
    return _opened()[path]


def check_projector(path: Path) -> None:
    """By its header alone. Raises ModelError."""
    if not path.exists():
        raise ModelError(f"there is no file {path}; give the projector that comes with the model")
    reader = open_gguf(path)
    if reader.value("general.type") != "mmproj" and reader.value("general.architecture") != "clip":
        raise ModelError(f"{path} is not a projector; --mmproj takes the file that comes with a model for its images or sound, often named mmproj")


def projector_bytes(path: Path) -> int:
    """Most memory that a projector takes beside its model. Raises ModelError."""
    check_projector(path)
    (n_bytes,) = _process().ask(path, {"projector": str(path.absolute())})
    return int(n_bytes)


def _between(a: Rows, b: Rows, low: int, high: int, n: int) -> Rows | None:
    """A cache of a length between two others, or beyond the longer; None: it cannot be deduced."""
    if a.n_cells == b.n_cells:
        return a
    return replace(a, n_cells=a.n_cells + n - low) if b.n_cells - a.n_cells == high - low else None


class _Answers(Kept):
    """Answers about a file."""

    def has(self, n_cells: int, asked: Asked) -> bool:
        return f"{n_cells}" in self._of_kind(asked)

    def get(self, n_cells: int, asked: Asked) -> dict[str, Any]:
        found: dict[str, Any] = self._of_kind(asked)[f"{n_cells}"]
        return found

    def points(self, asked: Asked) -> list[int]:
        return sorted(map(int, self._of_kind(asked)))

    def add(self, asked: Asked, found: dict[int, dict[str, Any]]) -> None:
        self._of_kind(asked).update({f"{n}": one for n, one in found.items()})
        self.keep()

    def _of_kind(self, asked: Asked) -> dict[str, Any]:
        found: dict[str, Any] = self.facts.setdefault(" ".join(str(int(one)) for one in structs.astuple(asked)), {})
        return found


class _Process:
    """The process that opens files. A file that ends it ends nobody else; idle, it ends by itself."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, path: Path, question: dict[str, Any]) -> list[Any]:
        """Raises ModelError if llama.cpp refuses the file, or ends or hangs over it."""
        with self._alone:
            line, code = self._exchange(question), 0
            if not line and self._process is not None and (code := self._end()) == 0:
                line = self._exchange(question)  # it had ended because nobody asked
        if not line:
            how = "takes too long for the process" if code in (-signal.SIGKILL, -signal.SIGXCPU) else "ends the process"
            raise ModelError(f"{path} is damaged, or of a kind that this llama.cpp does not run: it {how} that opens the header; convert it again")
        answer = json.loads(line)
        if "refused" in answer:
            raise ModelError(f"llama.cpp refuses {path}: {_sentence(answer['refused'])}")
        found: list[Any] = answer["found"]
        return found

    def _exchange(self, question: dict[str, Any]) -> bytes:
        """The answer; empty if the process ended or hangs."""
        if self._process is None:
            import subprocess  # most files were asked about before

            environment = {name: value for name, value in os.environ.items() if name != "EDGEKV"} | {"GGML_NO_BACKTRACE": "1"}
            self._process = subprocess.Popen([sys.executable, "-c", "from edgekv._native.inspecting import main; main()"], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return b""
        if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
            self._process.kill()
            return b""
        return self._process.stdout.readline()

    def _end(self) -> int:
        """Its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        with contextlib.suppress(OSError):
            process.communicate()
        return process.returncode


@cache
def _process() -> _Process:
    return _Process()


def _sentence(said: str) -> str:
    """llama.cpp's line without the name of its function, in characters that a terminal shows."""
    text = said.strip().rpartition("error loading model: ")[2]
    return "".join(one if one.isprintable() else "?" for one in text)
