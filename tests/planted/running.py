"""One process of pytest with a fault, or without one."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .fault import VARIABLE
from .making import Place


@dataclass(frozen=True)
class Ran:
    seconds: float
    failed: list[str]
    """Tests, in their order; one that hung or ended the process is the last."""
    why: str
    """Of the first: failed, hung or crashed; or passed."""


def run(place: Place, tests: Sequence[str], number: int, limit_s: float, without: Sequence[str] = ()) -> Ran:
    """Run tests (paths in tests/) with native fault `number` (0: none) on. `limit_s`: of one test. `without`: tests left out. Children that a killed test
    leaves behind end with it."""
    watch = place.env / "watch"
    watch.write_text("")
    variables = os.environ | {VARIABLE: str(number), "PLANTED_WATCH": str(watch), "PLANTED_LIMIT": str(limit_s),
                              "PYTHONPATH": str(Path(__file__).parent), "PATH": f"{place.env / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    if (lab := place.installed("edgekv/lab")).is_dir():
        variables["PLANTED_LAB"] = str(lab)
    command = [place.python, "-m", "pytest", "-p", "watch", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-q", "-x",
               *(part for test in without for part in ("--deselect", test)), *(f"tests/{test}" for test in tests)]
    began = time.monotonic()
    with (place.env / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=place.tree, env=variables, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - began
    told = [line.partition(" ")[::2] for line in watch.read_text().splitlines()]
    failed = list(dict.fromkeys(test for what, test in told if what == "failed"))
    if told and told[-1][0] == "at":
        hung = "Timeout (" in (place.env / "output").read_text(errors="replace")
        return Ran(seconds, [*failed, told[-1][1]], "failed" if failed else "hung" if hung else "crashed")
    if not told or code not in (0, 1, 5) and not failed:
        raise SystemExit(f"pytest ran no test of {', '.join(tests)}; {place.env / 'output'} says why")
    return Ran(seconds, failed, "failed" if failed else "passed")
