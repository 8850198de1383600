"""`python -m tests.gpu_command` without a GPU: its plan, its second call after a kill, its tables, targets and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_command import __main__ as command
from gpu_command import benchmark, kernels, parcels, report
from gpu_command.execute import Done, execute
from gpu_command.machine import Card, source_hash
from gpu_command.session import Session
from gpu_command.state import FAILED, OK, SKIPPED, UNFINISHED, State, append, lines
from gpu_command.steps import EXIT_FAILED, EXIT_NO_GPU, EXIT_OK, EXIT_UNFINISHED, Outcome, Step, run_steps
from gpu_command.targets import MET, MISSED, UNKNOWN, judge, size

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def state(tmp_path) -> State:
    return State(tmp_path / "state")


def scripted(clock: Clock, ran: list[str], name: str, seconds: float = 10, status: str = OK, **more) -> Step:
    """A step that takes so many seconds of the clock, or all that it is given where that is less."""
    def run(limit: float) -> Outcome:
        ran.append(name)
        clock.now += min(seconds, limit)
        return Outcome(status if seconds <= limit else UNFINISHED, f"{name} said so")

    return Step("stage", name, run, **more)


def call(steps, state, clock, minutes=1.0):
    return run_steps(steps, state, clock() + 60 * minutes, lambda text: None, clock=clock)


# ---- steps ---------------------------------------------------------------------------------------------------------------------


def test_each_step_runs_once(state):
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, name) for name in "abc"]
    assert call(steps, state, clock).exit_code == EXIT_OK and ran == ["a", "b", "c"]
    again = call(steps, state, clock)
    assert ran == ["a", "b", "c"] and len(again.earlier) == 3 and again.exit_code == EXIT_OK


def test_goes_on_where_time_ended(state):
    """Each call has a minute, and three steps take 25 seconds each: the first call stops the third step, and the next call runs it."""
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, name, 25) for name in "abc"]
    first = call(steps, state, clock)
    assert first.exit_code == EXIT_UNFINISHED and first.by_status[UNFINISHED] == ["stage/c"]
    assert call(steps, state, clock).exit_code == EXIT_OK and ran == ["a", "b", "c", "c"]


def test_a_step_is_not_begun_without_its_least_time(state):
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, "a", 50), scripted(clock, ran, "b", 5, least_s=20)]
    assert call(steps, state, clock).by_status[UNFINISHED] == ["stage/b"] and ran == ["a"]


def test_a_step_over_its_own_limit_has_failed(state):
    """A step that takes longer than a call ends only if it keeps its progress."""
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, "a", 50, limit_s=20), scripted(clock, ran, "b", 50, limit_s=20, resumes=True)]
    result = call(steps, state, clock)
    assert result.by_status == {FAILED: ["stage/a"], UNFINISHED: ["stage/b"]} and result.exit_code == EXIT_FAILED


def test_what_needs_a_failed_step_is_left_out(state):
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, "a", status=FAILED), scripted(clock, ran, "b", needs=("stage/a",)),
             scripted(clock, ran, "c", needs=("stage/b",)), scripted(clock, ran, "d")]
    result = call(steps, state, clock)
    assert ran == ["a", "d"] and result.by_status == {FAILED: ["stage/a"], SKIPPED: ["stage/b", "stage/c"], OK: ["stage/d"]}
    steps[0] = scripted(clock, ran, "a")  # mended
    assert call(steps, state, clock).exit_code == EXIT_OK and ran == ["a", "d", "a", "b", "c"]


def test_what_needs_an_unfinished_step_is_unfinished_too(state):
    clock, ran = Clock(), []
    steps = [scripted(clock, ran, "a", 100, resumes=True), scripted(clock, ran, "b", needs=("stage/a",))]
    assert call(steps, state, clock).by_status == {UNFINISHED: ["stage/a", "stage/b"]}


def test_other_sources_are_another_step(state):
    clock, ran = Clock(), []
    call([scripted(clock, ran, "a", key="1")], state, clock)
    call([scripted(clock, ran, "a", key="2")], state, clock)
    call([scripted(clock, ran, "a", key="2")], state, clock)
    assert ran == ["a", "a"]


def test_an_exception_costs_one_step(state):
    def broken(limit: float) -> Outcome:
        raise ValueError("no such thing")

    clock, ran = Clock(), []
    result = call([Step("stage", "a", broken), scripted(clock, ran, "b")], state, clock)
    assert result.by_status == {FAILED: ["stage/a"], OK: ["stage/b"]}
    assert "ValueError: no such thing" in state.entries()["stage/a"]["note"]


def test_a_torn_line_costs_that_line(state):
    for number in range(3):
        append(state.rows_file, {"model": "m", "column": "stock", "depth": number})
    text = state.rows_file.read_text()
    state.rows_file.write_text(text[:-9])
    assert [row["depth"] for row in lines(state.rows_file)] == [0, 1]
    append(state.rows_file, {"model": "m", "column": "stock", "depth": 7})
    assert [row["depth"] for row in state.rows()] == [0, 1, 7]
    append(state.rows_file, {"model": "m", "column": "stock", "depth": 0, "again": True})
    assert len(state.rows()) == 3 and state.rows()[0]["again"]


def test_commands_end_with_what_they_started(tmp_path):
    log = tmp_path / "log"
    done = execute(["sh", "-c", "echo before; sleep 60 & sleep 60; echo after"], log, 0.3)
    assert done.code is None and done.last_line == "before" and done.seconds < 6
    assert execute(["sh", "-c", "echo one; exit 3"], log, 5).code == 3
    assert execute(["no-such-program"], log, 5).code == 127
    assert "before" in log.read_text() and "one" in log.read_text()


# ---- the plan ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(state, tmp_path, monkeypatch) -> Session:
    """The machine has a card."""
    found = Session(ROOT, state, tmp_path / "out", "cuda")
    found.__dict__["card"] = Card("NVIDIA Test", "580.1", 90, 81559)
    return found


def test_plan_of_everything(session):
    ids = [step.id for step in command.plan(session, command.STAGES)]
    assert len(set(ids)) == len(ids)
    in_order = ("build/environment", "tests/kernels", "bench/test_layers_device-131072", "bench/test_reads_device",
                "sanitize/memcheck-test_engine",
                "sanitize/racecheck-test_sample_device", "build/native", "build/check", "tests/test_pristine", "bench/llama-3-8b-stock",
                "sanitize/memcheck-test_sample_device")
    order = [ids.index(one) for one in in_order]
    assert order == sorted(order)
    for step in command.plan(session, command.STAGES, keep=True):
        assert set(step.needs) <= set(ids) and step.least_s < step.limit_s <= 560, "every step fits into one call"


def test_no_program_of_the_emulator_is_built_for_a_card(session):
    ids = [step.id for step in command.plan(session, ["tests"])]
    assert "tests/test_layers_device" in ids and not any("emulator" in one or "streams" in one for one in ids)
    cmake = (ROOT / "tests" / "gpu_command" / "kernels" / "CMakeLists.txt").read_text()
    assert '"^test_emulator"' in cmake and '"#include \\"emulator/"' in cmake, "as kernels.names()"


def test_plan_of_some_stages(session):
    ids = [step.id for step in command.plan(session, ["bench"])]
    assert "tests/kernels" in ids and "bench/test_attend_device-131072" in ids and "tests/test_pristine" not in ids
    sanitize = [step.id for step in command.plan(session, ["sanitize"])]
    assert "tests/kernels" in sanitize and sum(one.startswith("sanitize/memcheck") for one in sanitize) > 0
    assert "build/keep" in [step.id for step in command.plan(session, ["build"], keep=True)]


def test_the_most_valuable_rows_come_first():
    jobs = benchmark.jobs(model=False)
    assert [(job.shape, job.column) for job in jobs[:3]] == [("llama-3-8b", column) for column in ("stock", "sparse", "exact")]
    table = {(job.column, job.budget): set() for job in jobs if job.shape == "llama-3-8b" and not job.link}
    for job in jobs:
        if job.shape == "llama-3-8b" and not job.link:
            table[job.column, job.budget] |= set(job.depths)
    assert all(depths == set(benchmark.DEPTHS) for depths in table.values()), "every cell of the table"
    assert {budget for column, budget in table if column == "sparse"} == {GIB // 2, GIB, 2 * GIB}
    assert {column for column, _ in table} == {"stock", "stock, KV in host memory", "stock, q8_0", "exact", "sparse"}
    assert "default" in {job.shape for job in benchmark.jobs(model=True)}


# ---- targets -------------------------------------------------------------------------------------------------------------------


def row(column: str, depth: int, ms: float, budget: int | None = None, **more) -> dict:
    return {"model": "m", "column": column, "depth": depth, "decode_ms_p50": ms, "budget_bytes": budget, "device": "cuda", **more}


def answers(rows, link=25e9) -> dict[str, str]:
    return {f"{one.target} @ {one.where}": one.answer for one in judge(rows, link)}


@pytest.mark.parametrize(("depth", "link_bytes", "steps", "name"), [
    # 0.2 GB over 25 GB/s are 8 ms: less than the 10 ms of computing
    (8192, 2e8, (11.5, 11.6), "exact within 1.15x of all in VRAM, its cold bytes fitting under the computing @ m, 8K, 1 GiB"),
    # 1 GB over 25 GB/s are 40 ms: 95 % of that is a step of at most 42.1 ms
    (32768, 1e9, (42.1, 42.2), "exact at 95 % of max(copy, compute) @ m, 32K, 1 GiB"),
], ids=["cold bytes that fit", "cold bytes beyond"])
def test_exact_beside_its_copies(depth, link_bytes, steps, name):
    for ms, answer in zip(steps, (MET, MISSED)):
        assert answers([row("stock", depth, 10), row("exact", depth, ms, GIB, link_bytes_per_step=link_bytes)])[name] == answer


def test_sparse_against_stock():
    rows = [row("stock", 32768, 15), row("stock", 131072, 30), row("stock, KV in host memory", 32768, 99),
            row("stock, KV in host memory", 131072, 100), row("sparse", 32768, 10, GIB), row("sparse", 131072, 10.1, GIB)]
    found = answers(rows)
    assert found["sparse 1.5x as fast as all in VRAM @ m, 32K, 1 GiB"] == MET
    assert found["sparse 3x as fast as all in VRAM @ m, 128K, 1 GiB"] == MISSED
    assert found["sparse 10x as fast as KV in host memory @ m, 32K, 1 GiB"] == MISSED
    assert found["sparse 10x as fast as KV in host memory @ m, 128K, 1 GiB"] == MISSED
    assert answers(rows[2:])["sparse 1.5x as fast as all in VRAM @ m, 32K, 1 GiB"] == UNKNOWN


def test_sparse_is_flat():
    name = "sparse flat within 10 % from 8K to 128K @ 1 GiB"
    flat = [row("sparse", 4096, 1, GIB), row("sparse", 8192, 10, GIB), row("sparse", 131072, 10.9, GIB)]
    assert answers(flat)[name] == MET
    assert answers([*flat, row("sparse", 65536, 11.1, GIB)])[name] == MISSED
    assert answers(flat[:2])[name] == UNKNOWN


def test_policy():
    name = "policy below 2 % of the step @ m, 8K, 1 GiB"
    for share, answer in ((0.02, MET), (0.021, MISSED), (None, UNKNOWN)):
        assert answers([row("sparse", 8192, 10, GIB, overhead_fraction=share)])[name] == answer


def test_emulated_links_and_notes_are_not_judged():
    rows = [row("stock", 32768, 15), row("sparse", 32768, 1, GIB, link="emulated 25 GB/s"),
            {**row("exact", 32768, 0, GIB), "decode_ms_p50": None, "note": "does not fit"}]
    assert answers(rows) == {}


# ---- tables and files ----------------------------------------------------------------------------------------------------------


def test_tables(state, tmp_path):
    state.record("build/native", "k", OK, 61.2, "with a | in it")
    append(state.rows_file, row("stock", 8192, 10.0, decode_ms_p99=12.345, vram_peak_bytes=5 * GIB, prefill_tps=1234.5))
    append(state.rows_file, row("sparse", 8192, 9.5, 512 << 20, hit_rate=0.987, link_bytes_per_step=3 << 20))
    append(state.rows_file, {"model": "m", "column": "exact", "depth": 131072, "device": "cuda", "note": "does not fit"})
    (state.path("logs", "native.log")).write_text("log")
    card = {"name": "NVIDIA Test", "driver": "580.1", "arch": 90, "memory_mib": 81559}
    facts = {"cards": [card], "processor": "P", "cores": 16, "memory_gib": 128, "nvcc": "release 13.0, V13.0.88",
             "python": "3.12.3", "device": "cuda", "commit": "0123abcde", "sources": "aa", "rates": {"link_copy": 25e9}}
    report.write(tmp_path / "out", state, facts)
    whole, text = json.loads((tmp_path / "out" / "results.json").read_text()), (tmp_path / "out" / "table.md").read_text()
    assert len(whole["rows"]) == 3 and whole["about"]["commit"] == "0123abcde" and whole["steps"][0]["seconds"] == 61.2
    assert "# NVIDIA Test (81559 MiB, driver 580.1)" in text and "Commit 0123abcde" in text
    assert "| m | stock | - | 8192 | 10.00 | 12.35 | 1234 | - | - | 5.00 |  |" in text.splitlines()
    assert "512 MiB" in text and "98.7" in text and "3.00" in text and "does not fit" in text and "with a \\| in it" in text
    assert "coverage" not in text, "columns that no row fills are left out"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["logs.tar.gz", "results.json", "table.md"]


READ = ('{"what": "rows of 136 bytes", "way": "kernel", "asked_mib": 16384, "mib": %d, "gb_per_s": %.3f, "rows_per_s": 8000000}\n'
        '{"what": "layer of 8192 cells, q8_0", "way": "copy engine", "mib": 17, "gb_per_s": 2.500, "rows_per_s": 9000000}\n')


def bench_reads(session, monkeypatch, code: int | None, said: str) -> Outcome:
    """The step with a program that prints `said` and ends so."""
    ran = []
    monkeypatch.setattr(session, "execute", lambda name, program, seconds: ran.append(program) or Done(code, 1.0, said))
    step = next(step for step in kernels.bench_steps(session) if step.id == "bench/test_reads_device")
    outcome = step.run(60)
    assert step.limit_s == 120 and ran[0][1:] == ["--bench", "128", "16384"] and ran[0][0].name == "test_reads_device"
    return outcome


def test_reads_of_home_are_rows(session, monkeypatch, tmp_path):
    cut = '{"what": "rows of 272 bytes", "way"'
    assert bench_reads(session, monkeypatch, None, f"NVIDIA Test\n{READ % (4096, 1.25)}{cut}").status == UNFINISHED
    assert [row["mib"] for row in session.state.reads()] == [4096, 17], "what was printed before the time was over counts"
    assert bench_reads(session, monkeypatch, 0, f"NVIDIA Test\n{READ % (8192, 1.5)}6 checks, ok\n") == Outcome(OK, "6 checks, ok")
    rows, layer = session.state.reads()
    assert rows == {"what": "rows of 136 bytes", "way": "kernel", "mib": 8192, "gb_per_s": 1.5, "rows_per_s": 8000000, "asked_mib": 16384}
    assert layer["way"] == "copy engine" and layer["asked_mib"] is None
    report.write(tmp_path / "out", session.state, {"device": "cuda"})
    assert json.loads((tmp_path / "out" / "results.json").read_text())["reads"] == [rows, layer]
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert "| rows of 136 bytes | kernel | 8192 | 16384 | 1.50 | 8e+06 |" in lines
    assert "| layer of 8192 cells, q8_0 | copy engine | 17 | - | 2.50 | 9e+06 |" in lines


def test_reads_without_a_row_have_failed(session, monkeypatch):
    assert bench_reads(session, monkeypatch, 0, "6 checks, ok\n").status == FAILED
    assert bench_reads(session, monkeypatch, 1, "rows of 128 bytes over 128 MiB are not what lies there\n").status == FAILED
    assert session.state.reads() == []


@pytest.mark.parametrize(("n_bytes", "text"), [
    (None, "auto"), (512 << 20, "512 MiB"), (2 * GIB, "2 GiB"), (3 * GIB // 2, "1.5 GiB")])
def test_sizes(n_bytes, text):
    assert size(n_bytes) == text


# ---- parcels -------------------------------------------------------------------------------------------------------------------


def packed(root: Path) -> None:
    """Two parcels as pack leaves them."""
    for number, name, data in ((parcels.BASE, "model.gguf.00", b"abc"), ("2", "model.gguf.01", b"defg")):
        folder = root / parcels.FOLDER / number
        folder.mkdir(parents=True)
        (folder / name).write_bytes(data)
        parcels._write_manifest(folder, {"model_bytes": 7, "commit": "0123abcde", "pin": "x", "python": "3.12", "sources": "s"})


def test_parcels_come_one_at_a_time(tmp_path, state):
    packed(tmp_path)
    (tmp_path / parcels.FOLDER / "2").rename(tmp_path / "later")
    assert parcels.manifest(state) is None
    assert parcels.take_in(tmp_path, state) == ["1"] and parcels.take_in(tmp_path, state) == []
    assert parcels.manifest(state)["commit"] == "0123abcde" and parcels.model(state) is None
    (tmp_path / parcels.FOLDER / "1").rename(tmp_path / "gone")
    (tmp_path / "later").rename(tmp_path / parcels.FOLDER / "2")
    assert parcels.take_in(tmp_path, state) == ["2"] and parcels.model(state).read_bytes() == b"abcdefg"


def test_a_damaged_parcel_is_refused(tmp_path, state):
    packed(tmp_path)
    (tmp_path / parcels.FOLDER / "2" / "model.gguf.01").write_bytes(b"defh")
    with pytest.raises(parcels.PackError, match=r"\.gpu/2/model.gguf.01 is missing or damaged"):
        parcels.take_in(tmp_path, state)


def test_calls_fit_what_travels(tmp_path, monkeypatch):
    packed(tmp_path)
    monkeypatch.setattr(parcels, "tree_bytes", lambda root: 10)
    assert [paths for paths, _ in parcels.commands(tmp_path)] == [[".gpu/1", ".gpu/2"]]
    monkeypatch.setattr(parcels, "ROOM", 200)
    calls = parcels.commands(tmp_path)
    assert [paths for paths, _ in calls] == [[".gpu/1"], [".gpu/2"]] and calls[0][1] > 10 < calls[1][1]


def test_sources_are_told_apart(tmp_path):
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "a.cpp").write_text("1")
    before = source_hash(tmp_path, ["native"])
    (tmp_path / "native" / "__pycache__").mkdir()
    (tmp_path / "native" / "__pycache__" / "a.pyc").write_text("1")
    assert source_hash(tmp_path, ["native"]) == before
    (tmp_path / "native" / "a.cpp").write_text("2")
    assert source_hash(tmp_path, ["native"]) != before


# ---- the command ---------------------------------------------------------------------------------------------------------------


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command runs in the checkout, on a machine whose nvidia-smi names no GPU."""
    empty = tmp_path / "bin"
    empty.mkdir(exist_ok=True)
    (empty / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (empty / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{empty}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "tests.gpu_command", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def test_without_a_gpu(tmp_path):
    done = run(tmp_path, "run", "--state", str(tmp_path / "s"), "--out", str(tmp_path / "o"))
    assert done.returncode == EXIT_NO_GPU, done.stdout + done.stderr
    assert "there is no NVIDIA GPU here, so nothing was built, tested or measured" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "o").exists()


def test_usage(tmp_path):
    assert run(tmp_path, "run", "--stage", "fish").returncode == 2
    assert run(tmp_path).returncode == 2


def test_a_plain_pytest_leaves_the_gpu_tests_out():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")]
    environment = {name: value for name, value in os.environ.items() if name != "EDGEKV_GPU_TESTS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 5 and "test_pristine" not in done.stdout
