"""`edgekv lab report`: a folder of results as one page, and that page in a real browser without a window."""

import base64
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner
from support.browser import browser, contrast, look
from support.results import ENVIRONMENT, bench_rows, ladder_rows, plan_document, quality_rows, serve_rows
from support.traces import random_trace

from edgekv.cli.bench import bench
from edgekv.common.errors import ConfigError
from edgekv.lab.commands.report import report
from edgekv.lab.commands.sim import sim
from edgekv.lab.report import drawing
from edgekv.lab.report.drawing import MissingLibrary
from edgekv.lab.report.inputs import Folder
from edgekv.lab.report.pictures import LIMIT
from edgekv.lab.report.sections import Section
from edgekv.lab.report.speeds import answers_or_prompts, memory

HOSTILE = "<script>alert('x')</script> & $x_1$ \"q\""


class Page(HTMLParser):
    """Sections with the number of their figures and the rows of their tables, ids, and every address that a page loads or leads to."""

    def __init__(self, html: str):
        super().__init__()
        self.html = html
        self.sections: dict[str, int] = {"": 0}
        self.rows: dict[str, list[list[str]]] = {"": []}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.add(tag)
        if tag == "section":
            self.sections[values["id"]], self.rows[values["id"]] = 0, []
        if tag == "figure":
            self.sections[list(self.sections)[-1]] += 1
        if tag == "tr":
            self.rows[list(self.sections)[-1]].append([])
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("src", "href", "xlink:href") if name in values]

    def handle_data(self, data):
        rows = self.rows[list(self.sections)[-1]]
        if self.lasttag in ("td", "th") and data.strip():
            rows[-1].append(data.replace("\u2060", "").replace("\u00a0", " "))


def made(folder: Path, *options: str, **files: object) -> Page:
    """The page of a folder with these files."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    result = CliRunner().invoke(report, [str(folder), "-o", str(folder / "page.html"), *options], catch_exceptions=False)
    assert result.exit_code == 0 and result.stdout.strip() == str(folder / "page.html")
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    for line in result.stderr.splitlines():
        title, _, needs = line.removeprefix("left out: ").partition("; it needs ")
        assert f"<li>{title}: it needs {needs}</li>" in page.html
    return page


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Page:
    """The page of a folder with everything."""
    folder = tmp_path_factory.mktemp("full")
    random_trace(depth=600, n_steps=20).write(folder / "noise.npz")
    simulated = CliRunner().invoke(sim, [str(folder / "noise.npz"), "--policy", "lru", "--budget", "10%,25%", "-o", "json"])
    (folder / "bench.jsonl").write_text("\n".join(json.dumps(row) for row in bench_rows()))
    return made(folder, ladder=ladder_rows(), quality=quality_rows(), serve=[*serve_rows(1), *serve_rows(4)], plan=plan_document(),
                sim=json.loads(simulated.stdout), notes={"a": 1})


def test_a_page_of_everything(full):
    """The sentence and one picture first, then every part; what nothing is shown of is named."""
    assert full.sections == {"": 1, "speed": 0, "quality": 1, "reading": 1, "retention": 1, "hits": 1, "memory": 1, "serve": 1, "plan": 0,
                             "ladder": 1, "budget": 1, "missing": 0}
    start = full.html[full.html.index("<h1>") : full.html.index("<nav")]
    assert "EdgeKV: tiny<" in start and "At 8,000 tokens sparse decodes no faster than llama.cpp: 80.0 tokens/s." in start
    assert "Reading 6.6 % of the tokens, sparse differs from full attention by a KLD of 6.0e-03, outside the 4.0e-03 between" in start
    assert "notes.json" in full.html and "memory 18.3 GB/s" in full.html


def test_it_needs_nothing_from_elsewhere(full):
    assert full.addresses and all(address.startswith("#") for address in full.addresses)
    assert not re.search(r"@import|url\((?!#)|<metadata", full.html)
    assert not full.tags & {"script", "link", "iframe", "object"}
    assert len(set(full.ids)) == len(full.ids)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_everything_stands_out_from_the_ground(full, theme):
    """Of the page's colours, as WCAG 2 wants it for text and for lines; the grid is faint."""
    assert {*re.findall("#[0-9a-f]{6}", full.html)} <= {colour for pair in drawing.VARIABLES.values() for colour in pair}
    colours = {name: tuple(bytes.fromhex(pair[theme][1:])) for name, pair in drawing.VARIABLES.items()}
    ground = colours.pop("paper")
    assert (sum(ground) < 200) == theme
    assert [name for name, colour in colours.items() if contrast(colour, ground) < (4.5 if name in ("ink", "muted", "blue") else 3)] == ["grid"]


