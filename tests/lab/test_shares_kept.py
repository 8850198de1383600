"""The plot of KL divergence against what a policy keeps (edgekv/policies/kept.svg)."""

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

from edgekv.lab.report import drawing, shares_kept

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "edgekv" / "lab" / "results"


def test_a_curve_is_the_mean_of_the_texts(tmp_path):
    (tmp_path / "policies_bounded.csv").write_text("policy,kept_of_4096,kld_a,kld_b,same_top_%\nlru+anchor,1024,0.1,0.3,80\nlru+anchor,2048,0.1,0.1,90\n")
    (tmp_path / "policies_in_evict.csv").write_text(
        "mode,kept_%,kld_a,kld_b\noff,100,0.01,0.03\nsparse (1024 rows a head),100,0.2,0.4\nsparse:sample_budget=1 (512 rows a head),100,1,1\n"
        "lru,10,0.5,0.7\n")
    assert shares_kept.bounded(tmp_path) == {"lru": [(0.25, pytest.approx(0.2)), (0.5, pytest.approx(0.1))]}
    assert shares_kept.read_whole(tmp_path) == {"sparse": [(0.125, 1.0), (0.25, pytest.approx(0.3))], "lru": [(0.1, pytest.approx(0.6))]}
    assert shares_kept.noise(tmp_path) == pytest.approx(0.02)


def test_every_policy_of_the_tables_is_drawn(tmp_path):
    """The named ones by name, the others in grey, "none" not at all: it is far above the rest."""
    curves = []
    for table in (shares_kept.DEFAULT, shares_kept.GEMMA):
        rows = list(csv.DictReader((TABLES / table).open(encoding="utf-8")))
        curves.append(shares_kept.read_whole(TABLES, table))
        assert set(curves[-1]) == {row["mode"].partition("+")[0].partition(":")[0].partition(" ")[0] for row in rows} - {"off"}
        streaming = next(row for row in rows if (row["mode"], row["kept_%"]) == ("streaming", "20"))
        assert dict(curves[-1]["streaming"])[0.2] == fmean(float(streaming[name]) for name in ("kld_vim", "kld_perldiag", "kld_c++"))
    figure = shares_kept.chart(TABLES)
    drawn_on = [axes for axes in figure.axes if axes.get_visible()]
    for axes, table, extra in zip(drawn_on, (shares_kept.bounded(TABLES), *curves), (1, 0, 0), strict=True):  # stock's line; and without "none"
        assert len(axes.lines) == len(table) + extra
    drawing.save(figure, tmp_path / "kept.svg")
    drawn, shown = (tmp_path / "kept.svg").read_text(), (ROOT / "edgekv" / "policies" / "kept.svg").read_text()
    for picture in (drawn, shown):
        assert {*shares_kept.NAMED, "sparse", "stock itself"} <= set(re.findall(r">([^<>]+)</text>", picture))
