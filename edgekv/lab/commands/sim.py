"""`edgekv lab sim`: recorded attention against policies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import Parsed, option
from edgekv.cli.common.tables import NAME, Column, output_option, print_rows
from edgekv.common.enums import Split
from edgekv.common.units import GIB, percent
from edgekv.config import PlacementOptions
from edgekv.config.assignments import assigned
from edgekv.lab.traces.budget import Budget

if TYPE_CHECKING:
    from edgekv.lab.traces.sim import Result, Scenario


_BUDGET = Parsed("PERCENT|TOKENS", Budget.parse)

COLUMNS = [
    Column("trace", "trace", right=False, rank=NAME),
    Column("policy", "policy", right=False, rank=NAME),
    Column("observe", "observes", right=False, rank=NAME),
    Column("budget", "budget", lambda of: str(of) if isinstance(of, int) else f"{100 * of:g}%", rank=NAME),
    Column("split", "split", right=False, rank=NAME),
    Column("prefetch", "prefetch", right=False, rank=NAME),
    Column("layer", "layer", rank=NAME),
    Column("head", "head", rank=NAME),
    Column("hit_rate", "hits %", percent, rank=8),
    Column("hit_rate_mass", "hit mass %", percent, rank=8),
    Column("worst_mass", "worst %", percent, rank=5),
    Column("hot", "hot %", percent, rank=3),
    Column("fetched", "fetched", lambda pages: f"{pages:.2f}", rank=4),
]
_KEPT_BYTES = GIB
"""Traces up to so many bytes are read once for all scenarios, larger ones for each scenario."""

_ONLY_IF_THEY_DIFFER = {"trace", "prefetch"}


@click.command(epilog=examples(
    "edgekv lab sim prose.npz --policy lru --policy ema+anchor+recent",
    "edgekv lab sim prose.npz --observe honest --budget 10% --set alpha=0.02",
    "edgekv lab sim prose.npz code.npz --worst 5 -o csv",
))
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@option("--policy", "specs", multiple=True, metavar="NAME+...", default=(PlacementOptions.policy,), show_default=True,
        help="The policy that scores pages; `edgekv policies` lists them. Several times for several policies.")
@option("--budget", "shares", type=CommaList(_BUDGET, "PERCENT|TOKENS,..."), default="5%,10%,20%,25%", show_default=True,
        help="How much of the context is hot, on average over heads.")
@option("--observe", envvar="EDGEKV_SIM_OBSERVE", type=CommaList(click.Choice(["sampled", "honest", "full"]), "MODE,..."),
        default="sampled", show_default=True,
        help="sampled: the policy sees an estimate of the mass of every page, as in mode sparse; honest: only the pages that it chose, as "
             "if it decided what is attended; full: the true mass of every page.")
@option("--split", type=click.Choice([split.value for split in Split]),
        help="How the budget is divided over layers and heads.  [default: as the policy's source does; where it leaves that "
             "open, pooled as the arena is, and uniform for honest]")
@option("--prefetch", metavar="NAME", default="none", show_default=True,
        help="The prefetcher that brings in pages ahead of their use.")
@option("--prefetch-pages", type=click.FloatRange(min=0), default=1.0, show_default=True,
        help="Pages that a head may prefetch for each token, on average over heads.")
@option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
        help="A setting of the policies, such as alpha=0.02. Several times for several.")
@option("--by", type=click.Choice(["policy", "layer", "head"]), default="policy", show_default=True, help="One row for each of these.")
@option("--worst", type=click.IntRange(min=1), metavar="N", help="Rows for the N heads with the lowest hit rate by mass only.")
@output_option("md", "csv", "json")
def sim(
    traces: tuple[Path, ...], specs: tuple[str, ...], shares: tuple[Budget, ...], observe: tuple[str, ...], split: str | None,
    prefetch: str, prefetch_pages: float, assignments: tuple[str, ...], by: str, worst: int | None, output: str,
) -> None:
    """Replay recorded attention (`edgekv lab trace record`) against policies, without a model: a row for each trace, policy and
    budget.

    A step decodes one token. The policy has seen the steps before, and chooses the pages that are hot: its pins and the page being
    filled, then those of the highest score; --prefetch adds to them. The first steps of a trace, its window, miss nothing and are not
    counted. The columns, of which JSON and CSV have more:

    \b
    hits       of the rows that mode sparse reads, the share in hot pages
    hit mass   the share of the true attention mass on hot pages, mean over
               heads and steps
    worst      the same, of the worst head
    hot        the share of the visible pages that is hot
    fetched    pages that become hot for each step and head

    With --observe honest the policy decides what is attended, and the hit mass is the kept attention. Missed attention does not
    change later layers and tokens here, as it would in a model.
    """
    from edgekv.lab.traces.sim import Scenario

    base = Scenario(split=None if split is None else Split(split), prefetch=prefetch, prefetch_pages=prefetch_pages,
                    settings=_settings(assignments))
    scenarios = [base.with_(policy=spec, budget=share, observe=seen) for spec in specs for seen in observe for share in shares]
    rows = []
    with progress_bar() as progress:
        for path, result in _results(traces, scenarios, progress):
            rows += [{"trace": path.name, **row} for row in _rows(result, by, worst)]
    print_rows(rows, _used(rows), output)


def _results(traces: tuple[Path, ...], scenarios: list[Scenario], progress: Any) -> Iterator[tuple[Path, Result]]:
    from edgekv.lab.traces.sim import simulate
    from edgekv.lab.traces.trace import Trace

    for path in traces:
        with Trace.open(path) as trace:
            if trace.n_bytes <= _KEPT_BYTES:
                trace.keep()
            for i, scenario in enumerate(scenarios):
                doing = f"{path.name}, {i + 1} of {len(scenarios)}: {scenario.name}"
                yield path, simulate(trace, scenario, partial(progress, doing))


def _rows(result: Result, by: str, worst: int | None) -> list[dict[str, Any]]:
    row = result.row()
    if worst is None and by == "policy":
        return [row]
    of = result.worst(worst) if worst is not None else result.by_layer() if by == "layer" else result.by_head()
    whole = {"worst_mass", "seconds"}
    return [{**{key: value for key, value in row.items() if key not in whole}, **part} for part in of]


def _settings(assignments: tuple[str, ...]) -> dict[str, Any]:
    from edgekv.policies import setting_kinds

    return assigned(assignments, setting_kinds(), "--set")


def _used(rows: list[dict[str, Any]]) -> list[Column]:
    """The columns that some row has, without those of settings that all rows share."""
    def needed(key: str) -> bool:
        values = {row.get(key) for row in rows}
        if key in _ONLY_IF_THEY_DIFFER:
            return len(values) > 1 or bool(values - {None, "none"}) and key != "trace"
        return values != {None}

    return [column for column in COLUMNS if needed(column.key)]
