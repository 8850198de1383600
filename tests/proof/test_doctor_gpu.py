"""`edgekv doctor --gpu` on the emulated device: the rehearsal of what it does on a card."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv.cli import doctor_gpu
from edgekv.common.errors import EXIT_LIBRARY, EXIT_OK, EXIT_USAGE
from edgekv.proof.report import MOST_BYTES, Report
from edgekv.proof.steps import STEPS, Outcome, Part

COMMAND = [str(Path(sys.executable).with_name("edgekv")), "doctor"]


@pytest.fixture
def machine(emulator: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a command on the emulated device, with a cache of its own."""
    return os.environ | {"EDGEKV_ATTENTION_DEVICE": "emulated", "EDGEKV_EMULATOR": str(emulator), "XDG_CACHE_HOME": str(tmp_path)}


def doctor(machine: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], env=machine, capture_output=True, text=True, timeout=300)


def test_facts_and_rates(machine, emulator, tmp_path):
    out = tmp_path / "report.json"
    done = doctor(machine, "--gpu", "--only", "facts", "--only", "rates", "-o", str(out))
    assert done.returncode == EXIT_OK, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["step", "case", "outcome"] and lines[1].split()[:2] == ["facts", "card"]
    assert any(line.startswith("facts  library") and line.endswith(str(emulator)) for line in lines)
    assert "Nothing was wrong on emulated device" in done.stdout and done.stderr.split() == ["facts", "rates"]
    report = json.loads(out.read_text())
    assert report["finished"] and [part["part"] for part in report["parts"]] == ["facts", "rates"] and report["device"]["kind"] == "emulated"
    assert json.loads(doctor(machine, "--gpu", "--only", "facts", "-o", "json").stdout)["steps"] == ["facts"]


def test_no_card(machine):
    for environment in ({"EDGEKV_ATTENTION_DEVICE": "auto"}, {"EDGEKV_EMULATOR": ""}):
        done = doctor(machine | environment, "--gpu")
        assert done.returncode == EXIT_LIBRARY and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
        assert "there is no card to test: " in done.stderr


def test_options_that_need_gpu(machine):
    for words in (["--quick"], ["--only", "facts"], ["-o", "report.json"]):
        done = doctor(machine, *words)
        assert done.returncode == EXIT_USAGE and "go with --gpu" in done.stderr


def test_steps_are_those_of_the_product():
    assert doctor_gpu.STEPS == STEPS


def test_a_report_is_bounded(tmp_path):
    out = tmp_path / "report.json"
    report = Report(out, {"name": "a card"}, STEPS, False)
    row = {"step": "facts", "case": "library", "outcome": Outcome.WRONG.value, "said": "x" * 10_000}
    for _ in range(4):
        report.add(Part("facts", "facts", 1.0), [row] * 1000, 0.1, "y" * 100_000)
        assert out.stat().st_size <= MOST_BYTES
    assert "WRONG on a card: facts" in report.finish() == json.loads(out.read_text())["said"]
