"""`edgekv doctor --gpu` on the emulated device: the rehearsal of what it does on a card."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.native_build import NATIVE

from edgekv._native import core
from edgekv.cli import doctor_gpu
from edgekv.common.errors import EXIT_LIBRARY, EXIT_OK, EXIT_RUNTIME, EXIT_USAGE
from edgekv.measure.decoder import Decoder
from edgekv.proof.models import small_model
from edgekv.proof.plane import OPTIONS, Walk
from edgekv.proof.report import MOST_BYTES, Report
from edgekv.proof.run import ROUNDING, _reference, mended
from edgekv.proof.speed import EMULATED_DEPTHS, MODES
from edgekv.proof.steps import EXACT, PLANE, SPARSE_ALL, SPARSE_TENTH, STEPS, HeadShape, Outcome, Part

COMMAND = [str(Path(sys.executable).with_name("edgekv")), "doctor"]


@pytest.fixture
def machine(emulator: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a command on the emulated device, with a cache of its own."""
    return os.environ | {"EDGEKV_ATTENTION_DEVICE": "emulated", "EDGEKV_EMULATOR": str(emulator), "XDG_CACHE_HOME": str(tmp_path)}


def doctor(machine: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], env=machine, capture_output=True, text=True, timeout=1200)


def test_facts_and_rates(machine, emulator, tmp_path):
    out = tmp_path / "report.json"
    done = doctor(machine, "--gpu", "--only", "facts", "--only", "rates", "-o", str(out))
    assert done.returncode == EXIT_OK, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["step", "case", "outcome"] and lines[1].split()[:2] == ["facts", "card"]
    assert any(line.startswith("facts  library") and line.endswith(str(emulator)) for line in lines)
    facts = {case: said for case, (_, said) in rows_of(done, "facts").items()}
    assert facts["K and V"] == "can be pinned as tokens come" and facts["two parts"] == "a copy must not go from one into the next"
    assert re.match(r"1\.0 MiB pinned in [\d.]+ ms, or .* kernels reach it under the host's address; of", facts["a part"])
    assert re.match(r"pinned in [\d.]+ ms while a stream worked for [\d.]+ ms; of", facts["a part, beside"])
    assert "Nothing was wrong on emulated device" in done.stdout and done.stderr.split() == ["facts", "rates"]
    report = json.loads(out.read_text())
    assert report["finished"] and [part["part"] for part in report["parts"]] == ["facts", "rates"] and report["device"]["kind"] == "emulated"
    assert json.loads(doctor(machine, "--gpu", "--only", "facts", "-o", "json").stdout)["steps"] == ["facts"]


def rows_of(done: subprocess.CompletedProcess[str], step: str) -> dict[str, tuple[str, str]]:
    """Outcome and words of each case."""
    cells = [re.split(r"  +", line, maxsplit=3) for line in done.stdout.splitlines() if line.startswith(f"{step} ")]
    return {case: (outcome, said) for _, case, outcome, said in cells}


def test_a_right_device_passes(machine, synthetic, tmp_path):
    """Kernels and plane are right for the head shape of a model. What is quick proves nothing."""
    model = str(synthetic("llama", n_head=6, n_head_kv=2))
    done = doctor(machine, "--gpu", "--quick", model, "-o", str(tmp_path / "report.json"))
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    assert rows_of(done, "kernels")["store 6/2 heads of 64"][0] == "right"
    assert [case for case, (outcome, _) in rows_of(done, "plane").items() if outcome == "right"] == [
        "exact", "exact through the ring", "sparse, all rows", "sparse, a tenth"]
    assert {case: outcome for case, (outcome, _) in rows_of(done, "memory").items()} == dict.fromkeys(
        ("model", "context, attached", "first prompt", "sparse"), "right")
    speeds = rows_of(done, "speed")
    assert list(speeds) == [f"{mode} behind {depth} tokens" for mode in MODES for depth in EMULATED_DEPTHS]
    assert all(re.fullmatch(r"\d+\.\d\d ms a token; of an emulated device it means nothing", said) for _, said in speeds.values()), speeds
    assert not (tmp_path / "edgekv" / "gpus.json").exists()


