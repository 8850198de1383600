"""`edgekv bench` at the command line: its formats, bad input, a peer, an interrupt."""

import csv
import io
import json
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.serve_process import EDGEKV

from edgekv.bench.row import LLAMA_BENCH, OURS
from edgekv.cli.main import cli
from edgekv.common.errors import ConfigError, ModelError
from edgekv.models.geometry import open_model

SMALL = ["-p", "16", "-n", "4", "-r", "1", "-t", "2"]


def bench(*arguments, **settings):
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)], **settings)


def answered(*arguments) -> str:
    done = bench(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_table_and_markdown(synthetic):
    for output, separator, n_said, n_turns in (("table", None, 1, 1), ("md", "|", 8, 2)):
        lines = answered("-m", synthetic(), *SMALL, "-d", "0,150", "--fill", "synthetic", "-o", output, "-r", n_turns).splitlines()
        assert "kernels" in lines[0] and "llama.cpp" in lines[0] and "GB/s" in lines[0]
        head = next(line for line in lines if "t/s" in line)
        assert {"test", "t/s", "mode"} <= {cell.strip() for cell in head.split(separator)}
        body = lines[lines.index(head):]
        assert sum(line.count("synthetic") for line in lines) == n_said and sum("tg4 @ d150" in line for line in body) == 4
        assert sum(" *" in line for line in body) == 4 and sum("±" in line for line in body) == 16 * (n_turns > 1)
        if output == "table":
            assert "2 threads; fill: synthetic" in lines[1] and max(map(len, body)) < 80
            said, times = re.fullmatch(r"At 150 tokens (\w+) decodes ([\d.]+)x as fast as llama.cpp(?:; the machine was busy)?", lines[-1]).groups()
            ratios = {words[3]: float(words[5]) for words in map(str.split, body) if words[:3] == ["tg4", "@", "d150"] and "off" not in words[3]}
            assert abs(ratios[said] - float(times)) < 0.06 and ratios[said] == max(ratios.values()), "as in its own rows"
            n_params = open_model(synthetic()).geometry.n_params
            assert f"llama {n_params / 1e3:.3g}K F" in lines[1], "not the size of the model that has as many layers"
    assert lines[-1].startswith("build: ") and "params" in head and "threads" in head


def test_json_lines_and_csv(synthetic):
    arguments = ["-m", synthetic(), *SMALL, "--modes", "exact"]
    rows = json.loads(answered(*arguments, "-o", "json"))
    lines = [json.loads(line) for line in answered(*arguments, "-o", "jsonl").splitlines()]
    flat = list(csv.DictReader(io.StringIO(answered(*arguments, "-o", "csv"))))
    for found in (rows, lines):
        assert [(row["test"], row["kv_mode"]) for row in found] == [
            (test, mode) for test in ("pp16", "tg4") for mode in ("off-flash", "off-noflash", "exact")]
        assert all(list(row) == [*LLAMA_BENCH, *OURS] for row in found)
        assert {"date", "cpu", "family", "isa", "cores", "ram_bytes", "memory_gb_s", "gpu", "driver", "link", "python", "edgekv",
                "llama_cpp", "commit"} == set(found[0]["environment"])
    assert len(flat) == 6 and flat[0]["test"] == "pp16" and "environment" not in flat[0] and flat[0]["family"]


def test_lists_ranges_and_repeated_options(synthetic):
    rows = json.loads(answered("-m", synthetic(), "-p", "8-16*2", "-p", "4", "-n", "0", "-pg", "8,2", "-pg", "4,2", "-r", 1, "-t", "1,2",
                               "-ub", "8,16", "--modes", "exact", "-o", "json"))
    found = [(row["n_ubatch"], row["n_threads"], row["test"]) for row in rows if row["kv_mode"] == "exact"]
    assert found == [(u, t, test) for u in (8, 16) for t in (1, 2) for test in ("pp8", "pp16", "pp4", "pp8+tg2", "pp4+tg2")]


@pytest.mark.parametrize("arguments, said", [
    (["-d", "4096-0"], "ends before it begins"), (["-p", "many"], "512"), (["-pg", "5"], "512,128"), (["-o", "sql"], "sql"),
    (["--fill", "holes"], "holes"), (["-r", "0"], "0"), (["-ctk", "q9"], "q9"), (["--kv-budget", "lots"], "lots"),
    (["-p", "8", "serve"], "before 'serve'"),
    (["-d", "many"], "512"), (["-ctk", "q2_k"], "q2_k"), (["--page-size", "0"], "0"), (["-ub", "x"], "512"), (["-d", "1-8*1"], "never ends"),
])
def test_bad_usage(arguments, said):
    done = bench(*arguments)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments, error, said", [
    (["--modes", "fast"], ConfigError, "fast"), (["-m", "nothing.gguf"], ModelError, "nothing.gguf"),
    (["--peer", "nothing"], ConfigError, "no file nothing"), (["--text", "nothing.txt"], ConfigError, "nothing.txt"),
])
def test_what_is_not_there(synthetic, arguments, error, said):
    model = [] if "-m" in arguments else ["-m", synthetic()]
    done = bench(*model, *SMALL, *arguments)
    assert isinstance(done.exception, error) and said in str(done.exception) and done.stdout == ""


