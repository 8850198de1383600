"""`edgekv lab ladder`: what each idea adds, on recorded attention."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import BUDGETS, NAMES, CommaList
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import model_argument, model_path, option
from edgekv.cli.common.tables import NAME, Column, output_option, print_measured
from edgekv.common.units import duration, percent, signed_percent

COLUMNS = [
    Column("budget", "budget %", lambda share: f"{100 * share:g}", rank=NAME),
    Column("rung", "rung", right=False, rank=NAME),
    Column("observe", "sees", right=False, rank=NAME),
    Column("published", "published", percent, rank=4),
    Column("hit_rate", "hits %", percent, rank=8),
    Column("gain", "gain", partial(signed_percent, digits=1), rank=6),
    Column("hit_rate_mass", "by mass %", percent, rank=8),
    Column("gain_mass", "gain", partial(signed_percent, digits=1), rank=6),
    Column("worst_mass", "worst %", percent, rank=3),
    Column("fetched", "fetched", lambda pages: f"{pages:.2f}", rank=4),
]


@click.command(epilog=examples(
    "edgekv lab ladder",
    "edgekv lab ladder --text prose -d 2048 -n 256 --save results",
    "edgekv lab ladder --trace prose.npz --budgets 10%",
))
@model_argument
@option("--trace", "traces", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
        help="A recorded trace (edgekv lab trace record) in place of --text, -d and -n. Several times for several.")
@option("-d", "--depth", type=click.IntRange(64), default=7168, show_default=True,
        help="Tokens in the cache when the measured ones begin.")
@option("-n", "--steps", type=click.IntRange(1), default=1024, show_default=True,
        help="Tokens decoded one by one, recorded and simulated.")
@option("--text", "texts", type=NAMES, default="prose,code,dialogue", show_default=True,
        help="Texts to read and predict: prose, code or dialogue (made from Python's standard library), or files.")
@option("--budgets", type=BUDGETS, default="5%,10%,20%,25%", show_default=True,
        help="Shares of the visible pages that are hot, on average over heads.")
@option("--observe", type=CommaList(click.Choice(["sampled", "honest", "full"]), "MODE,..."), default="sampled,honest", show_default=True,
        help="What policies see: sampled, as in mode sparse; honest, only the pages they chose; full, the true mass of every page.")
@option("-t", "--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads.")
@option("--save", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
        help="Keep the rows and the recorded traces in this folder, for edgekv lab report; existing traces are used "
             "again.")
@output_option("json", "csv", "md")
def ladder(
    model: Path | None, traces: tuple[Path, ...], depth: int, steps: int, texts: tuple[str, ...], budgets: tuple[float, ...],
    observe: tuple[str, ...], threads: int, save: Path | None, output: str,
) -> None:
    """Climb the ladder of ideas that keep pages, from LRU to one budget pooled over all heads, on real attention.

    A trace of each text is recorded, and every rung is simulated on it at each budget of hot pages. With several texts the table shows
    means; JSON and CSV have each text. The columns:

    \b
    sees           the policy's observation: sampled, mode sparse's estimate
                   for all pages; honest, only the pages that the policy
                   chose; ahead, the token itself
    hits           of the rows that mode sparse reads, the share in hot pages
    by mass        the attention on hot pages, mean over heads; with honest,
                   the kept attention, as the policy decides what is attended
    gain           to the rung without the idea: for each prefetch to
                   "+ per head"
    worst          by mass, of the head with least
    fetched        pages moved for each token and head
    published      what the design's source gives for the rung

    `edgekv lab quality --policy` shows what a model loses with the pages that a policy drops.

    MODEL is a GGUF file; without it the default model is used. Traces need none.
    """
    from edgekv.bench.text import find_text
    from edgekv.lab.questions.ladder import MEAN, LadderBench, of_traces, prepare, run
    from edgekv.lab.questions.ladder import save as save_rows

    if traces:
        request = of_traces(traces, budgets=budgets, observe=observe)
    else:
        request = LadderBench(model_path(model), tuple(find_text(name) for name in texts), (), depth, steps, budgets, observe, threads)
    click.echo(f"this will take about {duration(request.estimated_seconds())}", err=True)
    with tempfile.TemporaryDirectory(prefix="edgekv-ladder-") as temporary, progress_bar() as progress:
        def warn(text: str) -> None:
            click.echo(f"warning: {text}", err=True)

        rows = run(request, prepare(request, save or Path(temporary), progress, warn), progress)
    if save is not None:
        click.echo(f"the rows are in {save_rows(rows, save)}", err=True)
    shown: list[dict[str, Any]] = rows
    if output in ("table", "md"):
        shown = [row for row in rows if row["text"] == MEAN] or rows
    print_measured(shown, [column for column in COLUMNS if any(row[column.key] is not None for row in shown)], output, groups=("budget",))
