"""The report in a real browser without a window: screen and paper, wide and narrow, light and dark. Skipped where there is none."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.browser import browser, look
from support.results import bench_rows, ladder_rows, plan_document, quality_rows, serve_rows

from edgekv.lab.commands.report import report
from edgekv.lab.report import drawing

LONG = [{**row, "n_threads": threads} for threads in (1, 2, 4) for row in bench_rows()]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A page with every part that needs no trace."""
    folder = tmp_path_factory.mktemp("report")
    for name, rows in {"bench": LONG, "quality": quality_rows(), "ladder": ladder_rows(),
                       "serve": [*serve_rows(1), *serve_rows(4)], "plan": plan_document()}.items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    result = CliRunner().invoke(report, [str(folder)])
    assert result.exit_code == 0, result.output
    return folder / "report.html"


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