def test_a_model_that_cannot_be_loaded_ends_the_run_behind_what_was_measured(synthetic, tmp_path):
    """One sentence, and exit code 3."""
    whole = synthetic().read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    done = program("-m", synthetic(), "-m", cut, *SMALL, "-o", "json")
    said, errors = done.communicate(timeout=60)
    assert done.returncode == 3 and "Traceback" not in errors and "cut.gguf" in errors
    assert {Path(row["model_filename"]).name for row in json.loads(said)} == {synthetic().name}


def test_a_home_on_disk_at_the_command_line(synthetic, tmp_path):
    arguments = ["-m", synthetic(), *SMALL, "-d", "64", "--kv-dir", tmp_path]
    rows = json.loads(answered(*arguments, "-o", "json"))
    assert [(row["kv_mode"], row["kv_dir"]) for row in rows] == [("exact", str(tmp_path)), ("sparse", str(tmp_path))] * 2
    table, markdown = answered(*arguments).splitlines(), answered(*arguments, "-o", "md").splitlines()
    assert table[1].endswith(f"fill: text; K and V in {tmp_path}") and "disk pages" in table[3]
    assert {"KV folder", "disk pages"} <= {cell.strip() for cell in markdown[2].split("|")} and str(tmp_path) in markdown[-3]
    in_variable = bench("-m", synthetic(), *SMALL, "-o", "json", env={"EDGEKV_KV_DIR": str(tmp_path)})
    assert {row["kv_dir"] for row in json.loads(in_variable.stdout)} == {str(tmp_path)}


@pytest.mark.skipif(sys.platform != "linux", reason="a home on disk needs Linux")
@pytest.mark.parametrize("arguments, code, said", [
    (["--kv-dir", "nowhere"], 2, "there is no folder nowhere for the KV home"),
    (["--kv-dir", ".", "--modes", "off"], 2, "--kv-dir works in modes sparse and exact only"),
    (["--kv-dir", ".", "--modes", "evict"], 2, "leave one of the two out"),
    (["--kv-dir", ".", "-d", "512"], 4, "there is no room for the KV cache in ."),
])
def test_homes_on_disk_that_cannot_be_end_with_a_sentence(synthetic, monkeypatch, tmp_path, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    done = program("-m", synthetic(), *SMALL, *arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10)))
    out, errors = done.communicate(timeout=60)  # a file of more bytes finds its disk full
    assert done.returncode == code and said in errors and "Traceback" not in errors and out == ""


