"""`edgekv lab report`: what was measured, as one HTML page."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.shared_options import option


@click.command(epilog=examples(
    "edgekv lab report results",
    "edgekv lab report results -m model.gguf --plots pictures -o page.html",
))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE",
        help="Where the page goes.  [default: report.html in DIR]")
@option("-m", "--model", type=click.Path(path_type=Path), metavar="MODEL", envvar="EDGEKV_REPORT_MODEL",
        help="Put the plan of this GGUF file on the page, as `edgekv plan` makes it.")
@option("--plots", type=click.Path(path_type=Path), metavar="FOLDER",
        help="Write every picture there too, as .svg and as .png.")
@option("--speed", type=click.Path(path_type=Path), metavar="FILE",
        help="Write the plot of ms per token against depth there too, as .svg or .png.")
def report(folder: Path, out: Path | None, model: Path | None, plots: Path | None, speed: Path | None) -> None:
    """Make one self-contained HTML page of the results in DIR, to read, to print and to send.

    DIR holds the output of other commands, as *.json or *.jsonl: rows of `edgekv bench`, `edgekv bench serve`, `edgekv lab quality` and
    `edgekv lab sim` (each with -o json), the plan of `edgekv plan --json`, and ladder.json (edgekv lab ladder --save DIR). The page begins with
    what the results say and one picture; it leaves out missing results and names them at its end.

    Needs matplotlib: pip install ./edgekv/lab.
    """
    from edgekv.cli.bench_serve import COLUMNS as SERVE
    from edgekv.lab.commands import ladder, quality, sim
    from edgekv.lab.report.page import write

    columns = {"serve": SERVE, "ladder": ladder.COLUMNS, "sim": sim.COLUMNS, "task": quality.TASK_COLUMNS}
    path, missing = write(folder, columns, out, speed=speed, plots=plots, plan=None if model is None else _plan(model))
    for section in missing:
        click.echo(f"left out: {section.title}; it needs {section.missing}", err=True)
    click.echo(path)


def _plan(model: Path) -> dict[str, Any]:
    """The command's own output, so that page and command say the same. Raises its errors."""
    from edgekv.cli.plan import plan

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plan.main([str(model), "--json"], prog_name="edgekv plan", standalone_mode=False)
    return json.loads(printed.getvalue())