def test_tables_are_those_of_the_commands(full):
    """Columns without figures are left out, what all rows share stands above, and no table has more columns than a sheet is wide."""
    assert "prefetch none" in full.html and full.rows["budget"][0] == ["budget", "hits %", "hit mass %", "worst %", "hot %", "fetched"]
    speeds = full.rows["speed"]
    assert speeds[0][:5] == ["test", "mode", "tokens/s", "±", "x stock"] and max(map(len, speeds)) == 14
    assert ["tg64 @ d8000", "sparse", "80.00", "0.80", "1.00"] in [row[:5] for row in speeds] and "text prose; K/V f16/f16; threads 2" in full.html
    assert ["passkey", "8", "6", "75.0", "41..93"] in full.rows["retention"] and "cannot do uuid" in full.html
    assert ["sparse", "decode", "4", "2.6"] in [row[:4] for row in full.rows["serve"]]
    assert ["weights", "92.0 MiB", "known", "mapped from the file"] in full.rows["plan"]
    assert ["10", "lru", "70.0"] in [row[:3] for row in full.rows["ladder"]]


def test_what_is_missing_is_named(tmp_path):
    page = made(tmp_path, ladder=ladder_rows())
    assert list(page.sections) == ["", "ladder", "missing"]
    for needed in ("edgekv bench -o json", "edgekv lab quality", "edgekv lab sim", "edgekv bench serve"):
        assert needed in page.html[page.html.index('id="missing"') :]


def test_hostile_names(tmp_path):
    """Names come from files that others made."""
    rows = [{**row, "rung": f"{row['rung']} {HOSTILE}"} for row in ladder_rows(text=HOSTILE, model=HOSTILE)]
    page = made(tmp_path, ladder=rows, quality=quality_rows(mode=HOSTILE), **{"<b>": []})
    assert "<script" not in page.html and "<b>" not in page.html
    assert "script" not in page.tags and "$x_1$" in page.html  # not taken for mathematics


@pytest.mark.parametrize("files, options, says", [
    (None, [], "is not a folder"), ({}, [], "nothing to report on"), ({"a.json": "{"}, [], "a.json is not JSON"),
    ({"a.json": "[1, null]"}, [], "nothing to report on"),
    ({"a.json": json.dumps(bench_rows(depths=(4000,)))}, ["--speed", "x.svg"], "two depths; measure with `edgekv bench -p 0 -d 512,7680 -o json`"),
    ({"a.json": json.dumps(bench_rows())}, ["--speed", "x.txt"], "the picture is x.txt; its name must end in .png or .svg"),
    ({"a.json": json.dumps(bench_rows())}, ["--speed", "no/x.svg"], "no/x.svg cannot be written: there is no such folder"),
    ({"a.json": json.dumps(ladder_rows())}, ["-o", "no/page.html"], "no/page.html cannot be written"),
], ids=str)
def test_refuses(files, options, says, tmp_path):
    folder = tmp_path / "folder"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    result = CliRunner().invoke(report, [str(folder), *options])
    assert isinstance(result.exception, ConfigError) and says in str(result.exception)
    assert not (folder / "report.html").exists()


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    result = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(result.exception, MissingLibrary) and result.exception.exit_code == 5 and "pip install ./edgekv/lab" in str(result.exception)


