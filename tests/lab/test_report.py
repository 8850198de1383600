"""edgekv.lab.report and `edgekv lab report`: a folder of results as one page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.results import ENVIRONMENT, bench_rows, ladder_rows, quality_rows
from support.servers import plan_document, serve_rows
from support.traces import random_trace

from edgekv.common.errors import ConfigError
from edgekv.lab.commands.report import report as command
from edgekv.lab.report import drawing, page, study
from edgekv.lab.report.inputs import CACHE_FILE, read

HOSTILE = "<script>alert('x')</script> & $x_1$ \"q\""


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> tuple[Path, str]:
    """A folder with everything, and its page."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "ladder.json").write_text(json.dumps(ladder_rows()))
    (folder / "quality.json").write_text(json.dumps(quality_rows()))
    (folder / "bench.jsonl").write_text("\n".join(json.dumps(row) for row in bench_rows()))
    (folder / "serve.json").write_text(json.dumps([*serve_rows(1), *serve_rows(4)]))
    (folder / "plan.json").write_text(json.dumps(plan_document()))
    (folder / "notes.json").write_text('{"a": 1}')
    random_trace(depth=600, n_steps=20).write(folder / "noise.npz")
    result = CliRunner().invoke(command, [str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(folder / "report.html")
    return folder, (folder / "report.html").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Titles of sections, figures in each, and every address that a page loads or leads to."""

    def __init__(self, html: str):
        super().__init__()
        self.sections: dict[str, int] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.add(tag)
        if tag == "section":
            self.sections[values["id"]] = 0
        if tag == "figure":
            self.sections[list(self.sections)[-1]] += 1
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("src", "href", "xlink:href") if name in values]


def test_every_section(full):
    found = Reader(full[1]).sections
    assert list(found) == ["machine", "plan", "speed", "reading", "quality", "retention", "hits", "memory", "serve", "ladder",
                           "budget", "heads", "reads", "roles", "missing"]
    assert found == {**dict.fromkeys(found, 1), "machine": 0, "missing": 0}
    assert "notes.json" in full[1]  # named, since nothing of it is shown


def test_needs_nothing_from_elsewhere(full):
    reader = Reader(full[1])
    assert reader.addresses and all(address.startswith(("#", "data:image/png;base64,")) for address in reader.addresses)
    assert not re.search(r"@import|url\((?!#)|<metadata", full[1])
    assert not reader.tags & {"script", "link", "iframe", "object"}


def test_ids_of_pictures_do_not_meet(full):
    ids = Reader(full[1]).ids
    assert len(set(ids)) == len(ids)


def test_colours_follow_the_reader(full):
    """What is drawn has no colour of its own, but for maps' pixels."""
    pictures = re.findall(r"<svg.*?</svg>", full[1], re.S)
    assert all("var(--ink)" in picture for picture in pictures)
    for light, dark in drawing.VARIABLES.values():
        assert light in full[1] and dark in full[1]
        assert not any(light in picture for picture in pictures)


def test_figures_are_those_of_the_simulator(full):
    """The table of curves has what simulate() gives."""
    from edgekv.lab.traces.sim import Scenario, simulate
    from edgekv.lab.traces.trace import Trace

    with Trace.open(full[0] / "noise.npz") as trace:
        expected = [simulate(trace, Scenario(policy="lru", budget=budget, observe="honest")).hit_rate_mass for budget in study.BUDGETS]
        read = [step.n_read for step in trace if not step.warmup]
    row = re.search(r"<tr><td[^>]*>lru</td>(.*?)</tr>", full[1][full[1].index('id="budget"') :])
    assert re.findall(r">([\d.]+)</td>", row[1]) == [f"{100 * value:.1f}" for value in expected]
    rows = sum(n.sum() for n in read) / 5 / len(read)
    assert f"At a resolution of 600 a head reads {rows:,.0f} rows of 610 for a token ({100 * rows / 610:.1f} %)" in full[1]


def test_again_from_the_cache(full, monkeypatch):
    def refuse(*_):
        raise AssertionError("simulated again")

    folder, before = full
    assert (folder / CACHE_FILE).exists()
    monkeypatch.setattr(study, "simulate", refuse)
    written = page.write(folder, folder.parent / "again.html")
    assert written.missing == [] and written.path.read_text(encoding="utf-8") == before
    with pytest.raises(AssertionError, match="simulated again"):  # other settings are not in it
        page.write(folder, folder.parent / "fewer.html", n_steps=10)


def test_cache_knows_the_trace(tmp_path):
    random_trace(1).write(tmp_path / "noise.npz")
    first = study.identity(tmp_path / "noise.npz")
    random_trace(2).write(tmp_path / "noise.npz")
    assert study.identity(tmp_path / "noise.npz") != first
    random_trace(1).write(tmp_path / "other.npz")
    assert study.identity(tmp_path / "other.npz") == first


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "ladder.json").write_text(json.dumps(ladder_rows(live=False)))
    result = CliRunner().invoke(command, [str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.html").read_text()
    assert list(Reader(text).sections) == ["ladder", "missing"]
    missing = text[text.index('id="missing"') :]
    for title in ("Speed of answers against depth", "Hit rate by mass over the budget", "Hit rate by mass of each head",
                  "What sampling reads", "Quality over", "Retention by task", "Head roles"):
        assert title in missing and f"left out: {title}" in result.stderr
    assert "edgekv lab trace record" in missing and "edgekv lab quality" in missing


def test_what_was_not_measured_stands_beside_its_run(tmp_path):
    """Ratios as they were measured, to the better of stock; each machine and day stands by itself, and what was not to be had is said."""
    note = "llama.cpp needs flash attention for a q8_0 V cache"
    quantised = [{**row, "type_v": "q8_0"} for row in bench_rows(depths=(8000,))]
    for row in quantised:
        row |= {"best_stock": row["kv_mode"] == "off-flash", **({"avg_ts": None, "note": note} if row["kv_mode"] == "off-noflash" else {})}
    other = bench_rows(depths=(8000,), environment={**ENVIRONMENT, "family": "Intel Xeon, Sapphire Rapids, AMX"})
    (tmp_path / "bench.json").write_text(json.dumps([*bench_rows(depths=(8000,)), *quantised, *other]))
    page.write(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert Reader(text).sections == {**dict.fromkeys(("machine", "speed", "reading", "hits", "memory"), 0), "missing": 0}
    tables = re.findall(r"<table>.*?</table>", text[text.index('id="speed"'):text.index('id="reading"')], re.S)
    lines = [[re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><td.*?</tr>", table, re.S)] for table in tables]
    assert [[line[2] for line in table] for table in lines] == [
        ["off-flash", "off-noflash (best stock)", "exact", "sparse", "off-flash (best stock)", "exact", "sparse", "off-noflash"],
        ["off-flash", "off-noflash (best stock)", "exact", "sparse"]]
    assert lines[0][7][-1] == note and lines[0][3][7:9] == ["80.00", "0.80"]
    for where in ("AMD EPYC, Zen 4, AVX-512; 2026-11-22", "Intel Xeon, Sapphire Rapids, AMX; 2026-11-22"):
        assert re.sub(r"\s+", " ", text).count(where) == 4, "answers, prompts, hits, memory"


def test_the_rows_of_bench_are_read(synthetic, tmp_path):
    """What `edgekv bench -o json` prints is what the report shows."""
    from edgekv.cli.bench import bench

    arguments = ["-m", str(synthetic()), "-d", "40", "-p", "16", "-n", "4", "-r", "1", "-t", "1", "--modes", "exact", "-o", "json"]
    for types, file in (("f16", "a.json"), ("q8_0", "b.json")):
        printed = CliRunner().invoke(bench, [*arguments, "-ctv", types])
        assert printed.exit_code == 0, printed.output
        (tmp_path / file).write_text(printed.stdout)
    rows = json.loads(printed.stdout)
    found = read(tmp_path)
    assert len(found.speeds) == 2 * 6 and not found.ignored
    machine, *sections = [section for section in page.all_sections(found, []) if not section.missing]
    assert [section.key for section in sections] == ["speed", "reading", "memory"] and machine.key == "machine"
    (table,) = sections[1].tables
    of = {(line[table.columns.index("mode")].split()[0], line[table.columns.index("K/V")]): dict(zip(table.columns, line)) for line in table.rows}
    assert set(of) == {(mode, f"f16/{types}") for mode in ("off-flash", "off-noflash", "exact") for types in ("f16", "q8_0")}
    assert of["off-noflash", "f16/q8_0"]["note"] == "llama.cpp needs flash attention for a q8_0 V cache"
    row = next(row for row in rows if (row["kv_mode"], row["n_gen"]) == ("exact", 0))
    line = of["exact", "f16/q8_0"]
    assert (line["tokens/s"], line["x stock"]) == (f"{row['avg_ts']:,.2f}", f"{row['ratio_vs_stock']:.2f}") and line["ns/pair"] != "–"
    assert row["environment"]["family"] in table.caption and row["environment"]["date"] in table.caption
    page.write(tmp_path)
    assert "Speed of prompts" in (tmp_path / "report.html").read_text()


def test_quality_by_what_is_read(tmp_path):
    """A mode at several settings is one line, over the tokens that it read; what attends everything is no point of a line."""
    modes = {"sparse": (0.066, 0.006), "sparse:sample_budget=1000": (0.042, 0.02), "ema:attend=10%,policy=lru": (0.11, 0.07),
             "ema": (0.13, 0.05)}
    rows = [{**row, "attended_fraction": modes[mode][0], "kld_exact": modes[mode][1] if row["mode"] == mode else row.get("kld_exact")}
            for mode in modes for row in quality_rows(mode)]
    (tmp_path / "quality.json").write_text(json.dumps(rows))
    page.write(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert Reader(text).sections == {"quality": 1, "retention": 1, "missing": 0}
    section = text[text.index('<section id="quality"') : text.index('<section id="retention"')]
    table = section[section.index("<table>") :]
    assert [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><td.*?</tr>", table, re.S)] == [
        ["sparse", "sample budget 1000", "4.2", "2.0e-02", "96.0"], ["sparse", "default", "6.6", "6.0e-03", "96.0"],
        ["ema", "default", "13.0", "5.0e-02", "96.0"], ["ema:policy=lru", "10%", "11.0", "7.0e-02", "96.0"]]
    assert ">stock llama.cpp<" in section
    assert "comes sparse (KLD 6.0e-03, same top token 96.0 %, 6.6 % of the tokens read), and least near ema:policy=lru" in section
    tasks = text[text.index('<section id="retention"') :]
    assert '<td class="left">exact</td>' not in tasks and tasks.count('<td class="left">passkey</td>') == len(modes)


def test_hostile_names(tmp_path):
    """Names come from files that others made."""
    rows = ladder_rows(text=HOSTILE, model=HOSTILE)
    for row in rows:
        row["rung"] = f"{row['rung']} {HOSTILE}"
    (tmp_path / "ladder.json").write_text(json.dumps(rows))
    (tmp_path / "quality.json").write_text(json.dumps(quality_rows(mode=HOSTILE)))
    (tmp_path / "<b>.json").write_text("[]")
    page.write(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and "<b>" not in text
    assert "script" not in Reader(text).tags
    assert "$x_1$" in text  # not taken for mathematics


@pytest.mark.parametrize("content, says", [
    (None, "is not a folder"), ({}, "nothing to report on"), ({"a.json": "{"}, "a.json is not JSON"),
    ({"a.npz": "x"}, "a.npz is not a trace"), ({"a.json": "[1, null]"}, "nothing to report on"),
], ids=str)
def test_refuses(content, says, tmp_path):
    folder = tmp_path / "folder"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    result = CliRunner().invoke(command, [str(folder)])
    assert isinstance(result.exception, ConfigError) and says in str(result.exception)
    assert result.exception.exit_code == 2 and not (folder / "report.html").exists()


def test_refuses_before_it_simulates(tmp_path, monkeypatch):
    random_trace().write(tmp_path / "noise.npz")
    monkeypatch.setattr(page, "Study", None)
    for out in (tmp_path, tmp_path / "no" / "page.html"):
        with pytest.raises(ConfigError, match="is a folder|cannot be written"):
            page.write(tmp_path, out)


def test_several_runs_of_a_task_add_up():
    """Of other lengths or seeds: the counts, and the interval of their sum."""
    from edgekv.lab.report.studies import retention
    from edgekv.lab.results.retention import Retention

    def row(**counts: int) -> dict:
        return {"kind": "task", "task": "passkey", "mode": "sparse", "length": None, "model": "tiny.gguf", **counts}

    section = retention([row(asked=4, full_found=3, found=3, kept=3), row(asked=6, full_found=5, found=4, kept=4)])
    whole = Retention(10, 8, 7, 7).row()
    (task, mode, asked, full, kept, share, interval), = section.tables[0].rows
    assert (task, mode, asked, full, kept) == ("passkey", "sparse", "10", "8", "7")
    assert share == "88" and interval == f"{100 * whole['retention_low']:.0f} to {100 * whole['retention_high']:.0f}"
