"""Decodes on the emulated device: in this process on llama.cpp's CPU backend, or in another on the device's own ggml backend
(native/tests/backend), which a process has from its first model on."""

import ctypes
import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
COUNTS = ("graphs", "refused", "direct", "recorded", "replayed", "known", "custom", "served")
"""`Counts` of native/tests/backend/backend.h."""


def _no_rows(run) -> None:
    from edgekv._native import paging

    paging.set_hot_rows(run._native_handle(), 0)


def _all_slots(run) -> None:
    from edgekv._native import device_calls

    run._tiering.hierarchy.resize(device_calls.plane(run._native_handle()).n_slots_max)


def _off_and_on(run) -> None:
    mode, run.mode = run.mode, "off"
    run.mode = mode


ARENA = {"no rows": _no_rows, "all slots": _all_slots, "given back": lambda run: run.give_back(8 * run.tiers().slot_bytes), "off and on": _off_and_on}


@dataclass(frozen=True)
class Scenario:
    """Calls of llama_decode: of `steps`, each the number of tokens that every sequence reads."""

    model: str
    options: dict[str, Any]
    steps: list[int]
    n_ctx: int = 512
    """Of all sequences."""
    n_seq: int = 1
    unified: bool = True
    leave_out: str = ""
    """An operation of ggml that the backend leaves to the CPU."""
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options that change before the step of this number."""
    arena: dict[str, str] = field(default_factory=dict)
    """What happens to the arena of each context before the step of this number: a key of `ARENA`."""
    rolls: dict[str, int] = field(default_factory=dict)
    """Tokens of each sequence that are removed behind its first four before the step of this number; the others move up."""
    beside: list[dict[str, Any]] = field(default_factory=list)
    """Options of further contexts, which decode the same tokens in turns with the first."""
    tiers: bool = True
    """Policies move pages. They are NumPy's here, which reads and writes the device's memory as its own."""
    asks: bool = False
    """Before each step another library asks the device's runtime for something that is not ready, and leaves the answer standing."""


@dataclass(frozen=True)
class Decoded:
    logits: list[np.ndarray]
    """Of each step, and of each context in it, float32 [sequence, token, n_vocab]."""
    counts: dict[str, np.ndarray]
    """What each step added to them; empty on the CPU backend."""
    n_hooked: int
    """Ubatches that were attended on the plane."""


def decode(scenario: Scenario, backend: Path | None = None) -> Decoded:
    """Run it, on the backend where one is given, which is loaded. Pages are checked against home."""
    from support.contexts import attached, n_hooked
    from support.events import check

    from edgekv.config import KvOptions
    from edgekv.runtime import context

    library = None if backend is None else ctypes.CDLL(str(backend))
    if library is not None:
        library.emulated_leave_out.restype = ctypes.c_bool
        assert library.emulated_leave_out(scenario.leave_out.encode())
    opened = partial(attached, Path(scenario.model), n_ctx=scenario.n_ctx, n_seq=scenario.n_seq, unified=scenario.unified, n_threads=1,
                     model_params={"n_gpu_layers": 0 if backend is None else -1})
    rng, n_read, logits, seen = np.random.default_rng(0), 0, [], []
    with ExitStack() as stack:
        if not scenario.tiers:
            stack.enter_context(patch.object(context, "has_tiers", lambda *_: False))
        contexts = [stack.enter_context(opened(KvOptions(attention_device="emulated", **options))) for options in (scenario.options, *scenario.beside)]
        assert all(run is not None for _, run in contexts), "the plane is on the device"
        seen.append(_counts(library))
        for step, n in enumerate(scenario.steps):
            tokens = rng.integers(260, 350, (scenario.n_seq, n))
            n_read -= scenario.rolls.get(str(step), 0)
            for context, run in contexts:
                if changes := scenario.changes.get(str(step)):
                    run.configure(run.options.with_(**changes))
                if what := scenario.arena.get(str(step)):
                    ARENA[what](run)
                if n_gone := scenario.rolls.get(str(step), 0):
                    _roll(context, scenario.n_seq, n_gone)
                if scenario.asks and library is not None:
                    library.emulated_leave_not_ready()
                found = context.decode(tokens.ravel(), [n_read + i for _ in range(scenario.n_seq) for i in range(n)],
                                       [seq for seq in range(scenario.n_seq) for _ in range(n)])
                logits.append(found.reshape(scenario.n_seq, n, -1))
            n_read += n
            seen.append(_counts(library))
        for _, run in contexts:
            check(run)
        hooked = sum(n_hooked(run) for _, run in contexts)
    added = np.diff(np.array(seen), axis=0)
    return Decoded(logits, {} if library is None else dict(zip(COUNTS, added.T)), hooked)


def on_the_backend(backend: Path, scenario: Scenario, folder: Path, **environment: str) -> Decoded:
    """`decode` in a process of its own."""
    given, out = folder / "scenario.json", folder / "decoded.npz"
    given.write_text(json.dumps(asdict(scenario)))
    whole(beside_the_backend(backend, "from support.backend_process import write; write(*sys.argv[1:])", backend, given, out, CUDA_VISIBLE_DEVICES="",
                             **environment))
    found = np.load(out)
    n_logits = len(scenario.steps) * (1 + len(scenario.beside))
    return Decoded([found[f"logits{i}"] for i in range(n_logits)], {name: found[name] for name in COUNTS}, int(found["n_hooked"]))


def write(backend: str, scenario: str, out: str) -> None:
    """What a scenario on the loaded backend gives."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # llama.cpp says much
    one = decode(Scenario(**json.loads(Path(scenario).read_text())), Path(backend))
    np.savez(out, **{f"logits{i}": found for i, found in enumerate(one.logits)}, **one.counts, n_hooked=one.n_hooked)


def beside_the_backend(backend: Path, code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own, on the backend. `arguments` are its sys.argv[1:]; it has Path."""
    begins = (f"import sys; from pathlib import Path; sys.path.insert(0, {str(TESTS)!r})\n"
              f"from support.backend_process import load; load(Path({str(backend)!r}))\n")
    return subprocess.run([sys.executable, "-c", begins + code, *map(str, arguments)], capture_output=True, text=True, env=os.environ | environment)


def whole(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


def _roll(context: Any, n_seq: int, n_gone: int) -> None:
    import llama_cpp

    for seq in range(n_seq):
        assert llama_cpp.llama_memory_seq_rm(context.memory, seq, 4, 4 + n_gone)
        llama_cpp.llama_memory_seq_add(context.memory, seq, 4 + n_gone, -1, -n_gone)


def load(backend: Path) -> None:
    """From now on llama.cpp has it."""
    from edgekv import _native

    _native.prepare()
    library = ctypes.CDLL(str(_native.lib_dir() / "libggml.so"))
    library.ggml_backend_load.restype = ctypes.c_void_p
    assert library.ggml_backend_load(str(backend).encode()), f"ggml does not take {backend}"


def _counts(library: ctypes.CDLL | None) -> list[int]:
    out = (ctypes.c_int64 * len(COUNTS))()
    if library is not None:
        library.emulated_counts(out)
    return list(out)