def test_every_picture_as_files(tmp_path):
    """Light for whatever shows it, dark where a browser is asked to be."""
    page = made(tmp_path, "--plots", str(tmp_path / "new" / "plots"), "--speed", str(tmp_path / "speed.svg"), bench=bench_rows())
    found = sorted(path.name for path in (tmp_path / "new" / "plots").iterdir())
    assert found == [f"{name}{ending}" for name in ("hits", "memory", "reading", "speed") for ending in (".png", ".svg")]
    drawn = (tmp_path / "new" / "plots" / "speed.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and f"fill: {drawing.INK}" in drawn
    for light, dark in drawing.VARIABLES.values():
        assert f'[style*="fill: {light}"]{{fill:{dark}!important}}' in drawn
    assert (tmp_path / "new" / "plots" / "speed.png").read_bytes().startswith(b"\x89PNG")
    times = (tmp_path / "speed.svg").read_text()
    for words in ("stock llama.cpp", "exact", "sparse", "tokens in the context", "tg64, 2 threads"):
        assert f">{words}<" in times and f">{words}<" in page.html
    assert ">ms per token<" in times and ">tokens/s<" in page.html and "off-flash" not in times


def test_the_plan_of_a_model(tmp_path, monkeypatch):
    """As the command prints it; what does not fit is a plan, too. Without rows of bench its estimates are drawn."""
    @click.command()
    @click.argument("model")
    @click.option("--json", "as_json", is_flag=True, required=True)
    def plan(model: str, as_json: bool) -> int:
        click.echo(json.dumps({**plan_document(), "model": model}))
        return 4

    monkeypatch.setattr("edgekv.cli.plan.plan", plan)
    page = made(tmp_path, "-m", "asked.gguf")
    assert page.sections == {"": 1, "speed": 0, "reading": 1, "plan": 0, "missing": 0} and "EdgeKV: asked<" in page.html


def test_the_rows_of_bench_are_read(synthetic, tmp_path):
    """What `edgekv bench -o json` prints is what the report shows."""
    files = {}
    for types in ("f16", "q8_0"):
        printed = CliRunner().invoke(bench, ["-m", str(synthetic()), "-d", "40", "-p", "16", "-n", "4", "-r", "1", "-t", "1", "--modes", "exact",
                                             "-ctv", types, "-o", "json"])
        assert printed.exit_code == 0, printed.output
        files[types] = json.loads(printed.stdout)
    page = made(tmp_path, **files)
    assert list(page.sections) == ["", "speed", "reading", "missing"]
    assert ["off-noflash", "f16/q8_0", "llama.cpp needs flash attention for a q8_0 V cache"] in [[*row[:2], row[-1]] for row in page.rows["reading"]]
    row = next(row for row in files["q8_0"] if (row["kv_mode"], row["n_gen"]) == ("exact", 0))
    assert [f"{row['avg_ts']:,.2f}", f"{row['stddev_ts']:,.2f}", f"{row['ratio_vs_stock']:.2f}"] in [line[2:5] for line in page.rows["reading"]]
    assert row["environment"]["family"] in page.html and row["environment"]["date"] in page.html


def test_machines_stand_apart(tmp_path):
    """Each machine has its picture and table, with what was not to be had; the newest begins."""
    note = "does not fit: 40 GiB of 24 free"
    other = {**ENVIRONMENT, "family": "Intel Xeon, Ice Lake", "date": "2026-11-23"}
    lost = bench_rows(("exact",), (64000,), avg_ts=None, note=note, limit_ratio=None)
    page = made(tmp_path, bench=[*bench_rows(), *bench_rows(environment=other), *lost])
    assert page.sections[""] + page.sections["speed"] == 2
    assert page.html.index("Intel Xeon, Ice Lake; 2026-11-23") < page.html.index("AMD EPYC, Zen 4, AVX-512; 2026-11-22")
    assert [row[-1] for row in page.rows["speed"] if row[0] == "tg64 @ d64000"][-1] == note


def test_quality_by_what_is_read(tmp_path):
    """A mode at several settings is one line, over the tokens that it read; what attends everything is no point of a line."""
    modes = {"sparse": (0.066, 0.006), "sparse:sample_budget=1000": (0.042, 0.02), "evict:evict_to=10%,policy=lru": (0.11, 0.07)}
    rows = [{**row, "attended_fraction": modes[mode][0], "kld_exact": modes[mode][1] if row["mode"] == mode else row.get("kld_exact")}
            for mode in modes for row in quality_rows(mode)]
    page = made(tmp_path, quality=rows)
    assert [row[:4] for row in page.rows["quality"][1:]] == [
        ["evict:policy=lru", "evict_to=10%", "11.0", "7.0e-02"], ["sparse", "sample_budget=1000", "4.2", "2.0e-02"],
        ["sparse", "default", "6.6", "6.0e-03"]]
    assert ">stock llama.cpp<" in page.html and not any("exact" in row for row in page.rows["retention"])


def known(rows: list[dict]) -> list[dict]:
    folder = Folder()
    folder.add(rows, "rows.json")
    return [row for found in folder.rows.values() for row in found]


def lines(section: Section, axes: int = 0) -> dict[str, tuple[list[float], list[float]]]:
    """By name the depths and figures that the first picture shows."""
    with drawing.style():
        return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in section.pictures[0].figure.axes[axes].lines}


def test_stock_is_its_faster_kernel_at_each_depth():
    rows = known(bench_rows())
    for row in rows:  # with an empty cache the other one is faster
        row["best_stock"] = row["kv_mode"] == ("off-flash" if row["n_depth"] == 0 else "off-noflash")
        row["avg_ts"] += row["kv_mode"] == "off-flash"
    found = lines(answers_or_prompts(rows, None, prompts=False))
    assert found["stock llama.cpp"] == ([0, 4000, 8000], pytest.approx([101, 1e3 / 30, 20]))
    assert found[LIMIT][1] == pytest.approx([100] * 3, rel=0.02)


