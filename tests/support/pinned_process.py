"""Decodes on the emulated device's own ggml backend, whose K and V are pinned as tokens come:

    pinned_process.py BACKEND EMULATOR SCENARIO.json OUT.npz

The scenario names model, options, n_ctx, n_seq, unified, and the steps: ["read", [[sequence, first position, tokens], ...]], ["limit", bytes more that the
system pins, or null], ["clear"], ["copy", from, to], ["fork", first position, [sequences of a token, ...]], ["again", sequence] (saved and loaded),
["load", from, to], ["add", sequence, tokens] (as kept ones; both may be refused),
["keep", path], ["whole", path] (all sequences), ["remove", sequence, first position, end], ["free", bytes of memory beside what the process keeps back, or
null]. After each of them OUT has the bytes that are pinned, and what was read."""

import ctypes
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SCRIPT = Path(__file__).resolve()
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
    done = subprocess.run([sys.executable, str(SCRIPT), str(backend), str(emulator), str(given), str(out)], capture_output=True, text=True,
                          env=os.environ | environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    found = np.load(out)
    return Pinned(found["bytes"].tolist(), [found[f"logits{i}"] for i in range(len(found) - 1)], done.stderr)


class _Run:
    """The context of a scenario."""

    def __init__(self, emulator: ctypes.CDLL, context: Any, run: Any) -> None:
        self.context, self.run, self.logits = context, run, list[np.ndarray]()
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
            if str(error) != "llama_decode returned 1" or not self._refused():
                raise
            self.logits.append(np.empty((0, 0), np.float32))

    @staticmethod
    def _refused() -> bool:
        from edgekv._native import core

        return core.refused()

    def limit(self, more: int | None) -> None:
        self._has(8 << 30, 0, False, ALL_MEMORY if more is None else self._pinned(False) + more)

    def free(self, more: int | None) -> None:
        from edgekv._native import core

        core.set_free_bytes(lambda: 1 << 40 if more is None else KEPT_BACK + more)

    def remove(self, sequence: int, first: int, end: int) -> None:
        import llama_cpp

        assert llama_cpp.llama_memory_seq_rm(self.context.memory, sequence, first, end)

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
        import llama_cpp

        llama_cpp.llama_memory_clear(self.context.memory, True)

    def copy(self, source: int, to: int) -> None:
        import llama_cpp

        llama_cpp.llama_memory_seq_cp(self.context.memory, source, to, -1, -1)

    def fork(self, first: int, of: list[list[int]]) -> None:
        import llama_cpp

        batch = llama_cpp.llama_batch_init(len(of), 0, max(map(len, of)))
        batch.n_tokens = len(of)
        for i, sequences in enumerate(of):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = 260 + i, first + i, len(sequences), 1
            for j, sequence in enumerate(sequences):
                batch.seq_id[i][j] = sequence
        found = llama_cpp.llama_decode(self.context.ctx, batch)
        assert found == 0 or found == 1 and self._refused(), f"llama_decode returned {found}"
        self.logits.append(np.empty((0 if found else len(of), 0), np.float32))
        llama_cpp.llama_batch_free(batch)

    def again(self, sequence: int) -> None:
        import llama_cpp

        state = self.context.save(sequence)
        llama_cpp.llama_memory_seq_rm(self.context.memory, sequence, -1, -1)
        self.context.load(state, sequence)


def _main(backend: str, emulator: str, scenario: str, out: str) -> None:
    from support.backend_process import _load

    _load(Path(backend))
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


if __name__ == "__main__":
    sys.path[0] = str(SCRIPT.parents[1])  # the tests' folder
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # llama.cpp says much
    _main(*sys.argv[1:])
