"""`edgekv lab quality`: what a KV mode costs in predictions and answers, against full attention."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgekv.cli.common.choices import items
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList, ModeList
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import Parsed, model_argument, model_path, option, threads_option, token_bounds
from edgekv.cli.common.tables import NAME, Column, measured_on, output_option, print_rows
from edgekv.cli.common.verdict import prose
from edgekv.common.enums import KvMode
from edgekv.common.units import duration, percent, signed_percent

_COUNTS = CommaList(click.IntRange(1), "N,N,...")
_KEPT = "12.5%"
"""What mode evict keeps of a context where nothing else is said."""
DEFAULT_MODES = ("exact", "sparse", f"evict:evict_to={_KEPT}", f"evict:policy=streaming,evict_to={_KEPT}")
DEFAULT_TEXTS = ("prose", "code", "dialogue")


def _tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekv.lab.tasks import TASKS

    groups = {"default": "where none is named", "all": None, "none": None}
    return items({**groups, **{name: TASKS.describe(name) for name in TASKS}}, incomplete, ",")


def _scientific(value: float) -> str:
    return f"{value:.1e}"


TEXT_COLUMNS = [
    Column("text", "text", right=False, rank=NAME),
    Column("mode", "mode", right=False, rank=NAME),
    Column("depth", "depth", rank=4),
    Column("nll", "NLL", lambda nll: f"{nll:.4f}", rank=2),
    Column("ppl", "perplexity", lambda ppl: f"{ppl:.3f}", rank=5),
    Column("ppl_vs_exact", "PPL +%", signed_percent, rank=6),
    Column("ppl_interval", "95 %", rank=3),
    Column("kld_exact", "KLD exact", _scientific, rank=8),
    Column("kld_interval", "95 %", rank=4),
    Column("kld_p99_exact", "KLD p99", _scientific, rank=3),
    Column("kld_stock", "KLD stock", _scientific, rank=3),
    Column("same_top_exact", "same top %", percent, rank=7),
    Column("attended_fraction", "attended %", percent, rank=6),
    Column("error", "error %", partial(percent, digits=2), rank=5),
    Column("note", "note", right=False, rank=8, least=12),
]

TASK_COLUMNS = [
    Column("task", "task", right=False, rank=NAME),
    Column("mode", "mode", right=False, rank=NAME),
    Column("asked", "asked", rank=6),
    Column("full_found", "full finds", rank=6),
    Column("kept", "mode keeps", rank=7),
    Column("extra", "finds besides", rank=3),
    Column("retention", "retention %", percent, rank=8),
    Column("retention_interval", "95 %", rank=4),
    Column("attended_fraction", "attended %", percent, rank=5),
    Column("error", "error %", partial(percent, digits=2), rank=4),
    Column("note", "note", right=False, rank=8, least=14),
]

TYPE_COLUMNS = [
    Column("types", "K/V", right=False, rank=NAME),
    Column("bytes", "bytes a token", rank=7),
    Column("share", "of f16 %", percent, rank=6),
    Column("kld", "KLD", _scientific, rank=8),
    Column("times_noise", "x noise", lambda times: f"{times:.1f}", rank=8),
    Column("how", "", right=False, rank=4),
    Column("note", "note", right=False, rank=8, least=14),
]

SAYS_NOTHING = "says nothing about the cache"


@click.command(epilog=examples(
    "edgekv lab quality",
    "edgekv lab quality --modes sparse,evict:evict_to=20% --tasks none",
    "edgekv lab quality --policy ema+anchor+recent --budget 12.5%",
    "edgekv lab quality --types --kv-bytes 8KiB,9KiB",
))
@model_argument
@option("--modes", type=ModeList(), help="Modes to compare with full attention, as in `edgekv bench`, and evict, which keeps tokens or a share of them: "
        "sparse,evict:evict_to=20%.  "
        f"[default: {','.join(DEFAULT_MODES)}; with one of the next two options that mode alone]")
@option("--policy", metavar="NAME+...", help="Compare mode evict, which drops what this policy does not keep.")
@option("--budget", metavar="PERCENT|TOKENS", help=f"The part of the context that it keeps, even of a short one.  [default: {_KEPT}]")
@option("--text", "texts", multiple=True, metavar="TEXT", default=DEFAULT_TEXTS, show_default=True,
        help="Text to predict: prose, code or dialogue (made from Python's standard library), or a file. Several times for several texts; "
             "the tasks are planted in the first.")
@option("--types", is_flag=True,
        help="Instead of all this, say what types of K and V cost the model. They are measured if this machine does not know them yet, in about a "
             "minute for a small model, and kept: plan, chat and serve tell them.")
@option("--kv-bytes", "bounds", type=Parsed("SIZE,...", token_bounds), default="", metavar="SIZE,...",
        help="With --types: also what types by layer cost, in at most so many bytes of K and V a token, e.g. 24KiB.")
@option("--again", is_flag=True, help="With --types: measure them in any case.")
@option("-d", "--depth", type=click.IntRange(1), help="Tokens of context before the predictions.  [default: 7680, or what the model was "
        "trained for]")
@option("-n", "--steps", type=click.IntRange(0), default=256, show_default=True, help="Predictions to compare; 0 for none.")
@option("--tasks", metavar="NAME,...", default="default", show_default=True, shell_complete=_tasks,
        help="passkey, lines, uuid, niah-single, niah-multikey, variables, common-words, frequent-words, records, question-last, "
             "question-first, after-cold and several are all that there are, and the default; none: no task.")
@option("--lengths", type=_COUNTS, help="Tokens of the tasks' contexts.  [default: 1024,2048,4096, as far as the model was trained]")
@option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Contexts of each task and length.")
@threads_option
@option("--seed", type=int, default=0, show_default=True, help="Chooses the contents of the tasks.")
@output_option("json", "csv", "md")
def quality(
    model: Path | None, modes: tuple[str, ...] | None, policy: str | None, budget: str | None, texts: tuple[str, ...],
    types: bool, bounds: tuple[int, ...], again: bool, depth: int | None, steps: int, tasks: str, lengths: tuple[int, ...] | None,
    samples: int, threads: int | None, seed: int, output: str,
) -> None:
    """Say what a KV mode costs in quality, against full attention.

    Texts: each is read in, then every mode predicts the same tokens of it. The row "off" (stock llama.cpp) shows the distance of two
    correct kernels. The columns:

    \b
    PPL +%      the difference of perplexity from full attention's
    KLD exact   the mean divergence of the predicted distributions
    KLD p99     what one divergence in a hundred exceeds
    same top    the share of tokens for which both agree on the most likely one

    Tasks: questions about long contexts. Each context is read in with full attention before the mode sees a question. "retention" is the
    share of full attention's right answers that the mode gives too; the row "off" shows stock's share. A task that full attention hardly
    answers says nothing about the cache, and does not count in the row "all". A sparse mode's answers while it attends everything do not
    count either.

    Intervals are 95 %. JSON and CSV also have each length and the wrong answers. The same seed asks the same questions.

    MODEL is a GGUF file; without it the default model is used.
    """
    if types:
        _types(model_path(model), bounds, threads, again, output)
        return
    if bounds or again:
        raise click.UsageError(f"{'--kv-bytes' if bounds else '--again'} works with --types only")
    from edgekv.bench.text import find_text
    from edgekv.common.machine import n_cores
    from edgekv.lab.questions.quality import QualityBench, run
    from edgekv.lab.tasks import TASKS

    groups = {"default": tuple(TASKS), "all": tuple(TASKS), "none": ()}
    own = _own_mode(policy, budget)
    request = QualityBench(
        model_path(model), tuple(find_text(name) for name in texts), (*(modes or (() if own else DEFAULT_MODES)), *own), depth, steps,
        tuple(dict.fromkeys(name for named in tasks.split(",") for name in groups.get(named.strip(), (named.strip(),)))), lengths, samples,
        threads or n_cores(), seed=seed)

    def tell(seconds: float) -> None:
        click.echo(f"this takes about {duration(seconds)} in all", err=True)

    with progress_bar() as progress:
        rows = [row for group in run(request, progress, tell) for row in group]
    if output in ("json", "csv"):
        print_rows(rows, [], output)
        return
    shown = [_shown(row) for row in rows]
    tables = [([row for row in shown if row["kind"] == "text"], TEXT_COLUMNS),
              ([row for row in shown if row["kind"] == "task" and row["length"] is None], TASK_COLUMNS)]
    for sentence in _sentences(rows):
        prose(sentence, "bold")
    prose(measured_on(rows))
    for part, columns in (table for table in tables if table[0]):
        click.echo()
        print_rows(part, [column for column in columns if column.key != "note" or any(row["note"] for row in part)], output, groups=("text", "task"))


def _sentences(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What each mode costs beside llama.cpp's own two kernels, on average over the texts."""
    kld: dict[str, list[float]] = {}
    for row in rows:
        if row["kind"] == "text" and row["kld_exact"] is not None:
            kld.setdefault(row["mode"], []).append(row["kld_exact"])
    noise = fmean(kld.pop(KvMode.OFF.value, [0.0]))
    for mode, values in kld.items():
        if noise > 0:
            yield (f"{mode} is {fmean(values) / noise:.1f} times as far from full attention as llama.cpp's own kernels: divergence {fmean(values):.1e} "
                   f"against {noise:.1e}")


