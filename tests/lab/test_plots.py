"""The report's pictures by themselves: labels, ticks, style, and the plot of speed against depth."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from support.results import bench_rows

from edgekv.common.errors import ConfigError
from edgekv.lab.commands.report import report as command
from edgekv.lab.report import charts, drawing, page


def test_labels_keep_apart():
    """Names of lines that end at one point do not lie over each other, and stay in order."""
    from matplotlib.text import Text

    lines = [charts.Line(f"line {i}", (0.1, 0.3), (0.5, 0.9 + i / 1000)) for i in range(6)]
    figure = charts.line_chart([charts.Panel("title", lines, "y")], "x")
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if text.get_text().startswith("line")]
    boxes = [Text.get_window_extent(label) for label in labels]  # an annotation's own extent has its leader in it
    places = sorted((box.y0, box.y1, label.get_text()) for box, label in zip(boxes, labels))
    assert [name for *_, name in places] == [f"line {i}" for i in range(6)]
    assert all(below[1] <= above[0] + 2 for below, above in pairwise(places))


def test_style_is_not_left_behind():
    import matplotlib

    before = dict(matplotlib.rcParams)
    charts.line_chart([charts.Panel("title", [charts.Line("a", (0.1, 0.2), (0.5, 0.6))], "y", "missed")], "x")
    assert dict(matplotlib.rcParams) == before


def test_ticks_keep_apart():
    assert charts._apart([5, 10, 12.5, 20, 30]) == [5, 10, 20, 30] and charts._apart([]) == [] == charts._apart(())


def test_speed_is_plotted_against_depth(tmp_path):
    """On the page, and as a file: a line for stock's best and each mode, from the smaller depth to the larger."""
    (tmp_path / "bench.json").write_text(json.dumps(bench_rows()))
    picture = tmp_path / "speed.svg"
    done = CliRunner().invoke(command, [str(tmp_path), "--speed", str(picture)])
    assert done.exit_code == 0, done.output
    drawn, shown = picture.read_text(), (tmp_path / "report.html").read_text()
    for words in ("stock llama.cpp", "exact", "sparse", "tokens in the context", "tg64, 2 threads"):
        assert f">{words}<" in drawn and f">{words}<" in shown
    assert ">ms per token<" in drawn and ">tokens/s<" in shown
    assert "off-flash" not in drawn


@pytest.mark.parametrize(("rows", "name", "sentence"), [
    (bench_rows(depths=(4000,)), "speed.svg", "the plot needs rows of two depths; measure with `edgekv bench -p 0 -d 512,7680 -o json`"),
    (bench_rows(), "speed.txt", "the picture is speed.txt; its name must end in .png or .svg"),
])
def test_a_plot_that_cannot_be_is_refused(tmp_path, rows, name, sentence):
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    with pytest.raises(ConfigError) as caught:
        page.write(tmp_path, request=page.ReportRequest(speed=tmp_path / name))
    assert str(caught.value) == sentence and not (tmp_path / "report.html").exists()


def test_every_picture_as_files(tmp_path):
    """Light for whatever shows it, dark where a browser is asked to be."""
    (tmp_path / "bench.json").write_text(json.dumps(bench_rows()))
    done = CliRunner().invoke(command, [str(tmp_path), "--plots", str(tmp_path / "new" / "plots")])
    assert done.exit_code == 0, done.output
    found = sorted(path.name for path in (tmp_path / "new" / "plots").iterdir())
    assert found == [f"{name}{ending}" for name in ("hits", "memory", "reading", "speed") for ending in (".png", ".svg")]
    drawn = (tmp_path / "new" / "plots" / "speed.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    style = re.search(r"<style>(.*?)</style>", drawn, re.S)[1]
    for light, dark in drawing.VARIABLES.values():
        assert f'[style*="fill: {light}"]{{fill:{dark}!important}}' in style
    assert f"fill: {drawing.INK}" in drawn and "var(--" not in drawn
    assert (tmp_path / "new" / "plots" / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_plots_need_a_folder(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(bench_rows()))
    with pytest.raises(ConfigError, match=r"the plots cannot be written to .*bench.json"):
        page.write(tmp_path, request=page.ReportRequest(plots=tmp_path / "bench.json"))
    assert not (tmp_path / "report.html").exists()


def test_round_ticks_or_what_was_measured():
    def ticks(values: tuple[float, ...], narrow: bool = False) -> list[float]:
        figure = charts.line_chart([charts.Panel("t", [charts.Line("a", values, values)], "y", "plain")], "x", percent_x=False, narrow=narrow)
        return list(figure.axes[0].get_xticks())

    assert ticks((0, 2048, 4096, 8192, 16384)) == [0, 2048, 4096, 8192, 16384]
    assert ticks((0, 2048, 4096, 8192, 16384), narrow=True) == [0, 4096, 8192, 16384]
    assert ticks((0.0, 1.37, 2.9, 4.1)) == [0, 1, 2, 3, 4]


def test_long_names_stand_below_a_narrow_picture():
    lines = [charts.Line(name, (0, 1), (0, 1)) for name in ("sparse", "ema+anchor+recent, sampled, one pool")]
    wide, narrow = (charts.line_chart([charts.Panel("t", lines, "y")], "x", narrow=narrow) for narrow in (False, True))
    assert {"sparse"} <= {text.get_text() for text in wide.axes[0].texts} and not wide.legends
    assert not narrow.axes[0].texts and [text.get_text() for text in narrow.legends[0].get_texts()] == [line.name for line in lines]
