"""`edgekv bench`: measurements, each against stock llama.cpp in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edgekv.cli.options import model_argument, model_path, option
from edgekv.cli.tables import Column, output_option, print_rows
from edgekv.vocab import CacheType


class CommaList(click.ParamType):
    """A list such as "512,4096", each item of another parameter type."""

    def __init__(self, item: click.ParamType, name: str):
        self.item, self.name = item, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        return tuple(self.item.convert(part.strip(), param, ctx) for part in value.split(","))


_COUNTS = CommaList(click.IntRange(1), "N,N,...")
_TYPES = CommaList(click.Choice([t.value for t in CacheType]), "TYPE,...")
_NAMES = CommaList(click.STRING, "NAME,...")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


KV_COLUMNS = [
    Column("text", "text", right=False),
    Column("mode", "mode", right=False),
    Column("depth", "depth"),
    Column("threads", "threads"),
    Column("kv", "K/V", right=False),
    Column("decode_ms_p50", "ms/token", lambda ms: f"{ms:.2f}"),
    Column("decode_ms_p10", "p10", lambda ms: f"{ms:.2f}"),
    Column("decode_ms_p90", "p90", lambda ms: f"{ms:.2f}"),
    Column("ratio_vs_stock", "x stock", lambda ratio: f"{ratio:.2f}"),
    Column("prefill_tps", "prefill t/s", lambda tps: f"{tps:.0f}"),
    Column("nll", "NLL", lambda nll: f"{nll:.4f}"),
    Column("kld_mean", "KLD", lambda kld: f"{kld:.1e}"),
    Column("same_top", "same top %", _percent),
    Column("overhead_fraction", "overhead %", _percent),
    Column("note", "note", right=False),
]


@click.group()
def bench() -> None:
    """Measure, against stock llama.cpp in the same run."""


@bench.command()
@model_argument
@option("-d", "--depths", type=_COUNTS, default="512,4096,7680", show_default=True,
        help="Tokens in the cache when decoding starts.")
@option("-t", "--threads", type=_COUNTS, default="1", show_default=True,
        help="CPU threads.")
@option("--text", "texts", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
        help="Text to read and predict, several times for several texts; by default the Python language reference.")
@option("--type-k", type=_TYPES, default="f16", show_default=True,
        help="Types of the K cache.")
@option("--type-v", type=_TYPES, default="f16", show_default=True,
        help="Types of the V cache; as many as --type-k, or one.")
@option("--modes", type=_NAMES, default="off,off-noflash,exact", show_default=True,
        help="off (stock; always measured), off-noflash (stock without flash attention, predictions only: how far apart two "
             "correct kernels are on this model), exact, exact-unobserved (attention mass not measured).")
@option("-n", "--steps", type=click.IntRange(1), default=64, show_default=True,
        help="Timed decode steps of each mode.")
@option("--prefill/--no-prefill", default=True, show_default=True,
        help="Compare prefill too; the text is then read once for each mode.")
@output_option("json", "csv", "md")
def kv(
    model: Path | None, depths: tuple[int, ...], threads: tuple[int, ...], texts: tuple[Path, ...], type_k: tuple[str, ...],
    type_v: tuple[str, ...], modes: tuple[str, ...], steps: int, prefill: bool, output: str,
) -> None:
    """Compare decode time and predictions of KV modes with stock llama.cpp, on the same tokens of a text.

    The modes take turns, a few tokens at a time, so that all of them meet the same machine. "ms/token" is the median time of
    a decode step, with its 10th and 90th percentile; "x stock" says how many times as fast as stock it is; "KLD" is the mean
    divergence of the predicted distribution from stock's, "same top" how often both find the same token most likely. JSON
    and CSV have more columns.

    MODEL is a GGUF file; without it the default model is used.
    """
    from edgekv.bench.kv import KvBench, run
    from edgekv.bench.text import read_text, standard_text

    request = KvBench(
        model=model_path(model),
        texts=tuple(read_text(path) for path in texts) or (standard_text(),),
        depths=depths,
        threads=threads,
        cache_types=_pairs(type_k, type_v),
        modes=modes,
        n_steps=steps,
        prefill=prefill,
    )
    with _progress() as progress:
        groups = run(request, progress, warn=lambda text: click.echo(f"warning: {text}", err=True))
        rows = [row for group in groups for row in group]
    if output in ("table", "md"):
        rows = [{**row, "kv": f"{row['type_k']}/{row['type_v']}"} for row in rows]
    print_rows(rows, _used(KV_COLUMNS, rows), output)


def _pairs(type_k: tuple[str, ...], type_v: tuple[str, ...]) -> tuple[tuple[CacheType, CacheType], ...]:
    n = max(len(type_k), len(type_v))
    if {len(type_k), len(type_v)} - {1, n}:
        raise click.UsageError(f"--type-k names {len(type_k)} types and --type-v {len(type_v)}; name as many, or one")
    k, v = (types * n if len(types) == 1 else types for types in (type_k, type_v))
    return tuple((CacheType(a), CacheType(b)) for a, b in zip(k, v))


def _used(columns: list[Column], rows: list[dict[str, Any]]) -> list[Column]:
    """Without the columns that no row fills, nor the text's name where there is only one."""
    several_texts = len({row["text"] for row in rows}) > 1
    return [c for c in columns if any(row.get(c.key) is not None for row in rows) and (c.key != "text" or several_texts)]


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