def _types(model: Path, bounds: tuple[int, ...], threads: int | None, again: bool, output: str) -> None:
    from edgekv.common.machine import n_cores
    from edgekv.lab.questions.typed import run

    with progress_bar() as progress:
        rows = list(run(model, bounds, threads or n_cores(), progress, again))
    print_rows(rows, [column for column in TYPE_COLUMNS if column.key != "note" or any(row["note"] for row in rows)], output)


def _own_mode(policy: str | None, budget: str | None) -> tuple[str, ...]:
    """The mode that --policy and --budget make."""
    if policy is None and budget is None:
        return ()
    return (f"evict:{'' if policy is None else f'policy={policy},'}evict_to={budget or _KEPT}",)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the further fields of the tables."""
    shown = dict(row)
    if row["kld_low_exact"] is not None:
        shown["kld_interval"] = f"{row['kld_low_exact']:.1e}..{row['kld_high_exact']:.1e}"
        shown["ppl_interval"] = f"{signed_percent(row['ppl_low_exact'])}..{signed_percent(row['ppl_high_exact'])}"
    if row["retention_low"] is not None:
        shown["retention_interval"] = f"{percent(row['retention_low'], 0)}..{percent(row['retention_high'], 0)}"
    if row["says_nothing"]:
        shown["note"] = SAYS_NOTHING if not row["note"] else f"{SAYS_NOTHING}; {row['note']}"
    return shown