def test_the_plan_is_drawn_beside_its_own_model_only():
    (plan,), rows = known([plan_document()]), known(bench_rows())
    drawn = {name: xy for name, xy in lines(answers_or_prompts(rows, plan, prompts=False)).items() if name.startswith("_")}
    assert {name: x for name, (x, _) in drawn.items()} == {f"_{name}": [4000, 8000] for name in ("stock llama.cpp", "exact", "sparse")}  # as measured
    other = answers_or_prompts(rows, {**plan, "model": "other.gguf"}, prompts=False)
    assert not any(name.startswith("_") for name in lines(other))


def test_budgets_of_one_mode_are_lines_of_their_own():
    rows = known([*bench_rows(("sparse",), kv_budget_mib=16.0), *bench_rows(("sparse",), kv_budget_mib=0.0)])
    assert list(lines(answers_or_prompts(rows, None, prompts=False))) == ["sparse, 16 MiB", "sparse, 0 MiB", LIMIT]
    growing = [{**row, "kv_budget_mib": 10 + row["n_depth"] / 100} for row in known(bench_rows(("sparse",)))]
    assert list(lines(answers_or_prompts(growing, None, prompts=False))) == ["sparse", LIMIT]


def test_memory_is_the_most_of_a_mode_at_a_depth():
    rows = [{**row, "ram_peak_mib": row["ram_peak_mib"] + 5 * (row["n_prompt"] > 0)} for row in known(bench_rows())]
    found = lines(memory(rows))
    assert {name: y[-1] for name, (_, y) in found.items()} == {"stock llama.cpp": 455, "exact": 455, "sparse": 495}


# ---- in a browser ----------------------------------------------------------------------------------------------------------------


LONG = [{**row, "n_threads": threads} for threads in (1, 2, 4) for row in bench_rows()]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A page with every part that needs no trace."""
    folder = tmp_path_factory.mktemp("report")
    made(folder, bench=LONG, quality=quality_rows(), ladder=ladder_rows(), serve=[*serve_rows(1), *serve_rows(4)], plan=plan_document())
    return folder / "page.html"


@pytest.fixture(scope="module")
def opened(written) -> Iterator[Any]:
    with browser() as window:
        yield window


def show(opened: Any, written: Path, width: int = 1200, theme: str = "light") -> None:
    look(opened, width, theme)
    opened.get(f"file://{written}")


def test_it_asks_nobody_and_breaks_nothing(opened, written):
    opened.get_log("browser")
    show(opened, written)
    assert opened.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert opened.get_log("browser") == []
    assert opened.execute_script("return document.querySelectorAll('figure').length") == 8


WIDER = """
const wide = [...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.right > innerWidth + 1 && !element.closest(".scrolled");
});
return wide.map((element) => element.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits(opened, written, width, theme):
    """Only tables and a few pictures are scrolled, each by itself."""
    show(opened, written, width, theme)
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    assert opened.execute_script(WIDER) == []


INSIDE = """
return [...document.querySelectorAll("svg")].filter((svg) => svg.getBoundingClientRect().width).flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  }).map((text) => text.textContent);
});
"""


@pytest.mark.parametrize("width", [400, 1200])
def test_no_label_is_cut(opened, written, width):
    show(opened, written, width)
    assert opened.execute_script(INSIDE) == []


BROKEN = """
const found = [];
for (const element of document.querySelectorAll("h1, h2, p, li, td, th, figcaption")) {
  for (const node of element.childNodes) if (node.nodeType === 3) for (const word of node.data.matchAll(/[^\\s-]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) found.push(word[0]);
  }
}
return found;
"""


def test_on_paper(opened, written):
    """Light whatever the reader prefers, the long tables open, and nothing beside the page: a table that is too wide would be cut."""
    look(opened, 700, "dark")  # the width of a sheet between its margins
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    opened.get(f"file://{written}")
    ink = opened.execute_script("return getComputedStyle(document.querySelector('h1')).color")
    closed = opened.execute_script("return document.querySelectorAll('details:not([open])').length")
    cells = opened.execute_script("return [...document.querySelectorAll('details td')].map((cell) => cell.getBoundingClientRect().height)")
    assert ink == "rgb({}, {}, {})".format(*bytes.fromhex(drawing.INK[1:]))
    assert closed > 0 and min(cells) > 5
    assert opened.execute_script(BROKEN) == []
    assert opened.execute_script("return document.documentElement.scrollWidth") == 700
    printed = base64.b64decode(opened.execute_cdp_cmd("Page.printToPDF", {})["data"])
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert printed.startswith(b"%PDF") and 5 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 25
