"""`edgekv plan`: the table, JSON, exit codes; and the summary line of chat and serve."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support import vision
from support.adapters import control_vector, lora
from support.program import EDGEKV
from support.rates import give_rates
from support.terminal import TerminalScreen

from edgekv.cli.common import progress
from edgekv.cli.common.summary import summary_line, with_measured
from edgekv.cli.plan import plan
from edgekv.common.errors import EXIT_DOES_NOT_FIT, ModelError
from edgekv.common.machine import default_threads
from edgekv.common.units import size
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.measure.busy import Others
from edgekv.measure.planned import stock_speed
from edgekv.models.geometry import open_model
from edgekv.models.inspector import projector_bytes
from edgekv.models.model_writer import write_header
from edgekv.models.shapes import SHAPES
from edgekv.models.synth_file import SyntheticShape
from edgekv.planning import devices
from edgekv.planning.device_fit import DeviceRoom
from edgekv.planning.host import WeightRates
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions


@pytest.fixture(autouse=True)
def measured(tmp_path, monkeypatch) -> list[str]:
    """The types of weights that a test asks the rates of. Nobody else is busy."""
    asked: list[str] = []
    give_rates(monkeypatch, tmp_path / "cache", lambda kind: asked.append(kind) or WeightRates(5e9, 5e9, 40e9, 40e9))
    return asked


def run(*arguments: str):
    return CliRunner().invoke(plan, arguments, standalone_mode=False)


def on_terminal(monkeypatch, width: int, *arguments: str) -> list[str]:
    """The lines of a terminal of so many columns."""
    screen = TerminalScreen(width)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    plan.main(arguments, standalone_mode=False)
    return screen.shown().splitlines()


@pytest.fixture
def header(header_file):
    return lambda name="llama-3.2-1b": str(header_file(name))


def test_table(header, measured):
    result = run(header(), "--ctx", "16384", "--attention-device", "cpu", "--parallel", "2", "--cache-ram", "256MiB", "-v")
    assert result.exception is None and result.return_value == 0, result.output
    assert "16,384 tokens for each of 2 slots, mode sparse" in result.stdout
    for words in ("weights", "KV home", "1024.0  known", "prefix store", "256.0", "context that fits", "5 tokens/s up to", "131,072",
                  "on a processor K and V lie in the same memory", "at 16,384 tokens in mode sparse", "edgekv serve ", "32,768 of them K and V"):
        assert words in result.stdout, words
    assert "at the start, then " in result.stdout and "bytes a token as tokens come" in result.stdout
    assert result.stderr.splitlines() == ["measuring this machine"] and measured == ["q4_0"], "one line, whatever is measured"
    again = run(header(), "--ctx", "auto", "--attention-device", "cpu")
    assert again.return_value == 0 and "measuring" not in again.stderr and measured == ["q4_0"]


@pytest.mark.parametrize("width", [80, 110])
def test_the_verdict_comes_first_in_few_lines(header, monkeypatch, width):
    monkeypatch.setattr(Others, "busy", lambda self: 1.6)
    lines = on_terminal(monkeypatch, width, header(), "--ctx", "16384", "--attention-device", "cpu")
    words = " ".join(" ".join(lines).split())
    assert len(lines) <= 40 and max(map(len, lines)) <= width
    marks = [line[:12].split() for line in lines if line[:1] in "✓→!" and line]
    assert marks == [["✓", "Fits"], ["✓", "Speed"], ["→", "Run"], ["!", "Busy"]] and lines.index("") < 4
    (speed,) = re.findall(r"([\d.]+) tok/s at 16,384 tokens in mode sparse, ([\d.]+) with llama.cpp \(([\d.]+)x, estimate\)", words)
    (row,) = [line.split() for line in lines if line.split()[:1] == ["16,384"]]
    assert (row[3], row[1], row[4]) == (speed[0], speed[1], f"{speed[2]}x"), "numbers agree"
    assert lines[-1] == "Memory by part, limits, reasons: edgekv plan -v    JSON: --json" and "KV home" not in words


def test_layers_that_are_read_whole_are_told_apart(header):
    found = run(header("gemma-3-4b"), "--attention-device", "cpu").stdout
    assert re.search(r"EdgeKV samples 5 of 34 layers, reads 29 whole", found), found


def test_a_busy_machine_is_said_once(header, monkeypatch, measured):
    busy = [1.6]
    monkeypatch.setattr(Others, "busy", lambda self: busy[0])
    path = header()

    def lines(*arguments: str) -> list[str]:
        return run(path, "--ctx", "16384", "--attention-device", "cpu", *arguments).stdout.splitlines()

    (said,) = [line for line in lines("-v") if "cores busy" in line]
    assert said.startswith("Busy ") and "1.6 cores" in said and "measured again" in said
    assert json.loads("\n".join(lines("--json")))["busy"] == 1.6 and measured == ["q4_0"] * 2
    busy[0] = 0.0
    for _ in range(2):
        assert "cores busy" not in "\n".join(lines()) and measured == ["q4_0"] * 3


def test_one_line_and_one_bar_on_a_terminal(monkeypatch, capsys):
    """Whatever is measured, and none where nothing is."""
    bars: list[list[tuple]] = []

    @contextmanager
    def bar():
        bars.append([])
        yield lambda *told: bars[-1].append(told)

    monkeypatch.setattr(progress, "progress_bar", bar)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.measuring_bar() as show:
        assert not bars
        for done in range(3):
            show("measuring", done, 3)
    assert bars == [[("measuring", 0, 3), ("measuring", 1, 3), ("measuring", 2, 3)]] and capsys.readouterr().err == "measuring\n"
    with progress.measuring_bar():
        pass
    assert len(bars) == 1 and not capsys.readouterr().err


def test_json(header):
    result = run(header(), "--ctx", "4096", "--json", "--attention-device", "cpu", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    found = json.loads(result.stdout)
    assert found["n_ctx"] == 4096 and found["fits"] and found["mode"] == "sparse" and found["kv_bytes_per_token"] == 32_768 * 34 // 64
    assert found["total"]["host"] == sum(part["bytes"] for part in found["parts"])
    assert {part["how"] for part in found["parts"]} == {"known", "estimated"}
    assert {"--cache-type-k", "q8_0"} < set(found["flags"]) and {speed["mode"] for speed in found["speeds"]} == {"off", "exact", "sparse"}


def test_what_does_not_fit_has_its_exit_code(header):
    result = run(header("llama-3-70b"), "--attention-device", "cpu", "--ctx", "131072", "--kv", "exact")
    assert result.return_value == EXIT_DOES_NOT_FIT and "\nNo fit    the weights take " in result.stdout and "Run " not in result.stdout


def test_speed_of_what_does_not_fit_is_no_good_news(header, monkeypatch):
    lines = on_terminal(monkeypatch, 110, header("llama-3-70b"), "--attention-device", "cpu", "--ctx", "131072")
    assert [line[:8].split() for line in lines if line[:1] in "✓✗" and line] == [["✗", "No", "fit"]] and any(line.startswith("  Speed ") for line in lines)


@pytest.mark.parametrize("more", [(), ("--evict-to", "4096", "-c", "8192"), ("--evict-to", "999999999GiB", "-c", "8192")])
def test_mode_evict_has_no_longest_context(header, more):
    result = run(header(), "--attention-device", "cpu", "--kv", "evict", *more)
    assert result.exception is None and "mode evict" in result.stdout and "longest that fits" not in result.stdout, result.output
    assert "--kv evict --evict-to " in next(line for line in result.stdout.splitlines() if line.startswith("Run "))


def test_a_home_on_disk(header, tmp_path):
    result = run(header(), "--ctx", "8192", "--json", "--attention-device", "cpu", "--kv", "sparse", "--kv-dir", str(tmp_path))
    found = json.loads(result.stdout)
    (home,) = [part for part in found["parts"] if part["name"] == "KV home"]
    assert home["place"] == str(tmp_path) and home["bytes"] == 8192 * found["kv_bytes_per_token"] == found["total"][str(tmp_path)]
    assert found["total"]["host"] == sum(part["bytes"] for part in found["parts"] if part["place"] == "host")
    assert ["--kv-dir", str(tmp_path)] == found["flags"][(at := found["flags"].index("--kv-dir")) : at + 2]
    assert any("scattered pages of 4 KiB a second" in note or "could not be measured" in note for note in found["notes"])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("edgekv-")] == []


@pytest.mark.parametrize(("name", "write", "takes"), [
    ("--mmproj", vision.qwen2vl, projector_bytes),
    ("--lora", lambda path: lora(path, SyntheticShape()), lambda path: path.stat().st_size),
    ("--lora", lambda path: Path(",".join(str(lora(path.with_name(f"{seed}.gguf"), SyntheticShape(), seed)) for seed in range(2))),
     lambda paths: sum(Path(path).stat().st_size for path in str(paths).split(","))),
    ("--control-vector", lambda path: control_vector(path, SyntheticShape()), lambda path: path.stat().st_size),
    ("--model-draft", lambda path: write_header(SHAPES["tiny"], path), lambda path: path.stat().st_size * 5 // 4),
])
def test_what_is_loaded_later_takes_its_memory(header, tmp_path, name: str, write, takes):
    """As `edgekv serve` counts it; a missing file, or one of another kind, is refused."""
    file = write(tmp_path / "later.gguf")
    alone, beside = (json.loads(run(header(), "--ctx", "4096", "--attention-device", "cpu", "--json", *more).stdout) for more in ((), (name, str(file))))
    assert beside["total"]["host"] - alone["total"]["host"] == takes(file)
    assert " ".join(beside["flags"]) == " ".join(alone["flags"]).replace(" --attention", f" {name} {file} --attention")
    other = lora(tmp_path / "other.gguf", SyntheticShape()) if name == "--mmproj" else vision.qwen2vl(tmp_path / "other.gguf")
    for wrong, why in ((other, "other.gguf is "), (tmp_path / "none.gguf", "none.gguf; give the " + ("projector" if name == "--mmproj" else "path"))):
        error = run(header(), name, str(wrong)).exception
        assert isinstance(error, ModelError) and why in str(error)


def test_summary_line(default_model, monkeypatch):
    monkeypatch.setattr("edgekv.server.room.available_bytes", lambda: 1 << 34)
    server = Server(ServerOptions(default_model, KvOptions(mode="sparse", attention_device="cpu"), 8192, store=StoreSettings(1 << 30)))
    line = summary_line(server)
    assert "(weights 92.1 MiB, KV home 180.0 MiB, sketches 18.5 MiB" in line and line.endswith("), 16.0 GiB are free")
    assert "prefixes up to 1.0 GiB" in line and "\n" not in line
    plan = json.loads(run(str(default_model), "--ctx", "8192", "--kv", "sparse", "--attention-device", "cpu", "--json").stdout)
    assert plan["total"]["host"] == sum(part.bytes for part in server.parts()), "the plan counts the same"
    assert line.startswith(f"needs {size(plan['total']['host'])} (")


def test_summary_line_with_what_is_there(synthetic):
    path, kv = synthetic("llama"), KvOptions(mode="sparse", attention_device="cpu")
    server = Server(ServerOptions(path, kv, 1024))
    llama = Llama(str(path), kv_options=kv, n_ctx=1024, verbose=False)
    line = summary_line(server, llama.kv)
    assert "KV home 1.0 MiB" in line and line.startswith("takes ")
    taken = llama.kv.memory()
    parts = {part.name: part.bytes for part in with_measured(server.parts(), taken)}
    assert parts["tables"] == taken.table_bytes + taken.observation_bytes and parts["work space"] == taken.workspace_bytes
    assert parts["sketches"] == taken.sketch_bytes and parts["weights"] == server.model.tensor_bytes
    llama.close()


def test_summary_line_of_a_gpu(header, monkeypatch):
    """The card's memory has a line of its own."""
    placed = SimpleNamespace(room=DeviceRoom("a card", 12 << 30, 11 << 30), in_force=lambda kv: kv)
    monkeypatch.setattr(devices, "place", lambda kv, model: placed)
    monkeypatch.setattr("edgekv.server.server.open_model", lambda path: open_model(path, whole=False))
    server = Server(ServerOptions(Path(header("llama-3-8b")), KvOptions(mode="exact", attention_device="cuda"), 32_768))
    host, card = summary_line(server).splitlines()
    assert "(KV home 4.0 GiB)" in host and "weights" not in host
    assert card.startswith("needs on a card ") and "(weights 4." in card and card.endswith("), 11.0 GiB are free")


def test_without_edgekv_there_are_no_speeds(header, tmp_path):
    environment = os.environ | {"EDGEKV": "0", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run([*EDGEKV, "plan", header(), "--ctx", "4096", "--attention-device", "cpu"], env=environment,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "the speeds could not be measured: EDGEKV=0 is set" in result.stdout + result.stderr, result.stderr


def test_a_chat_says_of_stock_what_the_plan_says(header):
    """Before a plan measured this machine a chat has no figure."""
    model, kv, n_threads = Path(header()), KvOptions.from_env(), default_threads()
    assert stock_speed(model, kv, n_threads) is None
    planned = json.loads(run(str(model), "--ctx", "8192", "--json").stdout)["speeds"]
    stock = {row["depth"]: row["decode"] for row in planned if row["mode"] == "off"}
    found = stock_speed(model, kv, n_threads)
    assert stock and {depth: found(depth) for depth in stock} == stock
