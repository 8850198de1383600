"""What `edgekv doctor --gpu` says of the emulated device with a fault: its verdict, the case that its report names, and what `--replay` of the report
finds, with the fault and without it. Where a kernel's case failed, the emulator's race detector replays it too."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import table
from .fault import VARIABLE, Fault
from .making import Place

COLUMNS = ("fault", "file", "verdict", "case", "said", "replayed", "without it", "race detector", "seconds")
FAILED = ("WRONG", "KILLED")


def of_a_card(fault: Fault) -> bool:
    return fault.room.startswith(("cuda ", "device "))


@dataclass(frozen=True)
class Doctor:
    """`emulated`: the emulated device of `place`."""

    place: Place
    folder: Path
    emulated: Path

    def run(self, number: int, device: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Of the native fault `number` (0: none)."""
        variables = os.environ | {VARIABLE: str(number), "EDGEKV_ATTENTION_DEVICE": "emulated", "EDGEKV_EMULATOR": str(device),
                                  "XDG_CACHE_HOME": str(self.folder / "cache")}
        done = subprocess.run([self.place.env / "bin" / "edgekv", "doctor", "--gpu", *words], env=variables, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"edgekv doctor --gpu {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done

    def row(self, fault: Fault, number: int) -> dict[str, str]:
        """The plane is asked where the kernels are right."""
        began, report = time.monotonic(), self.folder / f"{fault.name}.json"
        for step in ("kernels", "plane"):
            done = self.run(number, self.emulated, "--quick", "--only", step, "-o", str(report))
            content = json.loads(report.read_text())
            failed = [row for part in content["parts"] for row in part["rows"] if row["outcome"] in FAILED]
            assert bool(done.returncode) == bool(failed), f"{fault.name}: exit code {done.returncode}, {len(failed)} rows in its report"
            if failed:
                break
        first = failed[0] if failed else {"step": "", "case": "", "said": ""}
        replayed = without = race = ""
        if failed:
            replayed = _count(self.run(number, self.emulated, "--replay", str(report)))
            without = _count(self.run(0, self.emulated, "--replay", str(report)))
        if first["step"] == "kernels":
            alone = self.folder / "first.json"
            alone.write_text(json.dumps(content | {"parts": [{"rows": [first]}]}))
            races = self.run(number, emulator(self.place, self.folder, True), "--replay", str(alone))
            found = re.search(r"emulated device: (.*?) \(code at", races.stdout)
            race = re.sub(" at 0x[0-9a-f]+", "", found[1]) if found else "none"
        seconds = f"{time.monotonic() - began:.0f}"
        verdict = "WRONG" if failed else "right"
        return dict(zip(COLUMNS, (fault.name, fault.file, verdict, f"{first['step']}: {first['case']}" if failed else "", first["said"], replayed, without,
                                  race, seconds)))


def _count(done: subprocess.CompletedProcess[str]) -> str:
    """Of a replay: how many of its cases fail."""
    found = re.search(r"^(\d+ of \d+) cases that failed", done.stdout, re.MULTILINE)
    return found[1] if found else done.stderr.strip()[-200:]


def emulator(place: Place, folder: Path, races: bool) -> Path:
    """The library of the emulated device, built of the place's tree."""
    into = folder / ("races" if races else "emulated")
    for command in (["cmake", "-S", place.tree / "native" / "emulator", "-B", into, f"-DRACES={'ON' if races else 'OFF'}", "-DCMAKE_CXX_COMPILER=g++"],
                    ["cmake", "--build", into, "--parallel", "2"]):
        built = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if built.returncode:
            raise SystemExit(f"the emulated device with the faults was not built: {(built.stdout + built.stderr)[-4000:]}")
    return into / "libedgekv-emulated.so"


def ask(place: Place, folder: Path, faults: Iterable[tuple[int, Fault]], path: Path) -> int:
    """A row for each fault, in the table `path`, where other faults' rows stay. Returns 0 where each was found and replayed, and no case fails without it."""
    doctor = Doctor(place, folder, emulator(place, folder, False))
    rows, lost = table.read(path), []
    for number, fault in faults:
        row = rows[fault.name] = doctor.row(fault, number)
        table.keep(path, COLUMNS, rows.values())
        print(*row.values(), sep="  ", flush=True)
        if row["verdict"] != "WRONG" or row["replayed"].startswith("0 ") or not row["without it"].startswith("0 "):
            lost.append(fault.name)
    print(f"not found or not replayed: {', '.join(lost)}" if lost else "all were found and replayed")
    return int(bool(lost))
