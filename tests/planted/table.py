"""A table of outcomes, by fault: a CSV file, whole at any time."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

Row = dict[str, str]


def read(path: Path) -> dict[str, Row]:
    """Its rows; none if there is no such file."""
    return {row["fault"]: row for row in csv.DictReader(path.open())} if path.is_file() else {}


def keep(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)
