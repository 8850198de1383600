"""`python tests/planted`: which planted faults the suite finds, and in which test."""

import argparse
import csv
import json
import runpy
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

from .fault import Fault  # noqa: E402
from .making import Place, environment, planted  # noqa: E402
from .native_faults import NATIVE  # noqa: E402
from .python_faults import PYTHON  # noqa: E402
from .rooms import ROOMS  # noqa: E402
from .running import Ran, run  # noqa: E402

NUMBERS = {fault: number for number, fault in enumerate(NATIVE, 1)}
COLUMNS = ("fault", "file", "room", "outcome", "test", "seconds")
NOT_IN_ROOM, NOT_FOUND = "not in its room", "not found"
FIRST_S = 900
"""A test may take so long where nothing was measured yet: it may be the one that builds programs."""
LEAST_S = 60


class Suite:
    """The tests without faults, and with one. What was measured without is kept in `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = folder / "clean.json"
        self.clean: dict[str, dict] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        self._places: dict[bool, Place] = {}

    def _place(self, native: bool) -> Place:
        if native not in self._places:
            self._places[native] = planted(self._folder, ROOT, {number: fault for fault, number in NUMBERS.items()}) if native else \
                environment(Place(self._folder / "python", ROOT))
        return self._places[native]

    def _without(self, room: str, tests: tuple[str, ...], native: bool) -> dict:
        """The time of these tests without a fault, and those that fail: they find nothing."""
        key = f"{room}{' (native)' if native else ''}"
        if key not in self.clean:
            ran = run(self._place(native), tests, 0, FIRST_S, stop=False)
            self.clean[key] = {"seconds": round(ran.seconds, 1), "failed": ran.failed}
            self._file.write_text(json.dumps(self.clean, indent=1))
            print(f"{key}: {ran.seconds:.0f} s without a fault{''.join(f'; left out, because it fails: {test}' for test in ran.failed)}", flush=True)
        return self.clean[key]

    def find(self, fault: Fault, room: str, tests: tuple[str, ...]) -> Ran:
        known = self._without(room, tests, fault.is_native)
        place = self._place(fault.is_native)
        with _planted(place, fault):
            limit_s = max(LEAST_S, 3 * known["seconds"])  # no test takes longer than all together; others may be busy
            return run(place, tests, NUMBERS.get(fault, 0), limit_s, known["failed"])

    def cost(self, fault: Fault) -> tuple[float, int]:
        """Of a fault that is not found, as far as it is known; rooms stand in the order of their cost."""
        known = self.clean.get(f"{fault.room}{' (native)' if fault.is_native else ''}")
        return (known["seconds"] if known else 1000 * fault.is_native), list(ROOMS).index(fault.room)


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
    parser.add_argument("--minutes", type=float, default=240, help="begin no fault after so many minutes (default: 240)")
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
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = {row["fault"]: row for row in csv.DictReader(given.table.open())} if given.goes_on and given.table.is_file() else {}
    suite, began = Suite(given.folder.resolve()), time.monotonic()
    for fault in sorted(chosen, key=suite.cost):
        before = rows.get(fault.name, {}).get("outcome")
        if before and not (given.rest and before == NOT_IN_ROOM):
            continue
        if time.monotonic() - began > 60 * given.minutes:
            break
        ran = None if before else suite.find(fault, fault.room, ROOMS[fault.room])
        seconds = ran.seconds if ran else float(rows[fault.name]["seconds"])
        if given.rest and (ran is None or not ran.failed):
            ran = suite.find(fault, f"all but {fault.room}", rest(fault.room))
            seconds += ran.seconds
        assert ran is not None
        outcome = ran.why if ran.failed else NOT_FOUND if given.rest else NOT_IN_ROOM
        rows[fault.name] = dict(zip(COLUMNS, (fault.name, fault.file, fault.room, outcome, ran.failed[0] if ran.failed else "", f"{seconds:.0f}")))
        keep(given.table, [rows[one.name] for one in faults if one.name in rows])
        print(f"{fault.name:36}{outcome:16}{seconds:5.0f} s  {rows[fault.name]['test']}", flush=True)
    lost = [fault.name for fault in chosen if rows.get(fault.name, {}).get("outcome") in (NOT_IN_ROOM, NOT_FOUND)]
    n_done = sum(fault.name in rows for fault in chosen)
    print(f"{n_done - len(lost)} of {n_done} faults found, {len(chosen) - n_done} not tried{''.join(f'{chr(10)}not found: {name}' for name in lost)}")
    return int(bool(lost) or n_done < len(chosen))


def keep(table: Path, rows: list[dict]) -> None:
    """Whole at any time."""
    part = table.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(table)


if __name__ == "__main__":
    sys.exit(main())
