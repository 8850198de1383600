"""Rows of `edgekv bench` as table, Markdown, CSV, JSON and JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from edgekv.cli.common.tables import NAME, Column, print_json, print_rows
from edgekv.cli.common.verdict import prose
from edgekv.common.enums import STOCK_KERNELS
from edgekv.common.units import parameters, size, tokens

Row = dict[str, Any]

OUTPUTS = ("table", "md", "csv", "json", "jsonl")

_BEFORE = [
    Column("model", "model", right=False, rank=8),
    Column("size", "size", rank=2),
    Column("params", "params", rank=3),
    Column("backends", "backend", right=False, rank=2),
    Column("n_batch", "batch", rank=7),
    Column("n_ubatch", "ubatch", rank=7),
    Column("n_threads", "threads", rank=7),
    Column("kv", "K/V", right=False, rank=7),
    Column("test", "test", right=False, rank=NAME),
    Column("mode", "mode", right=False, rank=NAME),
    Column("speed", "t/s", rank=NAME, score=lambda row: row["avg_ts"]),
    Column("text", "text", right=False, rank=7),
]
_BEHIND = [
    Column("fill", "fill", right=False, rank=3),
    Column("kv_dir", "KV folder", right=False, rank=3),
    Column("note", "note", right=False, rank=8, least=16),
]

_ONLY_WHERE_THEY_DIFFER = {"n_batch", "n_ubatch", "kv", "text"}
_ONLY_IN_MARKDOWN = {"size", "params", "backends", "fill", "kv_dir"}
_ABOVE_A_TABLE = {"model": "{}", "n_threads": "{} threads"}
"""Named above a table if they do not differ: a terminal is narrow."""
_IN_CSV = ("date", "family", "isa", "cores", "gpu", "edgekv", "commit")
"""Fields of the environment."""


def print_speed(rows: Sequence[Row], output: str, kld: bool = False) -> None:
    """Print all rows; JSON lines are already printed by `write_line`."""
    if output == "json":
        print_json(rows)
    elif output == "csv":
        print_rows([{**{key: value for key, value in row.items() if key not in ("environment", "samples_ns", "samples_ts")},
                     **{key: row["environment"][key] for key in _IN_CSV}} for row in rows], [], output)
    elif output in ("table", "md"):
        from edgekv.bench.environment import in_words

        shown = [_shown(row) for row in rows]
        prose(in_words(rows[0]["environment"]))
        if output == "table":
            prose(_above(shown))
        click.echo()
        print_rows(shown, _used(shown, output, kld), output, groups=("model_filename", "test"))
        if output == "md":
            click.echo(f"\nbuild: {rows[0]['build_commit']} ({rows[0]['build_number']})")


def write_line(rows: Sequence[Row], file: TextIO) -> None:
    """Write rows, one a line."""
    for row in rows:
        click.echo(json.dumps(row, ensure_ascii=False, allow_nan=False), file=file)


def _shown(row: Row) -> Row:
    """The row with the fields that columns show."""
    speed = None if row["avg_ts"] is None else f"{row['avg_ts']:,.2f}" + f" ± {row['stddev_ts']:.2f}" * (len(row["samples_ts"]) > 1)
    mode = row["kv_mode"] + (" *" if row["best_stock"] else "")
    if row["kv_mode"] == "peer":
        mode = row["peer"] + ("" if row["flash_attn"] is None else f" -fa {row['flash_attn']}")
    params = row["model_n_params"]
    return {**row, "model": _model(row), "size": size(row["model_size"] or 0),
            "params": "-" if not params else parameters(params),
            "kv": f"{row['type_k']}/{row['type_v']}", "mode": mode, "speed": speed, "n_threads": tokens(row["n_threads"])}


def _model(row: Row) -> str:
    """As llama-bench calls it, but with the number of its parameters where llama.cpp takes the size of a well-known model with as many layers."""
    kind, _, rest = (row["model_type"] or "").partition(" ")
    _, _, file_type = rest.partition(" ")
    if not file_type or not row["model_n_params"]:
        return row["model_type"] or Path(row["model_filename"]).name
    return f"{kind} {parameters(row['model_n_params'])} {file_type}"


def sentence(rows: Sequence[Row]) -> str | None:
    """The best of EdgeKV's modes against llama.cpp, at the greatest depth; None: nothing was compared."""
    compared = [row for row in rows if row["ratio_vs_stock"] and row["kv_mode"] not in STOCK_KERNELS and (row["n_gen"] == 0) != (row["n_prompt"] == 0)]
    if not compared:
        return None
    decoded = [row for row in compared if row["n_gen"]] or compared
    deepest = max(row["n_depth"] for row in decoded)
    best = max((row for row in decoded if row["n_depth"] == deepest), key=lambda row: row["ratio_vs_stock"])
    where = f"At {deepest:,} tokens" if deepest else "With an empty cache"
    does = "decodes" if best["n_gen"] else f"reads a prompt of {best['n_prompt']:,} tokens"
    return f"{where} {best['kv_mode']} {does} {best['ratio_vs_stock']:.1f}x as fast as llama.cpp"


def _above(rows: Sequence[Row]) -> str:
    """The fields that all rows of a table share, and how the cache was filled."""
    same = [form.format(rows[0][key]) for key, form in _ABOVE_A_TABLE.items() if len({row[key] for row in rows}) == 1]
    fills = dict.fromkeys(row["fill"] for row in rows if row["fill"] and row["kv_mode"] != "peer")
    homes = dict.fromkeys(row["kv_dir"] for row in rows if row["kv_dir"])
    stars = ["* the faster of stock"] if any(row["best_stock"] for row in rows) else []
    return "; ".join([*same, *(f"fill: {fill}" for fill in fills), *(f"K and V in {home}" for home in homes), *stars])


def _used(rows: Sequence[Row], output: str, kld: bool) -> list[Column]:
    """The columns that some row fills and the output shows."""
    from edgekv.bench.fields import FIGURES

    occasions = {name for name, is_one in (("md", output == "md"), ("kld", kld), ("prompts", not any(row["n_gen"] for row in rows))) if is_one}
    figures = [Column(figure.key, figure.title, figure.show) for figure in FIGURES
               if figure.title and (not figure.only or figure.only & occasions)]

    def needed(key: str) -> bool:
        values = {row.get(key) for row in rows}
        if key in _ONLY_IN_MARKDOWN and output != "md":
            return False
        differs = key in _ONLY_WHERE_THEY_DIFFER or output == "table" and key in {*_ABOVE_A_TABLE, "kv_budget_mib"}
        return len(values - {None}) > 1 if differs else values != {None}

    return [column for column in (*_BEFORE, *figures, *_BEHIND) if needed(column.key)]
