"""LOG.md: the form of its entries, and the tables that they name. CHANGELOG.md: the form of the newest release."""

import csv
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LOG = (ROOT / "LOG.md").read_text(encoding="utf-8")
ENTRIES = {entry.splitlines()[0]: [line for line in entry.splitlines()[1:] if line] for entry in re.split(r"^## ", LOG, flags=re.M)[1:]}
"""Heading: lines that are not empty."""
MOST_LINES, LONGEST = 12, 160
TABLES = sorted((ROOT / "edgekv" / "lab" / "results").glob("*.csv"))


def test_the_log_says_what_became_of_each_experiment():
    found = re.findall(r"^## .*", (ROOT / "LOG.md").read_text(encoding="utf-8"), re.M)
    assert found and all(re.fullmatch(r"## \d{4}-\d\d-\d\d: .* \((kept|dropped|open)\)", heading) for heading in found)


@pytest.mark.parametrize("heading", ENTRIES)
def test_an_entry_is_short_and_ends_in_what_was_learned(heading):
    lines = ENTRIES[heading]
    assert len(lines) <= MOST_LINES and lines[-1].startswith("*Insight:* ")
    assert not [line for line in lines if len(line) > LONGEST or line.startswith("|")]


def test_the_newest_entry_is_first():
    dates = [heading.partition(":")[0] for heading in ENTRIES]
    assert len(dates) == LOG.count("\n## ") and dates == sorted(dates, reverse=True)


def test_every_table_is_read_and_every_table_that_is_read_is_there():
    """By a README or the code. Of the log's other tables the history keeps the files."""
    files = [path for folder in ("edgekv", "cli", "models", "tests") for kind in ("*.md", "*.py") for path in (ROOT / folder).rglob(kind)]
    current = "\n".join(path.read_text(encoding="utf-8") for path in files)
    readmes = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix == ".md")
    there = {path.name for path in TABLES}
    assert all(re.search(rf"\b{name}\b", current) and f"`{name}`" in LOG for name in there)
    assert {name for name in re.findall(r"`(?:[\w./]*/)?(\w+\.csv)`", readmes) if f"`{name}`" in LOG} <= there


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_has_a_name_for_each_column(path):
    columns, *rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows and all(columns) and len(set(columns)) == len(columns)
    assert all(len(row) == len(columns) and any(row) for row in rows)


def test_the_wheel_leaves_the_tables_out():
    """The product's leaves the whole laboratory out."""
    laboratory = tomllib.loads((ROOT / "edgekv" / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
    included = laboratory["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]["wheel"]["exclude"]
    assert TABLES and not any(path.match(pattern) for path in TABLES for pattern in included)
    assert "edgekv/lab/**" in excluded
    others = [path.relative_to(ROOT) for path in (ROOT / "edgekv").rglob("*.py") if not path.is_relative_to(ROOT / "edgekv" / "lab")]
    assert not any(path.match(pattern) for path in others for pattern in excluded)


def test_the_newest_release_says_what_is_new_changed_removed_and_fixed():
    """Behind a lead of five lines, in entries of one or two lines. What is not released yet stands above it, in such entries too."""
    sections = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    unreleased = sections.pop(0) if sections[0].startswith("Unreleased\n") else ""
    release = sections[0]
    assert re.match(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d\n", release)
    assert re.findall(r"^### (.*)", release, re.M) == ["New", "Changed", "Removed", "Fixed"]
    lead = re.findall(r"^\d\. .*", release.partition("### ")[0], re.M)
    assert len(lead) == 5 and len(re.findall(r"^- ", release, re.M)) > 20
    entries = re.findall(r"^- .*(?:\n  .*)*", unreleased + release, re.M)
    assert not [entry for entry in entries if entry.count("\n") > 1]
    assert max(len(line) for line in (unreleased + release).splitlines()) <= LONGEST