@pytest.fixture
def faulty(machine, emulator, tmp_path) -> dict[str, str]:
    """The environment of a command on a device with the faults of faulty_device.cpp."""
    library = tmp_path / "libfaulty.so"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", *(f"-I{NATIVE / folder}" for folder in ("include", "src")),
                    str(Path(__file__).with_name("faulty_device.cpp")), "-o", str(library), "-ldl"], check=True)
    return machine | {"EDGEKV_EMULATOR": str(library), "REAL_EMULATOR": str(emulator)}


def test_a_case_runs_again_and_says_what_mends_it(faulty, monkeypatch):
    """No page goes through the faulty slots where there is no arena and every row is read from home."""
    for name in ("EDGEKV_EMULATOR", "REAL_EMULATOR", "EDGEKV_ATTENTION_DEVICE"):
        monkeypatch.setenv(name, faulty[name])
    part = Part(PLANE, SPARSE_TENTH, 300.0, True, "emulated", 0, HeadShape(4, 2, 64))
    assert mended(part)["said"] == (
        "right without an arena; wrong without CUDA graphs, without launches that overlap, waiting behind each node, "
        "pinned at the start")


def test_faults_are_found(faulty, machine, synthetic, tmp_path):
    """A process that is killed, a kernel that is wrong, an engine that is wrong about its slots, and memory that no plan has: each is a row, and the
    rest goes on. The report's cases fail again where the fault is, and nowhere else."""
    out = tmp_path / "report.json"
    done = doctor(faulty, "--gpu", "--quick", str(synthetic("llama")), "-o", str(out))
    assert done.returncode == EXIT_RUNTIME, done.stderr
    ((outcome, said),) = rows_of(done, "rates").values()
    assert outcome == "KILLED" and "ended by SIGKILL after" in said
    wrong = {case: said for case, (outcome, said) in rows_of(done, "kernels").items() if outcome == "WRONG"}
    assert wrong and all(case.startswith("store ") and "times what is allowed" in said for case, said in wrong.items())
    plane = rows_of(done, "plane")
    assert plane["exact"][0] == "WRONG" and plane["exact, again"][1].startswith("wrong without CUDA graphs, "), "the ring has the fault too"
    assert "sparse, a tenth" in plane and "WRONG on emulated device: rates and kernels and plane and memory" in done.stdout
    assert {case: outcome for case, (outcome, _) in rows_of(done, "memory").items()} == {
        "model": "right", "context, attached": "WRONG", "first prompt": "WRONG", "sparse": "WRONG"}
    assert [one["passed"] for one in json.loads((tmp_path / "edgekv" / "gpus.json").read_text()).values()] == [False]

    report = json.loads(out.read_text())
    assert report["finished"]
    for part in report["parts"]:  # one case of each kind
        part["rows"] = [row for row in part["rows"] if row["step"] == "rates" or row["case"] in (next(iter(wrong)), "exact")]
    out.write_text(json.dumps(report))
    again = doctor(faulty, "--gpu", "--replay", str(out))
    assert again.returncode == EXIT_RUNTIME and again.stdout.endswith("\n2 of 2 cases that failed on emulated device fail on the emulated device.\n")
    assert [(case, outcome) for case, (outcome, _) in rows_of(again, "kernels").items()] == [(next(iter(wrong)), "WRONG")]
    assert rows_of(again, "plane")["exact"] == plane["exact"] and rows_of(again, "rates")["rates"][0] == "skipped"
    mended = doctor(machine, "--gpu", "--replay", str(out))
    assert mended.returncode == EXIT_OK and "\n0 of 2 cases that failed" in mended.stdout, mended.stdout


