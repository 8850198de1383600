"""`edgekv bench cache`: what it keeps, gets back and says. No speed is asserted."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.calls import watch
from support.clients import until
from support.redis_server import RedisServer
from support.serve_process import EDGEKV

from edgekv.bench import kept_rows
from edgekv.bench.kept_rows import KeptBench, run
from edgekv.bench.text import Text, standard_text
from edgekv.cli.main import cli
from edgekv.common.enums import CacheCodec
from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError
from edgekv.models import geometry
from edgekv.prefix_cache.coming import BlockReader
from edgekv.server.prefixes import Prefixes

N = 600
SMALL = {"n_tokens": N, "n_predicted": 4, "n_turns": 2, "n_threads": 1}


@pytest.fixture
def model(synthetic) -> Path:
    return synthetic("llama", n_layer=3, head_dim=64, n_ctx_train=2048)


def measure(model: Path, **settings) -> dict[tuple[str, str | None], dict]:
    *_, rows = run(KeptBench(model, (standard_text(),), **{**SMALL, **settings}))
    return {(row["place"], row["codec"]): row for row in rows}


def test_a_row_for_each_place_and_codec(model, tmp_path):
    rows = measure(model, folder=tmp_path)
    assert list(rows) == [("none", None), ("ram", "none"), ("disk", "none"), ("disk", "round")]
    for (place, codec), row in rows.items():
        assert row["n_tokens"] == N and row["turns"] == 2 and 0 < row["first_min_s"] <= row["first_s"] <= row["first_max_s"]
        assert (row["save_s"] is None) == (row["bytes_a_token"] is None) == (place == "none")
        assert (row["kld"] == 0) == (codec == "none"), "the same rows say the same; rounded ones do not"
    per_token = geometry(model).kv_bytes_per_token()
    assert rows["ram", "none"]["bytes_a_token"] == pytest.approx(per_token, rel=0.02)
    assert per_token < rows["disk", "none"]["bytes_a_token"] < 1.1 * per_token, "and headers"
    assert rows["disk", "round"]["bytes_a_token"] < 0.6 * per_token
    assert os.listdir(tmp_path) == []


def test_a_shared_server(model, tmp_path):
    server = RedisServer(tmp_path)
    try:
        rows = measure(model, url=server.url)
        assert list(rows) == [("none", None), ("ram", "none"), ("shared", "none"), ("shared", "round")]
        assert rows["shared", "none"]["kld"] == 0 < rows["shared", "round"]["kld"]
        assert rows["shared", "round"]["bytes_a_token"] < 0.6 * rows["shared", "none"]["bytes_a_token"]
        assert 0 < max(server.client.ttl(key) for key in server.client.scan_iter()) <= 900, "the rows go by themselves"
    finally:
        server.kill()


@pytest.mark.parametrize("kind", ["gemma2", "lfm2"])
def test_models_that_keep_more_than_rows(synthetic, tmp_path, kind):
    rows = measure(synthetic(kind), folder=tmp_path, codecs=(CacheCodec.NONE,))
    assert rows["ram", "none"]["kld"] == rows["disk", "none"]["kld"] == 0


def test_each_turn_reads_a_text_and_begins_with_another_place(model, tmp_path, monkeypatch):
    seen = []
    watch(monkeypatch, kept_rows._Turn, "bring_back", lambda turn, kept: seen.append((turn.text.name, kept.way.name)))
    text = standard_text()
    bench = KeptBench(model, (text, Text("other", text.content[500:])), folder=tmp_path, codecs=(CacheCodec.ROUND,), **SMALL)
    *_, rows = run(bench)
    assert {row["texts"] for row in rows} == {"prose, other"}
    assert seen == [("prose", "ram, none"), ("prose", "disk, round"), ("other", "disk, round"), ("other", "ram, none")]


def gone(*arguments):
    raise FileNotFoundError


def test_rows_that_a_place_does_not_keep_or_give_back_are_an_error(model, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Prefixes, "insert", lambda *_: None)
        with pytest.raises(EdgeKVError, match="nothing was kept in ram"):
            measure(model)
    with monkeypatch.context() as patch:
        patch.setattr(BlockReader, "read", gone)
        with pytest.raises(EdgeKVError, match="rows from disk were damaged or gone"):
            measure(model, folder=tmp_path)


@pytest.mark.parametrize("settings, said", [
    ({"folder": Path("nowhere")}, "there is no folder nowhere"), ({"n_tokens": 10**6}, "1,000,036 are needed; name a longer one"),
])
def test_what_cannot_be_measured(model, settings, said):
    with pytest.raises(ConfigError, match=said):
        measure(model, **settings)


def test_a_context_that_does_not_fit(model, monkeypatch):
    monkeypatch.setattr("edgekv.opening.available_bytes", lambda: 1 << 20)
    with pytest.raises(DoesNotFit):
        measure(model)


def test_the_command(model, tmp_path):
    arguments = ["bench", "cache", str(model), "-p", "300", "-n", "2", "-r", "1", "-t", "1", "--cache-dir", str(tmp_path)]
    done = CliRunner().invoke(cli, [*arguments, "--codecs", "round", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert [(row["place"], row["codec"]) for row in json.loads(done.stdout)] == [("none", None), ("ram", "none"), ("disk", "round")]
    table = CliRunner().invoke(cli, arguments).stdout
    assert {"place", "codec", "B/token", "first token s", "KLD"} <= {title.strip() for line in table.splitlines() for title in line.split("  ")}
    for wrong, said in ((["--codecs", "auto"], "auto"), (["--cache-url", "http://x"], "must begin with redis://"), (["-p", "0"], "0")):
        done = CliRunner().invoke(cli, [*arguments, *wrong])
        assert done.exit_code == 2 and said in done.stderr


def test_it_ends_with_a_sentence_also_where_somebody_ends_it(model, tmp_path):
    program = [*EDGEKV, "bench", "cache", str(model), "-p", "300", "-n", "2", "-r", "100000", "-t", "1", "--cache-dir", str(tmp_path), "--codecs", "none"]
    bench, folders = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), set()
    until(lambda: folders.update(os.listdir(tmp_path)) or len(folders) > 1)  # each turn has its own, so the first is over
    bench.send_signal(signal.SIGTERM)
    said, errors = bench.communicate(timeout=60)
    assert bench.returncode == 143 and "Traceback" not in errors and os.listdir(tmp_path) == [], errors
    assert re.match(r"300 tokens are back after [\d.]+ s from RAM and [\d.]+ s from disk; reading them takes [\d.]+ s", said.splitlines()[-1]), said
