"""Runs the parts, each in a process of its own with a limit of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from edgekv._native import core
from edgekv._native.device_calls import DeviceInfo
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import CudaUnavailable
from edgekv.models import geometry
from edgekv.planning import devices, proven
from edgekv.proof.report import Report, failures
from edgekv.proof.steps import PLANE, STEPS, HeadShape, Outcome, Part, Row, parts, replayed

ROUNDING = ("avx512bf16", "amx")
"""Instruction sets whose kernels for prompts round operands to bf16."""


def find_device() -> DeviceInfo:
    """The card to prove, or with EDGEKV_ATTENTION_DEVICE=emulated the emulated device. Raises CudaUnavailable if there is none."""
    kind = DeviceKind.CUDA
    if os.environ.get("EDGEKV_ATTENTION_DEVICE") == DeviceKind.EMULATED.value:
        kind = DeviceKind.EMULATED
    if (why := devices.why_no_gpu(kind)) is not None:
        raise CudaUnavailable(f"there is no card to test: {why}")
    if kind is DeviceKind.CUDA and (why := devices.cublas_problem()) is not None:
        raise CudaUnavailable(f"the card's tests multiply by cuBLAS, and {why}")
    return devices.devices(kind)[0]


def head_shape(model: Path | None) -> HeadShape:
    """Of the model's first layer that attends everything; without a model, of a common one. Raises ModelError."""
    if model is None:
        return HeadShape()
    g = geometry(model)
    il = next((il for il in range(g.n_layer) if g.n_head_kv[il] and not g.swa[il]), None)
    return HeadShape() if il is None else HeadShape(g.n_head[il], g.n_head_kv[il], g.head_dim_k)


MENDS: dict[str, tuple[dict[str, str], bool]] = {
    "without CUDA graphs": ({"GGML_CUDA_DISABLE_GRAPHS": "1"}, True),
    "without launches that overlap": ({"GGML_CUDA_PDL": "0"}, True),
    "waiting behind each node": ({"EDGEKV_DEVICE_SYNC": "1"}, True),
    "pinned at the start": ({"EDGEKV_PIN_AT_ONCE": "1"}, True),
    "without an arena": ({}, False),
}
"""How a case that failed runs again: variables, and whether it has an arena. Where one is right, its part of the engine is to blame."""


def prove(device: DeviceInfo, model: Path | None, path: Path, steps: tuple[str, ...] = STEPS, quick: bool = False,
          begins: Callable[[str], None] = lambda title: None) -> tuple[list[Row], str]:
    """Run the steps, keep the report in `path` and the verdict for this card; returns rows and the sentence. begins: called with each part's name
    before it. The first case of the plane that fails runs again (`MENDS`)."""
    shape = head_shape(model)
    report = Report(path, to_builtins(device), shape, steps, quick)
    again = False
    for part in parts(steps, quick, device.kind.value, device.index, shape, str(model or "")):
        begins(part.title)
        rows, seconds, log = run_part(part)
        if part.step == PLANE and _fail(rows) and not again:
            again = True
            rows.append(mended(part, begins))
        report.add(part, rows, seconds, log)
    if report.passed is not None:
        proven.keep(device, report.passed)
    return report.rows, report.finish()


def replay(path: Path, begins: Callable[[str], None] = lambda title: None) -> tuple[list[Row], str]:
    """Run the cases that failed in a report again, on the emulated device; returns their rows and a sentence. Raises ConfigError for a file that is no
    report or tells of no failure, CudaUnavailable without the emulated device."""
    name, shape, failed = failures(path)
    if (why := devices.why_no_gpu(DeviceKind.EMULATED)) is not None:
        raise CudaUnavailable(f"cases are replayed on the emulated device, which is not there: {why}")
    rows = list[Row]()
    for row in failed:
        if row["replay"]:
            part = replayed(row, shape)
            begins(part.title)
            rows += run_part(part)[0]
        else:
            rows.append({**row, "outcome": Outcome.SKIPPED.value, "said": f"cannot be replayed; there: {row['said']}"})
    tried = [row for row in rows if row["outcome"] != Outcome.SKIPPED.value]
    there = devices.devices(DeviceKind.EMULATED)[0].name
    return rows, f"{sum(_fail([row]) for row in tried)} of {len(tried)} cases that failed on {name} fail on the {there}"


def _fail(rows: list[Row]) -> bool:
    return any(Outcome(row["outcome"]).fails for row in rows)


def mended(part: Part, begins: Callable[[str], None] = lambda title: None) -> Row:
    """Run a case again in each way of `MENDS`, and say which is right."""
    right: list[str] = []
    for how, (variables, arena) in MENDS.items():
        begins(f"{part.title}, again {how}")
        if not _fail(run_part(replace(part, arena=arena), **variables)[0]):
            right.append(how)
    wrong = [how for how in MENDS if how not in right]
    told = [f"{word} {', '.join(named)}" for word, named in (("right", right), ("wrong", wrong)) if named]
    return Row(step=part.step, case=f"{part.name}, again", outcome=Outcome.TOLD.value, said="; ".join(told), replay={})


def run_part(part: Part, **variables: str) -> tuple[list[Row], float, str]:
    """(rows, seconds, what it wrote). The last row says so where the process did not end well. variables: of its environment."""
    begin, rows = time.monotonic(), list[Row]()
    with tempfile.TemporaryFile() as log:
        from_child, to_parent = os.pipe()
        with os.fdopen(from_child) as lines:
            try:
                child = subprocess.Popen([sys.executable, "-m", "edgekv.proof.child", json.dumps(to_builtins(part)), str(to_parent)],
                                         pass_fds=(to_parent,), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_reference() | os.environ | variables)
            finally:
                os.close(to_parent)
            late = threading.Timer(part.limit, child.kill)
            late.start()
            try:
                rows += [json.loads(line) for line in lines if line.endswith("\n")]
                status = child.wait()
            finally:
                late.cancel()
                child.kill()
                child.wait()
        log.seek(0)
        wrote = log.read().decode("utf-8", "replace")
    seconds = time.monotonic() - begin
    if status != 0:
        again = part.replay or ({"events": part.events} if part.step == PLANE else {})
        rows.append(Row(step=part.step, case=part.name, outcome=Outcome.KILLED.value, said=_ended(status, seconds, part, wrote), replay=again))
    return rows, seconds, wrote


def _reference() -> dict[str, str]:
    """The processor is what a card is compared with: where its fastest kernel for prompts rounds to bf16, that one would be the wrong one."""
    return {"EDGEKV_ISA": [isa for isa in core.isa_available() if isa not in ROUNDING][-1]}


def _ended(status: int, seconds: float, part: Part, wrote: str) -> str:
    last = next((line.strip() for line in reversed(wrote.splitlines()) if line.strip()), "it wrote nothing")
    if status == -signal.SIGKILL and seconds >= part.limit:
        return f"took longer than {part.limit:.0f} s; its last line: {last}"
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return f"{how} after {seconds:.0f} s; its last line: {last}"
