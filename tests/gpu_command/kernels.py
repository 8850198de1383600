"""Stages tests, sanitize and bench for the kernels: native/tests/device/test_*.cpp, built for the card and run on it, once more
under compute-sanitizer, and those that can, to measure. In a rehearsal the emulated device takes the card's place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .machine import tool
from .session import Session
from .state import FAILED, OK, UNFINISHED, append
from .steps import Outcome, Step

SANITIZERS = ("memcheck", "racecheck")
FIRST = ("memcheck-test_engine", "racecheck-test_attend_device", "racecheck-test_sample_device")
"""The runs under a sanitizer that say most."""
BENCH_CELLS = (8192, 32768, 131072)
READS = "test_reads_device"
"""Measures over sizes of home, not behind cells: all in one step."""
READ_MIB = (128, 16384)


def names(session: Session) -> list[str]:
    """The names of every kernel test; the emulator's own are none on a card."""
    found = sorted(path.stem for path in (session.root / "native" / "tests" / "device").glob("test_*.cpp"))
    if session.device == "cuda":
        found = [name for name in found if not name.startswith("test_emulator") and '"emulator/' not in _source(session, name)]
    return found


def _source(session: Session, name: str) -> str:
    return (session.root / "native" / "tests" / "device" / f"{name}.cpp").read_text()


def steps(session: Session) -> list[Step]:
    key = f"{session.build_sources} {session.device}"
    made = [Step("tests", "kernels", lambda s: _build(session, s), 300, least_s=30, key=key, resumes=True)]
    made += [Step("tests", name, lambda s, name=name: _run(session, name, s), 120, needs=("tests/kernels",), key=key)
             for name in names(session)]
    return made


def sanitize_steps(session: Session) -> list[Step]:
    """Those of FIRST lead."""
    key = f"{session.build_sources} {session.device}"
    found = [Step("sanitize", f"{which}-{name}", lambda s, name=name, which=which: _sanitize(session, which, name, s), 150,
                  least_s=20, needs=("tests/kernels",), key=key)
             for which in SANITIZERS for name in names(session)]
    return sorted(found, key=lambda step: FIRST.index(step.name) if step.name in FIRST else len(FIRST))


def bench_steps(session: Session) -> list[Step]:
    """Steps of the programs that measure their kernels alone: `test_... --bench CELLS`, and last the reads of home: `--bench MIB...`."""
    key = f"{session.build_sources} {session.device}"
    benches = [name for name in names(session) if '"--bench"' in _source(session, name)]
    made = [Step("bench", f"{name}-{n_cells}", lambda s, name=name, n_cells=n_cells: _bench(session, name, n_cells, s), 60,
                 least_s=15, needs=("tests/kernels",), key=key)
            for name in benches if name != READS for n_cells in BENCH_CELLS]
    made += [Step("bench", name, lambda s: _bench_reads(session, s), 120, least_s=45, needs=("tests/kernels",), key=key)
             for name in benches if name == READS]
    return made


def reads(text: str) -> Iterator[dict[str, Any]]:
    """The rows that `test_reads_device --bench` printed: `what` was read, by which `way`, over how many `mib` (rows: and how many were
    asked for), `gb_per_s` and `rows_per_s`. A line that is cut off is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield {name: row[name] for name in ("what", "way", "mib", "gb_per_s", "rows_per_s")} | {"asked_mib": row.get("asked_mib")}


def folder(session: Session) -> Path:
    return session.state.folder / f"kernels-{session.device}"


def _build(session: Session, seconds: float) -> Outcome:
    build, native = folder(session), session.root / "native" / "tests" / "device"
    if session.device == "cuda":
        native = session.root / "tests" / "gpu_command" / "kernels"
        options = [f"-DCMAKE_CUDA_ARCHITECTURES={session.arch}-real", *session.toolkit.cmake]
    else:
        options = []
    configure = ["cmake", "-S", native, "-B", build, "-G", "Ninja", *options]
    done = session.execute("kernels", configure, min(60, seconds))
    if not done.ok:
        return session.outcome("kernels", done)
    # a program that does not compile does not keep the others from running
    compile_ = ["cmake", "--build", build, "--parallel", str(session.n_cores), "--", "-k", "0"]
    done = session.execute("kernels", compile_, seconds - done.seconds)
    missing = [name for name in names(session) if not (build / name).exists()]
    if done.code is None:
        return Outcome(UNFINISHED, f"{len(missing)} of {len(names(session))} to build")
    if not done.ok:
        session.outcome("kernels", done)  # shows its last lines
    if len(missing) == len(names(session)):
        return Outcome(FAILED, "no kernel test could be built (logs: kernels.log)")
    note = f"; NOT built: {', '.join(missing)}" if missing else ""
    return Outcome(OK, f"{len(names(session)) - len(missing)} programs{note}")


def _run(session: Session, name: str, seconds: float) -> Outcome:
    program = folder(session) / name
    if not program.exists():
        return Outcome(FAILED, "could not be built (logs: kernels.log)")
    # "all": every case; an emulated device is too slow for those that have more, and so is a sanitizer
    done = session.execute(name, [program, "all"] if session.device == "cuda" else [program], seconds)
    return session.outcome(name, done)


def _bench(session: Session, name: str, n_cells: int, seconds: float) -> Outcome:
    done = session.execute(f"{name}-{n_cells}", [folder(session) / name, "--bench", str(n_cells)], seconds)
    for line in done.tail.splitlines()[-24:]:
        print(f"    {line}", flush=True)
    return session.outcome(f"{name}-{n_cells}", done)


def _bench_reads(session: Session, seconds: float) -> Outcome:
    """Keeps the rows of a program that fails or is stopped, too: each was checked before its line was printed."""
    done = session.execute(f"{READS}-bench", [folder(session) / READS, "--bench", *map(str, READ_MIB)], seconds)
    rows = list(reads(done.tail))
    for row in rows:
        append(session.state.reads_file, row)
        print(f"    {row['what']}, {row['way']}, over {row['mib']} MiB: {row['gb_per_s']:.2f} GB/s", flush=True)
    if done.ok and not rows:
        return Outcome(FAILED, f"no row in what it printed (logs: {READS}-bench.log)")
    return session.outcome(f"{READS}-bench", done)


def _sanitize(session: Session, sanitizer: str, name: str, seconds: float) -> Outcome:
    """A step that is clean as far as it came counts as done, and says so: a sanitizer is slow, and time is short."""
    program, checker = folder(session) / name, tool("compute-sanitizer")
    if checker is None:
        return Outcome(FAILED, "compute-sanitizer is not installed here")
    if not program.exists():
        return Outcome(FAILED, "could not be built (logs: kernels.log)")
    command = [checker, "--tool", sanitizer, "--error-exitcode", "86", "--print-limit", "20", program]
    log = f"{sanitizer}-{name}"
    done = session.execute(log, command, seconds)
    if done.code is None:
        clean = "ERROR SUMMARY" not in done.tail and "=========     at " not in done.tail and "========= Error" not in done.tail
        found = "nothing found until then" if clean else "errors"
        return Outcome(OK if clean else FAILED, f"stopped after {done.seconds:.0f} s, {found}")
    return session.outcome(log, done)
