"""`edgekv sim`: recorded attention against policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.lists import CommaList
from edgekv.cli.options import Parsed, option
from edgekv.cli.progress import progress_bar
from edgekv.cli.tables import Column, output_option, print_rows
from edgekv.config import Attend, KvOptions, parse_share
from edgekv.errors import ConfigError
from edgekv.vocab import SketchKind, Split

if TYPE_CHECKING:
    from edgekv.policies import Settings
    from edgekv.sim import Result, Setting


_BUDGET = Parsed("PERCENT|TOKENS", Attend.parse)
_SHARE = Parsed("SHARE", parse_share)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _budget(budget: float) -> str:
    return str(budget) if isinstance(budget, int) else f"{100 * budget:g}%"


_WHAT = [
    Column("trace", "trace", right=False),
    Column("policy", "policy", right=False),
    Column("observe", "observes", right=False),
    Column("sketch", "sketch", right=False),
    Column("budget", "budget", _budget),
    Column("split", "split", right=False),
    Column("prefetch", "prefetch", right=False),
    Column("pool", "pool", lambda pool: f"{pool:g}"),
    Column("layer", "layer"),
    Column("head", "head"),
]
_FIGURES = [
    Column("hit_rate", "hits %", _percent),
    Column("hit_rate_mass", "hit mass %", _percent),
    Column("coverage", "coverage %", _percent),
    Column("worst_coverage", "worst %", _percent),
    Column("attended", "attended %", _percent),
    Column("hot", "hot %", _percent),
    Column("arena_hits", "found hot %", _percent),
    Column("fetched", "fetched", lambda pages: f"{pages:.2f}"),
]
_LOADED_BYTES = 1 << 30
"""A trace up to this size is read once for all settings; a larger one is read anew for each."""

_ONLY_IF_THEY_DIFFER = {"trace", "sketch", "prefetch", "pool"}


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@option("--policy", "specs", multiple=True, metavar="NAME+...", default=(KvOptions.policy,), show_default=True,
        help="What a page is worth; `edgekv policies` lists them. Several times for several policies.")
@option("--budget", "shares", type=CommaList(_BUDGET, "PERCENT|TOKENS,..."), default="5%,10%,20%,30%", show_default=True,
        help="How much of the context a token attends, on average over heads.")
@option("--observe", envvar="EDGEKV_SIM_OBSERVE", type=CommaList(click.Choice(["honest", "full"]), "MODE,..."), default="honest",
        show_default=True,
        help="honest: the policy sees the pages that were attended, as a live system does; full: the true mass of every page.")
@option("--split", type=click.Choice([split.value for split in Split]),
        help="How the budget is divided over layers and heads.  [default: as the policy's source does; where it leaves that "
             "open, pooled with a sketch and uniform without]")
@option("--sketch", type=click.Choice([kind.value for kind in SketchKind]), default=SketchKind.NONE.value, show_default=True,
        help="Pages are chosen by the recorded estimates of these sketches, blended with the policy's score.")
@option("--blend", type=_SHARE, default=str(KvOptions.blend), show_default=True,
        help="Weight of the policy's score against the sketch's estimate.")
@option("--feed/--no-feed", default=None,
        help="An honest policy sees the sketch's estimate for the pages that were not attended.  [default: feed, with a sketch]")
@option("--prefetch", metavar="NAME", default="none", show_default=True,
        help="Which pages are brought in before anything asks for them.")
@option("--prefetch-pages", type=click.FloatRange(min=0), default=1.0, show_default=True,
        help="How many a head may get for each token, on average over heads.")
@option("--pool", type=click.FloatRange(min=1), default=1.0, show_default=True,
        help="Hot pages that are kept, in units of the budget; 1: those that were attended.")
@option("--coverage", type=_SHARE, default="0", show_default=True, metavar="SHARE",
        help="A head attends no more pages than are worth this share of all it sees, e.g. 95%; 0: no target.")
@option("--access", metavar="topN|massP%", default="top8", show_default=True,
        help="Which pages a head wants for a token: the N with most true mass, or those with more than P % of it.")
@option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
        help="A number of the policies, such as alpha=0.02. Several times for several.")
@option("--by", type=click.Choice(["policy", "layer", "head"]), default="policy", show_default=True, help="What a row is about.")
@option("--worst", type=click.IntRange(min=1), metavar="N", help="Rows for the N heads with the lowest coverage only.")
@output_option("md", "csv", "json")
def sim(
    traces: tuple[Path, ...], specs: tuple[str, ...], shares: tuple[Attend, ...], observe: tuple[str, ...], split: str | None,
    sketch: str, blend: float, feed: bool | None, prefetch: str, prefetch_pages: float, pool: float, coverage: float, access: str,
    assignments: tuple[str, ...], by: str, worst: int | None, output: str,
) -> None:
    """Replay recorded attention (`edgekv trace record`) against policies, without a model: a row for each trace, policy and
    budget.

    A step decodes one token. In each the policy, which has seen the steps before, chooses the pages to attend: its pins and the
    page being filled, then those of the highest score, or with --sketch of the recorded estimate blended with the score. "coverage"
    is the part of the true attention mass that fell on attended pages, mean over heads and steps, "worst" that of the worst head. A
    page is hot where it stands in fast memory when the step reads it: without a sketch what is attended is known before the step
    and has been brought in, with one it is what the step before left; --prefetch and --pool add to it. "hits" is the part of the
    pages a head wants (--access) that are hot, "hit mass" the part of the mass on hot pages, "found hot" the part of the attended
    pages that were hot when the step before ended, and "fetched" how many pages become hot for each step and head. "attended" and
    "hot" are parts of the visible pages. The first steps of a trace, its window, are seen in full by every policy and not counted.

    What a policy misses does not change the later layers and tokens here, as it would in a model. JSON and CSV have more columns.
    """
    from edgekv.sim import Setting

    base = Setting(split=split, sketch=sketch, blend=blend, feed=feed, prefetch=prefetch, prefetch_pages=prefetch_pages,
                   pool=pool, coverage=coverage, access=access, settings=_settings(assignments))
    settings = [base.with_(policy=spec, budget=share, observe=seen, feed=feed)
                for spec in specs for seen in observe for share in shares]
    rows = []
    with progress_bar() as progress:
        for path, result in _results(traces, settings, progress):
            rows += [{"trace": path.name, **row} for row in _rows(result, by, worst)]
    if output in ("table", "md"):
        rows = [{**row, "observe": f"{row['observe']}, fed" if row["feed"] else row["observe"]} for row in rows]
    print_rows(rows, _used(rows), output)


def _results(traces: tuple[Path, ...], settings: list[Setting], progress: Any) -> Iterator[tuple[Path, Result]]:
    from edgekv.sim import simulate
    from edgekv.trace import Trace

    sketches = [sketch for sketch in {setting.sketch for setting in settings} if sketch is not None]
    for path in traces:
        with Trace.open(path) as opened:
            several = len(settings) > 1 and opened.loaded_bytes(sketches) <= _LOADED_BYTES
            trace = opened.loaded(sketches) if several else opened
            for i, setting in enumerate(settings):
                doing = f"{path.name}, {i + 1} of {len(settings)}: {setting.name}"
                yield path, simulate(trace, setting, lambda done, total, doing=doing: progress(doing, done, total))


def _rows(result: Result, by: str, worst: int | None) -> list[dict[str, Any]]:
    row = result.row()
    if worst is None and by == "policy":
        return [row]
    of = result.worst(worst) if worst is not None else result.by_layer() if by == "layer" else result.by_head()
    whole = {"worst_coverage", "seconds"}
    return [{**{key: value for key, value in row.items() if key not in whole}, **part} for part in of]


def _settings(assignments: tuple[str, ...]) -> Settings:
    from edgekv.policies import Settings

    kinds = {field.name: type(field.default) for field in fields(Settings)}
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or name not in kinds:
            raise ConfigError(f"--set {assignment!r} is no setting; write NAME=VALUE with one of the names {', '.join(kinds)}")
        try:
            values[name] = kinds[name](text)
        except ValueError:
            noun = "a whole number" if kinds[name] is int else "a number"
            raise ConfigError(f"--set {assignment!r}: {name} must be {noun}") from None
    return Settings(**values)


def _used(rows: list[dict[str, Any]]) -> list[Column]:
    """Without what no row has, and what does not matter where all rows have the same."""
    def needed(key: str) -> bool:
        values = {row.get(key) for row in rows}
        if key in _ONLY_IF_THEY_DIFFER:
            return len(values) > 1 or bool(values - {None, "none", 1.0}) and key != "trace"
        return values != {None}

    return [column for column in (*_WHAT, *_FIGURES) if needed(column.key)]
