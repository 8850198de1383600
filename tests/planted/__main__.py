"""`python tests/planted`: which planted faults the suite finds, and in which test."""

import argparse
import json
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(ROOT / "tests")
    runpy.run_module("planted", run_name="__main__", alter_sys=True)
    sys.exit()

from . import doctor, table  # noqa: E402
from .fault import Fault  # noqa: E402
from .making import Place, environment, planted  # noqa: E402
from .native_faults import NATIVE  # noqa: E402
from .python_faults import PYTHON  # noqa: E402
from .rooms import ROOMS, gone  # noqa: E402
from .running import Ran, run  # noqa: E402

NUMBERS = {fault: number for number, fault in enumerate(NATIVE, 1)}
COLUMNS = ("fault", "file", "room", "outcome", "test", "seconds")
NOT_IN_ROOM, NOT_FOUND = "not in its room", "not found"


class Suite:
    """The tests with a fault. `folder` keeps which of them pass, and fail, without one, as far as somebody asked."""

    def __init__(self, folder: Path, limit_s: float):
        self._folder, self._limit_s = folder, limit_s
        self._file = folder / "clean.json"
        self._passes: dict[str, bool] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        self._places: dict[bool, Place] = {}

    def place(self, native: bool) -> Place:
        """What native faults are planted in, or faults of Python."""
        if native not in self._places:
            self._places[native] = planted(self._folder, ROOT, {number: fault for fault, number in NUMBERS.items()}) if native else \
                environment(Place(self._folder / "python", ROOT))
        return self._places[native]

    def _passes_without(self, test: str, native: bool) -> bool:
        key = f"{test}{' (native)' if native else ''}"
        if key not in self._passes:
            self._passes[key] = not run(self.place(native), [test.removeprefix("tests/")], 0, self._limit_s).failed
            self._file.write_text(json.dumps(self._passes, indent=1))
        return self._passes[key]

    def find(self, fault: Fault, tests: tuple[str, ...]) -> Ran:
        """Run tests until one fails that passes without the fault."""
        place, native = self.place(fault.is_native), fault.is_native
        while True:
            fail_anyway = [test.removesuffix(" (native)") for test, passes in self._passes.items() if not passes and test.endswith(" (native)") == native]
            with _planted(place, fault):
                ran = run(place, tests, NUMBERS.get(fault, 0), self._limit_s, fail_anyway)
            if ran.failed and ran.failed[0] in fail_anyway:
                raise SystemExit(f"{ran.failed[0]} cannot be left out; {place.env / 'output'} says why it fails, with a fault and without one")
            if not ran.failed or self._passes_without(ran.failed[0], native):
                return ran


def cost(fault: Fault) -> tuple[bool, int]:
    """Rooms stand in the order of their cost."""
    return fault.is_native, list(ROOMS).index(fault.room)


@contextmanager
def _planted(place: Place, fault: Fault) -> Iterator[None]:
    """A native fault is there already."""
    if fault.is_native:
        yield
        return
    text = fault.check(place.tree)
    place.write(fault.file, text.replace(fault.old, fault.new))
    try:
        yield
    finally:
        place.write(fault.file, text)


def rest(room: str) -> tuple[str, ...]:
    """What is not the room's. Tests of single programs are the room's file."""
    mine = {test.partition("::")[0] for test in ROOMS[room]}
    found = [path.relative_to(ROOT / "tests").as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return tuple(path for path in found if path not in mine and path.split("/")[0] not in mine)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/planted", description="Which planted faults the suite finds, and in which test.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these faults or rooms; without one all of them")
    parser.add_argument("--list", action="store_true", help="list the faults, and check that each still applies")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="keep the table's rows, and take up where the last run stopped")
    parser.add_argument("--rest", action="store_true", help="run all other tests on the faults that their room's tests do not find")
    parser.add_argument("--doctor", action="store_true", help="ask `edgekv doctor --gpu`, not the tests, about the faults of a card and its plane")
    parser.add_argument("--minutes", type=float, default=240, help="begin no fault after so many minutes (default: 240)")
    parser.add_argument("--limit", type=float, default=300, help="a test that takes so many seconds hangs (default: 300)")
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("results.csv"), help="where the outcomes stand (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgekv-planted", help="for trees and environments (default: %(default)s)")
    given = parser.parse_args()
    faults = [*PYTHON, *NATIVE]
    for fault in faults:
        fault.check(ROOT)
    if unknown := set(given.names) - {fault.name for fault in faults} - set(ROOMS):
        parser.error(f"there is no fault or room {', '.join(sorted(unknown))}")
    chosen = [fault for fault in faults if not given.names or fault.name in given.names or fault.room in given.names]
    if given.list:
        for fault in chosen:
            print(f"{fault.name:36}{fault.room:16}{fault.file}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the tests too
    given.folder.mkdir(parents=True, exist_ok=True)
    suite, began = Suite(given.folder.resolve(), given.limit), time.monotonic()
    if given.doctor:
        numbered = [(NUMBERS[fault], fault) for fault in chosen if doctor.of_a_card(fault)]
        return doctor.ask(suite.place(native=True), given.folder.resolve(), numbered, given.table.with_name("doctor.csv"))
    known = table.read(given.table) if given.goes_on else {}
    rows = {name: row for name, row in known.items() if not gone([row["test"].removeprefix("tests/")])}  # the others are asked again
    for fault in sorted(chosen, key=cost):
        before = rows.get(fault.name, {}).get("outcome")
        if before and not (given.rest and before == NOT_IN_ROOM):
            continue
        if time.monotonic() - began > 60 * given.minutes:
            break
        ran = None if before else suite.find(fault, ROOMS[fault.room])
        seconds = ran.seconds if ran else float(rows[fault.name]["seconds"])
        if given.rest and (ran is None or not ran.failed):
            ran = suite.find(fault, rest(fault.room))
            seconds += ran.seconds
        assert ran is not None
        outcome = ran.why if ran.failed else NOT_FOUND if given.rest else NOT_IN_ROOM
        rows[fault.name] = dict(zip(COLUMNS, (fault.name, fault.file, fault.room, outcome, ran.failed[0] if ran.failed else "", f"{seconds:.0f}")))
        table.keep(given.table, COLUMNS, [rows[one.name] for one in faults if one.name in rows])
        print(f"{fault.name:36}{outcome:16}{seconds:5.0f} s  {rows[fault.name]['test']}", flush=True)
    lost = [fault.name for fault in chosen if rows.get(fault.name, {}).get("outcome") in (NOT_IN_ROOM, NOT_FOUND)]
    n_done = sum(fault.name in rows for fault in chosen)
    print(f"{n_done - len(lost)} of {n_done} faults found, {len(chosen) - n_done} not tried{''.join(f'{chr(10)}not found: {name}' for name in lost)}")
    return int(bool(lost) or n_done < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
