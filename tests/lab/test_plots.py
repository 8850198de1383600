"""The report's pictures by themselves: labels, ticks, style, and the plot of speed against depth."""

import json
import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from support.results import bench_rows

from edgekv.common.errors import ConfigError
from edgekv.lab.commands.report import report as command
from edgekv.lab.report import drawing, page


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


