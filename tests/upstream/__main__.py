"""`python tests/upstream`: upstream's own tests of its server, of the pinned source, on `edgekv serve` in each mode, by name."""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
if not __package__:  # started as a folder: again, as a package
    sys.path[:1] = [str(ROOT / "tests"), str(ROOT / "patches")]
    runpy.run_module("upstream", run_name="__main__", alter_sys=True)
    sys.exit()

from apply import fetch_sdist, unpack  # noqa: E402 - patches/apply.py, which is in no package

from edgekv.server.server_options import LOOPBACK, free_port  # noqa: E402

from . import models  # noqa: E402

OUT = {
    "test_embedding": "embedding models, which edgekv serve refuses", "test_rerank": "the same",
    "test_router": "one EdgeKV for each model",
}
WANTED = ("tools/server/tests", "tools/mtmd/test-1.jpeg")
Outcome = tuple[str, str]
"""passed, failed or skipped, and why."""


def asked(mode: str, file: Path, folder: Path, chosen: str | None) -> dict[str, Outcome]:
    """The outcomes of a file's tests, by name."""
    run = folder / f"{mode.partition('=')[0]}-{file.stem}"
    run.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV_", "LLAMA_", "XDG_"))}
    variables = {"HOME": str(folder), "PORT": str(free_port(LOOPBACK, 0)), "UPSTREAM_MODE": mode, "UPSTREAM_MODELS": str(folder / "models"),
                 "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT / "tests"), str(file.parent.parent)])}
    command = [sys.executable, "-m", "pytest", "-p", "presets", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-q", "-m", "not slow",
               f"--junitxml={run / 'report.xml'}", f"--basetemp={run / 'tmp'}", *(["-k", chosen] if chosen else []), f"unit/{file.name}"]
    with (run / "output").open("w") as output:
        subprocess.run(command, cwd=file.parent.parent, env=clean | variables, stdout=output, stderr=output, check=False)
    found = {}
    for case in ElementTree.parse(run / "report.xml").iter("testcase"):
        told = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        state = "passed" if told is None else "skipped" if told.tag == "skipped" else "failed"
        reason = "" if told is None else re.sub(r" at 0x\w+", "", " ".join(told.get("message", "").split()))
        found[f"{file.stem}::{case.get('name')}"] = state, reason[:200]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/upstream", description="Upstream's tests of its server on edgekv serve, by name.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these files, such as test_basic; without one all of them")
    parser.add_argument("--mode", nargs="+", choices=("off", "exact", "sparse"), default=["off", "exact", "sparse"])
    parser.add_argument("--server", type=Path, help="llama-server of the pinned source, without our patches, to compare with")
    parser.add_argument("--source", type=Path, help="the pinned sdist, or llama.cpp's tree; without it the sdist is fetched")
    parser.add_argument("-k", dest="chosen", metavar="EXPRESSION", help="these tests, as pytest chooses them")
    parser.add_argument("--jobs", type=int, default=2, help="files of tests at the same time, each with servers of its own (default: 2)")
    given = parser.parse_args()
    modes = [*([f"plain={given.server.resolve()}"] if given.server else []), *given.mode]
    for name, why in OUT.items():
        print(f"left out: {name} ({why})")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        models.write(folder / "models")
        work = []
        unpack(given.source or fetch_sdist(), folder / "pinned", WANTED)
        for mode in modes:  # a tree for each: tests write into it
            tree = Path(shutil.copytree(folder / "pinned", folder / mode.partition("=")[0]))
            (tree / "tools/server/tests/tmp").mkdir()  # where theirs keep what they fetch
            files = sorted((tree / "tools/server/tests/unit").glob("test_*.py"))
            work += [(mode, file) for file in files if file.stem not in OUT and (not given.names or file.stem in given.names)]
        with ThreadPoolExecutor(given.jobs) as pool:
            answers = pool.map(lambda job: (job[0], asked(*job, folder, given.chosen)), work)
            found: dict[str, dict[str, Outcome]] = {}
            for mode, outcomes in answers:
                for name, outcome in outcomes.items():
                    found.setdefault(name, {})[mode] = outcome
    return report(modes, found)


def report(modes: list[str], found: dict[str, dict[str, Outcome]]) -> int:
    """Print the table and, by name, where a mode differs from the first column; 1 if any does."""
    heads = [mode.partition("=")[0] for mode in modes]
    print(f"\n{'':90}" + "".join(f"{head:>9}" for head in heads))
    differs = []
    for name, by_mode in sorted(found.items()):
        outcomes = [by_mode.get(mode, ("missing", "")) for mode in modes]
        print(f"{name[:88]:90}" + "".join(f"{state:>9}" for state, _ in outcomes))
        differs += [(name, head, outcomes[0], outcome) for head, outcome in zip(heads[1:], outcomes[1:], strict=True) if outcome != outcomes[0]]
    for state in ("passed", "failed", "skipped"):
        print(f"{state:90}" + "".join(f"{Counter(by_mode.get(mode, ('', ''))[0] for by_mode in found.values())[state]:9}" for mode in modes))
    for name, head, (was, why), (state, reason) in differs:
        print(f"\n{name}\n  {heads[0]}: {was} {why}\n  {head}: {state} {reason}")
    return int(any(was != state for *_, (was, _), (state, _) in differs))


if __name__ == "__main__":
    sys.exit(main())