@pytest.mark.parametrize("case", [EXACT, SPARSE_ALL, SPARSE_TENTH])
def test_pages_lie_in_slots_when_they_change(case, machine, monkeypatch):
    """Whoever leaves a page in its slot that changed at home is found only where one was there."""
    for name in ("EDGEKV_EMULATOR", "EDGEKV_ATTENTION_DEVICE"):
        monkeypatch.setenv(name, machine[name])
    resident: list[tuple[str, int]] = []

    def noted(name: str) -> Callable[..., None]:
        change = getattr(Decoder, name)

        def changes(decoder: Decoder, *at: Any) -> None:
            if decoder.position:
                resident.append((name, decoder.llama.kv.tiers().n_resident))
            change(decoder, *at)

        return changes

    for name in ("rewind", "shift", "restore"):
        monkeypatch.setattr(Decoder, name, noted(name))
    part = Part(PLANE, case, 300.0, True, "emulated", 0, HeadShape(4, 2, 64))
    with small_model(part.shape) as path:
        Walk(path, part, True, OPTIONS[case]).logits()
    assert [name for name, _ in resident] == ["rewind", "shift", "restore"] and all(n > 0 for _, n in resident), resident


def test_what_cannot_be_replayed(machine, tmp_path):
    """Files that are no report or tell of no failure, options beside it, and no emulated device."""
    out = tmp_path / "report.json"
    for text, said in (("{}", "is no report of"), (None, "tells of no case that failed")):
        Report(out, {"name": "a card"}, HeadShape(), STEPS, False) if text is None else out.write_text(text)
        done = doctor(machine, "--gpu", "--replay", str(out))
        assert done.returncode == EXIT_USAGE and done.stdout == "" and said in done.stderr
    assert doctor(machine, "--gpu", "--replay", str(out), "--quick").returncode == EXIT_USAGE
    row = {"step": "plane", "case": "exact", "outcome": Outcome.WRONG.value, "said": "", "replay": {"events": [["prompt", 330]]}}
    Report(out, {"name": "a card"}, HeadShape(), STEPS, False).add(Part("plane", "exact", 1.0), [row], 0.1, "")
    done = doctor(machine | {"EDGEKV_EMULATOR": ""}, "--gpu", "--replay", str(out))
    assert done.returncode == EXIT_LIBRARY and "replayed on the emulated device" in done.stderr


def test_no_card(machine):
    for environment in ({"EDGEKV_ATTENTION_DEVICE": "auto"}, {"EDGEKV_EMULATOR": ""}):
        done = doctor(machine | environment, "--gpu")
        assert done.returncode == EXIT_LIBRARY and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
        assert "there is no card to test: " in done.stderr


def test_options_that_need_gpu(machine):
    for words in (["--quick"], ["--only", "facts"], ["-o", "report.json"], ["--replay", __file__]):
        done = doctor(machine, *words)
        assert done.returncode == EXIT_USAGE and "go with --gpu" in done.stderr


@pytest.mark.parametrize("fastest", ROUNDING)
def test_the_reference_rounds_to_no_bf16(fastest, monkeypatch):
    monkeypatch.setattr(core, "isa_available", lambda: ["portable", "avx2", "avx512", fastest])
    assert _reference() == {"EDGEKV_ISA": "avx512"}


def test_steps_are_those_of_the_product():
    assert doctor_gpu.STEPS == STEPS


def test_a_report_is_bounded(tmp_path):
    out = tmp_path / "report.json"
    report = Report(out, {"name": "a card"}, HeadShape(), STEPS, False)
    row = {"step": "facts", "case": "library", "outcome": Outcome.WRONG.value, "said": "x" * 10_000, "replay": {}}
    for _ in range(4):
        report.add(Part("facts", "facts", 1.0), [row] * 1000, 0.1, "y" * 100_000)
        assert out.stat().st_size <= MOST_BYTES
    assert "WRONG on a card: facts" in report.finish() == json.loads(out.read_text())["said"]