def program(*arguments, **settings) -> subprocess.Popen:
    return subprocess.Popen([*EDGEKV, "bench", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_ends_it_gets_what_was_measured(synthetic, sent, code):
    done = program("-m", synthetic(), "-p", 16, "-n", 0, "-pg", "16,400", "-r", 200, "-t", 1, "-o", "jsonl", "--modes", "exact")
    rows = [json.loads(done.stdout.readline()) for _ in range(3)]
    done.send_signal(sent)  # the second test takes minutes
    said, errors = done.communicate(timeout=60)
    assert done.returncode == code and "interrupted" in errors and "Traceback" not in errors and "s were measurement, the rest loading and filling" in errors
    rows += [json.loads(line) for line in said.splitlines()]
    assert [(row["test"], row["kv_mode"]) for row in rows] == [
        (test, mode) for test in ("pp16", "pp16+tg400") for mode in ("off-flash", "off-noflash", "exact")]
    for row in rows[3:]:
        assert row["note"] == "interrupted" if row["samples_ns"] is None else 0 < len(row["samples_ns"]) < 200


# ---- another llama-bench --------------------------------------------------------------------------------------------------------


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_peer_is_asked_the_same(synthetic, tmp_path):
    answer = {"build_commit": "abc", "model_filename": str(synthetic()), "n_prompt": 0, "n_gen": 4, "n_depth": 20, "avg_ns": 1000,
              "stddev_ns": 0, "avg_ts": 4e6, "stddev_ts": 0.0, "samples_ns": [1000], "samples_ts": [4e6], "flash_attn": 1, "own_field": 7,
              "n_threads": 2, "model_type": "theirs", "model_size": 5, "model_n_params": 6}
    peer = script(tmp_path / "their-bench", f'echo "$@" > {tmp_path / "asked"}', f"cat <<'END'\n{json.dumps([answer])}\nEND")
    arguments = ["-m", synthetic(), "-p", 0, "-n", 4, "-d", 20, "-r", 1, "-t", 2, "--modes", "exact", "--peer", peer]
    *ours, theirs = json.loads(answered(*arguments, "-o", "json"))
    assert theirs["kv_mode"] == "peer" and theirs["peer"] == "their-bench" and theirs["own_field"] == 7 and theirs["avg_ts"] == 4e6
    assert theirs["test"] == "tg4 @ d20" == ours[0]["test"] and theirs["build_commit"] == "abc" and theirs["note"] is None
    asked = (tmp_path / "asked").read_text().split()
    assert dict(zip(asked[::2], asked[1::2])) == {
        "-m": str(synthetic()), "-p": "0", "-n": "4", "-d": "20", "-b": "2048", "-ub": "512", "-t": "2", "-ctk": "f16", "-ctv": "f16",
        "-r": "1", "-fa": "0,1", "-o": "json"}
    assert "their-bench -fa 1" in answered(*arguments)
    assert "own_field" in answered(*arguments, "-o", "csv").splitlines()[0]


@pytest.mark.parametrize("lines, said", [
    (["echo hello world"], "no JSON, so it is not llama-bench: hello world"), (["echo wrong >&2", "exit 3"], "exit code 3: wrong"),
    (["echo '[{}]'"], "not llama-bench's"), (["echo '[]'"], "not llama-bench's"), (["true"], "it said nothing"),
])
def test_a_peer_that_talks_rubbish_is_a_row(synthetic, tmp_path, lines, said):
    peer = script(tmp_path / "peer", *lines)
    rows = json.loads(answered("-m", synthetic(), "-p", 8, "-n", 0, "-r", 1, "-t", 2, "--modes", "exact", "--peer", peer, "-o", "json"))
    assert said in rows[-1]["note"] and rows[-1]["avg_ts"] is None and rows[-1]["kv_mode"] == "peer"
    assert all(row["avg_ts"] for row in rows[:-1])


def test_a_peer_that_cannot_be_run(synthetic, tmp_path):
    (tmp_path / "text").write_text("hello")
    done = bench("-m", synthetic(), *SMALL, "--peer", tmp_path / "text")
    assert isinstance(done.exception, ConfigError) and "not an executable" in str(done.exception)
