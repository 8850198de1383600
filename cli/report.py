"""`edgekv report`: what was measured, as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from edgekv.cli.common.options import option
from edgekv.cli.common.progress import progress_bar


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE",
        help="Where the page goes.  [default: report.html in DIR]")
@option("-n", "--steps", type=click.IntRange(1), default=256, show_default=True,
        help="Tokens of each trace that are simulated for the pictures.")
@option("--speed", type=click.Path(path_type=Path), metavar="FILE",
        help="Write the plot of ms per token against depth there too, as .svg or .png.")
def report(folder: Path, out: Path | None, steps: int, speed: Path | None) -> None:
    """Make one self-contained HTML page of the results in DIR.

    DIR holds what other commands wrote: ladder.json (edgekv bench ladder --save DIR), rows of `edgekv bench kv -o json`,
    `edgekv sim -o json` and `edgekv quality -o json` as *.json, and traces *.npz (edgekv trace record), which are simulated for the pictures; that takes
    minutes the first time and is kept in DIR. What is not there is left out of the page and named at its end.

    Needs matplotlib: pip install "edgekv[report]".
    """
    from edgekv.lab.report.page import write

    with progress_bar() as progress:
        written = write(folder, out, progress, steps, speed)
    for section in written.missing:
        click.echo(f"left out: {section.title}; it needs {section.missing}", err=True)
    click.echo(written.path)
