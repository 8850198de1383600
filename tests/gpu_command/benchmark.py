"""Stage bench: the models, then the columns of the table, the most valuable first. Each column is a process of its own (rows.py) that
appends a row for each depth: whatever ends it costs one row."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .session import Session
from .state import OK, identity
from .steps import Outcome, Step
from .targets import EXACT, HOST, SPARSE, STOCK, size

MIB, GIB = 1 << 20, 1 << 30
DEPTHS = (4096, 8192, 16384, 32768, 65536, 131072)
CONSUMER_LINK = 25e9
"""Bytes per second: pinned host-to-device copies over PCIe 4 x16 come to 22 to 25 GB/s."""


@dataclass(frozen=True)
class Job:
    """One column of one model. `limit_s` is its longest time."""

    shape: str
    column: str
    budget: int | None = None
    depths: tuple[int, ...] = DEPTHS
    link: float | None = None
    limit_s: float = 200

    @property
    def name(self) -> str:
        parts = [self.shape, self.column.replace(", ", "-").replace(" ", "-"),
                 size(self.budget).replace(" ", "") if self.budget else "",
                 f"link{self.link / 1e9:g}" if self.link else "",
                 "" if self.depths == DEPTHS else "at" + "+".join(str(depth) for depth in self.depths)]
        return "-".join(part for part in parts if part)


def jobs(model: bool) -> list[Job]:
    """Columns in order of value. `model`: whether the default model is there."""
    big = "llama-3-8b"
    made = [
        Job(big, STOCK), Job(big, SPARSE, GIB), Job(big, EXACT, GIB),
        # deep contexts on the processor take long, and their speed is known
        Job(big, HOST, depths=(4096, 32768, 131072)),
        Job(big, SPARSE, 512 * MIB), Job(big, SPARSE, 2 * GIB), Job(big, EXACT, 2 * GIB), Job(big, EXACT, 512 * MIB),
        Job(big, SPARSE, GIB, (32768, 131072), CONSUMER_LINK), Job(big, "stock, q8_0"),
        Job(big, HOST, depths=(8192, 16384, 65536)),
    ]
    for shape in ("qwen3-0.6b", "llama-3.2-3b"):
        made += [Job(shape, STOCK), Job(shape, SPARSE, GIB), Job(shape, EXACT, GIB), Job(shape, HOST, depths=(32768, 131072)),
                 Job(shape, SPARSE, 512 * MIB), Job(shape, EXACT, 512 * MIB)]
    if model:
        depths = (4096, 7168)  # the model was trained for this length
        made[5:5] = [Job("default", column, budget, depths, limit_s=60)
                     for column, budget in ((STOCK, None), (SPARSE, 32 * MIB), (EXACT, 32 * MIB), (HOST, None))]
    return made


def rehearsed() -> list[Job]:
    """The same path on a machine without a GPU: a tiny model, shallow."""
    depths = (512, 1024)
    return [Job("tiny", STOCK, None, depths, limit_s=60), Job("tiny", SPARSE, 4 * MIB, depths, limit_s=60),
            Job("tiny", EXACT, 4 * MIB, depths, limit_s=60), Job("tiny", SPARSE, 4 * MIB, depths, CONSUMER_LINK, limit_s=60),
            Job("tiny", HOST, None, depths, limit_s=60), Job("tiny", "stock, q8_0", None, depths, limit_s=60)]


def steps(session: Session) -> list[Step]:
    wanted = jobs((session.models / "default.gguf").exists()) if session.device == "cuda" else rehearsed()
    made: list[Step] = []
    written: set[str] = set()
    for job in wanted:
        if job.shape not in written and job.shape != "default":
            written.add(job.shape)
            made.append(Step("bench", f"model-{job.shape}", lambda s, job=job: _model(session, job.shape, s), 180, least_s=20,
                             needs=("build/check",)))
        needs = ("build/check",) if job.shape == "default" else ("build/check", f"bench/model-{job.shape}")
        made.append(Step("bench", job.name, lambda s, job=job: _measure(session, job, s), job.limit_s, least_s=25, needs=needs,
                         resumes=True, key=f"{session.sources} {session.device}"))
    return made


def _model(session: Session, shape: str, seconds: float) -> Outcome:
    path = session.models / f"{shape}.gguf"
    if path.exists():
        return Outcome(OK, "there already")
    deepest = max(DEPTHS) + 4096
    command = [session.python.parent / "edgekv", "models", "synth", shape, "--type", "q4_0", "--ctx-train", str(deepest),
               "--output", path]
    name = f"model-{shape}"
    return session.outcome(name, session.execute(name, command, seconds))


def _measure(session: Session, job: Job, seconds: float) -> Outcome:
    rows = session.state.rows_file
    states = _states(session)
    for other in states.glob("*.bin"):  # a filled cache is gigabytes; only the model at hand needs its own
        if other.stem != job.shape:
            other.unlink()
    command = [session.python, session.root / "tests" / "gpu_command" / "rows.py", "--model", session.models / f"{job.shape}.gguf",
               "--label", job.shape, "--column", job.column, "--device", session.device,
               "--depths", ",".join(map(str, job.depths)),
               "--rows", rows, "--state", states / f"{job.shape}.bin"]
    if job.budget:
        command += ["--vram", str(job.budget)]
    if job.link:
        command += ["--link", str(job.link)]
    if session.device != "cuda":
        command += ["--steps", "8", "--warmup", "8", "--prompt", "128", "--threads", "1"]
    done = session.execute(f"rows-{job.name}", command, seconds)
    outcome = session.outcome(f"rows-{job.name}", done)
    mine = [row for row in session.state.rows() if _is_of(row, job, session.device)]
    note = "" if outcome.status == OK else f"; {outcome.note}"
    return Outcome(outcome.status, f"{len(mine)} of {len(job.depths)} rows{note}")


def _states(session: Session) -> Path:
    """The folder of filled caches between two columns. It is in memory where there is plenty: they have up to 16 GiB."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 40 * GIB:
        folder = memory / f"edgekv-gpu-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        return folder
    return session.state.path("states", "x").parent


def _is_of(row: dict, job: Job, device: str) -> bool:
    label = f"emulated {job.link / 1e9:g} GB/s" if job.link else None
    return any(identity(row) == (job.shape, job.column, job.budget, label, depth, device) for depth in job.depths)
