"""`edgekv bench kv --prefill`: what it prints, and the options that belong to it."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from edgekv.amounts import percent, tokens
from edgekv.cli.common.tables import Column, print_measured, print_rows

_PLACE = [
    Column("text", "text", right=False),
    Column("mode", "mode", right=False),
    Column("threads", "threads"),
    Column("kv", "K/V", right=False),
    Column("tokens_per_second", "tokens/s", lambda tps: f"{tps:,.0f}"),
]

_STOCK = [
    Column("ratio_vs_stock", "x stock", lambda ratio: f"{ratio:.2f}"),
    Column("stock", "best stock", right=False),
]

CHUNK_COLUMNS = [
    Column("depth", "depth", tokens),
    *_PLACE,
    Column("ms_p50", "ms/chunk", lambda ms: f"{ms:,.0f}"),
    Column("range", "[min, max]"),
    *_STOCK,
    Column("attention_fraction", "attention %", partial(percent, digits=0)),
    Column("pair_ns", "ns/pair", lambda ns: f"{ns:.2f}"),
    Column("note", "note", right=False),
]

WHOLE_COLUMNS = [
    Column("n_tokens", "prompt", tokens),
    *_PLACE,
    Column("seconds", "s", lambda seconds: f"{seconds:.1f}"),
    Column("range", "[min, max]"),
    *_STOCK,
    Column("note", "note", right=False),
]

_OWN = ("ubatch", "whole")
_DECODING = ("steps", "warmup")


def check_options(ctx: click.Context, prefill: bool) -> None:
    """Raise UsageError for an option that was given and would be ignored."""
    given = [name for name in (_DECODING if prefill else _OWN)
             if ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)]
    if given:
        raise click.UsageError(f"--{given[0]} says how tokens are decoded, and --prefill decodes none; leave one of them out" if prefill
                               else f"--{given[0]} belongs to --prefill; name that too")


def print_prefill(rows: list[dict[str, Any]], output: str, used: Any) -> None:
    """Print rows of `edgekv.lab.questions.prefill`; `used` gives the columns that rows fill. A table of chunks, and one of whole prompts."""
    if output not in ("table", "md"):
        print_rows(rows, [], output)
        return
    chunks = [_shown(row, 1, ",.0f") for row in rows if row["kind"] == "prefill"]
    whole = [_shown(row, 1e-3, ".1f") for row in rows if row["kind"] == "prompt"]
    print_measured(chunks, used(CHUNK_COLUMNS, chunks), output)
    if whole:
        click.echo()
        print_rows(whole, used(WHOLE_COLUMNS, whole), output)


def _shown(row: dict[str, Any], unit: float, form: str) -> dict[str, Any]:
    """With what columns make of a row's figures; `unit`: of the range, for each ms."""
    ms = row["ms_p50"]
    return {**row, "kv": f"{row['type_k']}/{row['type_v']}", "seconds": None if ms is None else ms / 1000,
            "range": None if ms is None else f"[{unit * row['ms_min']:{form}}, {unit * row['ms_max']:{form}}]"}
