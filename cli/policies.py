"""`edgekv policies`: what can be chosen to decide which pages are worth their place."""

from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.shared_options import option
from edgekv.cli.common.tables import NAME, Column, output_option, print_rows

COLUMNS = [
    Column("kind", "kind", right=False, rank=NAME),
    Column("name", "name", right=False, rank=NAME),
    Column("description", "what it does", right=False, rank=8, least=30),
    Column("source", "source", right=False, rank=4, least=24),
]

KINDS = ("policy", "prefetch", "budget")


@click.command(epilog=examples(
    "edgekv policies",
    "edgekv policies --kind policy -o md",
))
@option("--kind", type=click.Choice(KINDS), help="List only these.")
@output_option("json", "csv", "md")
def policies(kind: str | None, output: str) -> None:
    """List the policies, prefetchers and budget schemes, which decide the pages in fast memory.

    A policy scores pages (--policy); a plus joins several: ema+anchor+recent. A part may have its own settings,
    ema(alpha=0.02)+anchor. A prefetcher predicts the pages wanted next (--prefetch). A budget scheme divides the pages of a
    budget over layers and heads.
    """
    print_rows([row for row in _rows() if kind in (None, row["kind"])], COLUMNS, output)


def _rows() -> list[dict[str, Any]]:
    from edgekv.common.registry import Registry
    from edgekv.policies import POLICIES
    from edgekv.tiering.budgets import SPLITS
    from edgekv.tiering.prefetch import PREFETCHERS

    registries: tuple[Registry[Any], ...] = POLICIES, PREFETCHERS, SPLITS
    return [{"kind": kind, "name": name, "description": registry.describe(name), "source": registry.source(name)}
            for kind, registry in zip(KINDS, registries) for name in registry]
