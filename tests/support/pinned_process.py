"""Decodes on the emulated device's own ggml backend, whose K and V are pinned as tokens come.

A scenario names model, options, n_ctx, n_seq, unified, and the steps: ["read", [[sequence, first position, tokens], ...]], ["limit", bytes more that the
system pins, or null], ["clear"], ["copy", from, to], ["fork", first position, [sequences of a token, ...]], ["again", sequence] (saved and loaded),
["load", from, to], ["add", sequence, tokens] (as kept ones; both may be refused),
["keep", path], ["whole", path] (all sequences), ["remove", sequence, first position, end], ["free", bytes of memory beside what the process keeps back, or
null]. After each of them OUT has the bytes that are pinned, and what was read."""

import ctypes
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support.backend_process import beside_the_backend, whole

ALL_MEMORY = 2**63
KEPT_BACK = 32 << 20
"""Bytes of free memory that K and V do not take (kBesides)."""


class Pinned(NamedTuple):
    """What a process says. bytes: of rows that are pinned, of a context without tokens and after each step; at last, when it is gone."""

    bytes: list[int]
    logits: list[np.ndarray]
    """Of each "read", float32 [token, n_vocab], of each "fork", [token, 0], of each "load", [1, 0], of each "add", [tokens, 0]; empty where it was refused for
    want of memory."""
    log: str


def decode(backend: Path, emulator: Path, folder: Path, scenario: dict[str, Any], **environment: str) -> Pinned:
    """Run a scenario in a process of its own."""
    given, out = folder / "scenario.json", folder / "pinned.npz"
    given.write_text(json.dumps(scenario))
    done = whole(beside_the_backend(backend, "from support.pinned_process import write; write(*sys.argv[1:])", emulator, given, out, **environment))
    found = np.load(out)
    return Pinned(found["bytes"].tolist(), [found[f"logits{i}"] for i in range(len(found) - 1)], done.stderr)


class _Run:
    """The context of a scenario."""

    def __init__(self, emulator: ctypes.CDLL, context: Any, run: Any) -> None:
        from edgekv._native import core

        import llama_cpp  # once the backend is there

        self.context, self.run, self.logits, self.core, self.llama_cpp = context, run, list[np.ndarray](), core, llama_cpp
        self._pinned, self._has = emulator.edgekv_emulator_pinned, emulator.edgekv_emulator_has
        self._pinned.restype, self._pinned.argtypes = ctypes.c_size_t, [ctypes.c_bool]
        self._has.restype, self._has.argtypes = None, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool, ctypes.c_size_t]

    def pinned(self) -> int:
        """Bytes of rows."""
        return self._pinned(True)

    def read(self, parts: list[list[int]]) -> None:
        tokens = [(260 + (7 * position + sequence) % 90, position, sequence) for sequence, first, n in parts for position in range(first, first + n)]
        try:
            self.logits.append(self.context.decode(*zip(*tokens)))
        except AssertionError as error:
            if str(error) != "llama_decode returned 1" or not self.core.refused():
                raise
            self.logits.append(np.empty((0, 0), np.float32))

    def limit(self, more: int | None) -> None:
        self._has(8 << 30, 0, False, ALL_MEMORY if more is None else self._pinned(False) + more)

    def free(self, more: int | None) -> None:
        self.core.set_free_bytes(lambda: 1 << 40 if more is None else KEPT_BACK + more)

    def remove(self, sequence: int, first: int, end: int) -> None:
        assert self.llama_cpp.llama_memory_seq_rm(self.context.memory, sequence, first, end)

    def load(self, source: int, to: int) -> None:
        try:
            self.context.load(self.context.save(source), to)
            self.logits.append(np.empty((1, 0), np.float32))
        except AssertionError as error:
            if str(error) != f"sequence {to} does not load":
                raise
            self.logits.append(np.empty((0, 0), np.float32))

    def add(self, sequence: int, n: int) -> None:
        from edgekv._native.token_rows import add_tokens
        from edgekv.common.errors import DoesNotFit

        try:
            n_added = len(add_tokens(self.run._native_handle(), sequence, 0, np.zeros(n, np.uint8), None, None))
        except DoesNotFit:
            n_added = 0
        self.logits.append(np.empty((n_added, 0), np.float32))

    def keep(self, path: str) -> None:
        Path(path).write_bytes(self.context.save())

    def whole(self, path: str) -> None:
        self.context.load(Path(path).read_bytes())

    def clear(self) -> None:
        self.llama_cpp.llama_memory_clear(self.context.memory, True)

    def copy(self, source: int, to: int) -> None:
        self.llama_cpp.llama_memory_seq_cp(self.context.memory, source, to, -1, -1)

    def fork(self, first: int, of: list[list[int]]) -> None:
        found = self.context.status(range(260, 260 + len(of)), range(first, first + len(of)), of)
        assert found == 0 or found == 1 and self.core.refused(), f"llama_decode returned {found}"
        self.logits.append(np.empty((0 if found else len(of), 0), np.float32))

    def again(self, sequence: int) -> None:
        state = self.context.save(sequence)
        self.llama_cpp.llama_memory_seq_rm(self.context.memory, sequence, -1, -1)
        self.context.load(state, sequence)


def write(emulator: str, scenario: str, out: str) -> None:
    """What a scenario on the loaded backend gives."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # llama.cpp says much
    from support.contexts import attached

    from edgekv import messages  # noqa: F401 (its log has llama.cpp's errors)
    from edgekv.config import KvOptions

    logging.getLogger("edgekv.llama.cpp").addHandler(logging.StreamHandler())
    given = json.loads(Path(scenario).read_text())
    with attached(Path(given["model"]), KvOptions(attention_device="emulated", **given["options"]), n_ctx=given["n_ctx"], n_seq=given["n_seq"],
                  unified=given["unified"], n_threads=1, model_params={"n_gpu_layers": -1}) as (context, run):
        assert run is not None, "the plane is on the device"
        one = _Run(ctypes.CDLL(emulator), context, run)
        pinned = [one.pinned()]
        for name, *arguments in given["steps"]:
            getattr(one, name)(*arguments)
            pinned.append(one.pinned())
    np.savez(out, bytes=np.array([*pinned, one.pinned()]), **{f"logits{i}": found for i, found in enumerate(one.logits)})
