"""`edgekv bench`: measurements, each against stock llama.cpp in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgekv.amounts import mebibytes, percent, signed_percent
from edgekv.cli.bench_serve import bench_serve
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList, ModeList
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import model_argument, model_path, option
from edgekv.cli.common.tables import Column, output_option, print_measured
from edgekv.cli.compare import compare
from edgekv.cli.ladder import ladder
from edgekv.cli.prefill import check_options, print_prefill
from edgekv.cli.speed import bench
from edgekv.vocab import CacheType

_COUNTS = CommaList(click.IntRange(1), "N,N,...")
_TYPE_NAMES = [t.value for t in CacheType]
_TYPES = CommaList(click.Choice(_TYPE_NAMES), "TYPE,...")

_MODES_HELP = (
    "off (the best of stock; always measured: off-flash and off-noflash, stock with and without flash attention; naming one of these "
    "in place of off measures that one alone), exact, exact-unobserved (attention mass not measured), sparse, and for "
    "comparison ema (no sketches: the policy's best pages) and streaming (the first and the newest tokens). A mode can be changed: "
    "sparse:resolution=1000, ema:attend=10%,policy=lru."
)
_TEXT_HELP = "prose, code or dialogue (made from Python's standard library), or a file"


_READ_COLUMNS = [
    Column("attended_fraction", "attended %", percent),
    Column("coverage", "coverage %", percent),
    Column("error", "error %", partial(percent, digits=2)),
    Column("hit_rate", "hits %", percent),
]

KV_COLUMNS = [
    Column("text", "text", right=False),
    Column("mode", "mode", right=False),
    Column("depth", "depth"),
    Column("threads", "threads"),
    Column("kv", "K/V", right=False),
    Column("decode_ms_p50", "ms/token", lambda ms: f"{ms:.2f}"),
    Column("ratio_vs_stock", "x stock", lambda ratio: f"{ratio:.2f}"),
    Column("stock", "best stock", right=False),
    Column("limit_ms_p50", "limit ms", lambda ms: f"{ms:.2f}"),
    Column("ratio_vs_limit", "x limit", lambda ratio: f"{ratio:.2f}"),
    Column("growth_fraction", "growth %", partial(percent, digits=0)),
    Column("nll_vs_exact", "NLL +%", signed_percent),
    Column("kld_stock", "KLD stock", lambda kld: f"{kld:.1e}"),
    Column("kld_exact", "KLD exact", lambda kld: f"{kld:.1e}"),
    Column("same_top_exact", "same top %", percent),
    *_READ_COLUMNS,
    Column("overhead_fraction", "overhead %", percent),
    Column("arena_bytes", "arena MiB", mebibytes),
    Column("note", "note", right=False),
]


bench.add_command(ladder)
bench.add_command(bench_serve)
bench.add_command(compare)


@bench.command(epilog=examples(
    "edgekv bench kv -d 512,4096,7680 -t 1,2",
    "edgekv bench kv --modes off,exact,sparse:resolution=1000 -o json",
    "edgekv bench kv --prefill --whole 4096",
))
@model_argument
@option("-d", "--depths", type=_COUNTS, default="512,4096,7680", show_default=True,
        help="Tokens in the cache when what is measured starts.")
@option("-t", "--threads", type=_COUNTS, default="1", show_default=True,
        help="CPU threads.")
@option("--text", "texts", multiple=True, metavar="TEXT", default=("prose",), show_default=True,
        help=f"Text to read and predict: {_TEXT_HELP}. Several times for several texts.")
@option("--type-k", type=_TYPES, default="f16", show_default=True,
        help="Types of the K cache.")
@option("--type-v", type=_TYPES, default="f16", show_default=True,
        help="Types of the V cache; as many as --type-k, or one.")
@option("--page-tokens", type=click.IntRange(1), help="Cells per page.  [default: 16]")
@option("--modes", type=ModeList(), default="off,exact,sparse", show_default=True, help=_MODES_HELP)
@option("-n", "--steps", type=click.IntRange(1), default=64, show_default=True,
        help="Timed tokens of a pass, decoded one by one.")
@option("-r", "--rounds", type=click.IntRange(1), default=3, show_default=True,
        help="Passes of each mode, in turns; with --prefill chunks.")
@option("--warmup", type=click.IntRange(1), default=16, show_default=True,
        help="Tokens decoded with full attention before each pass, not measured: a mode's policy begins with what it saw in them.")
@option("--prefill", is_flag=True,
        help="Measure how fast prompts are read, in place of decoding.")
@option("--ubatch", type=click.IntRange(2),
        help="With --prefill: tokens of a chunk, which are computed at once.  [default: 512]")
@option("--whole", type=click.IntRange(2), metavar="N",
        help="With --prefill: a prompt of N tokens too, read from its start in each mode.")
@output_option("json", "csv", "md")
@click.pass_context
def kv(
    ctx: click.Context, model: Path | None, depths: tuple[int, ...], threads: tuple[int, ...], texts: tuple[str, ...],
    type_k: tuple[str, ...], type_v: tuple[str, ...], page_tokens: int | None, modes: tuple[str, ...], steps: int, rounds: int,
    warmup: int, prefill: bool, ubatch: int | None, whole: int | None, output: str,
) -> None:
    """Compare decode time and predictions of KV modes with stock llama.cpp, on the same tokens of a text.

    The text is read in once; then the modes take turns, each decoding the same tokens in passes of its own. Stock is measured with flash
    attention ("off-flash") and without ("off-noflash"); "off" has the figures of the faster. JSON and CSV have more columns than these:

    \b
    ms/token     median time of a decoded token
    best stock   the faster of stock's two kernels, which "off" stands for
    x stock      how many times as fast as that one a mode is
    limit ms     a token with an empty cache: what the weights alone cost
    x limit      how many times the limit a token takes
    growth       how much longer a token takes than at the smallest depth
    KLD stock    mean divergence of the predicted distribution from
                 off-flash's; that of off-noflash says how far two correct
                 kernels are apart on this model
    KLD exact    the same, from full attention in our kernel
    NLL +%       by how much the text has become less likely than there
    same top     how often both find the same token most likely
    attended     the share of the visible tokens that a head read
    coverage     the estimated share of the attention that this holds
    error        the estimated relative error of its output
    hits         the share of what it read that came from the arena
    overhead     the Python layer's share of the time

    With --prefill a chunk of a prompt is read at each depth, taken back and read again, the modes in turns, and in the same turns into an
    empty cache (depth 0, where it attends to its own tokens alone). "attention" is the share of the time that attention to the depth
    takes: what the chunk takes longer than in the empty cache. "ns/pair" is that time for each query, key and query head of the layers
    that EdgeKV serves, times the threads. "[min, max]" is of the rounds. --whole reads a whole prompt, --rounds times in each mode.

    MODEL is a GGUF file; without it the default model is used.
    """
    from edgekv.lab.questions import kv as decoding
    from edgekv.lab.questions import prefill as reading
    from edgekv.lab.texts.text import find_text

    check_options(ctx, prefill)
    what: dict[str, Any] = {
        "model": model_path(model), "texts": tuple(find_text(name) for name in texts), "depths": depths, "threads": threads,
        "cache_types": _pairs(type_k, type_v), "modes": modes, "n_rounds": rounds, "page_tokens": page_tokens,
    }
    if prefill:
        chunk: dict[str, Any] = {} if ubatch is None else {"n_chunk": ubatch}
        run: Callable[..., Iterator[list[dict[str, Any]]]] = partial(reading.run, reading.PrefillBench(**what, **chunk, n_whole=whole))
    else:
        run = partial(decoding.run, decoding.KvBench(**what, n_steps=steps, n_warmup=warmup))
    with progress_bar() as progress:
        groups = run(progress, warn=lambda text: click.echo(f"warning: {text}", err=True))
        rows = [row for group in groups for row in group]
    if prefill:
        print_prefill(rows, output, _used)
        return
    if output in ("table", "md"):
        rows = [{**row, "kv": f"{row['type_k']}/{row['type_v']}"} for row in rows]
    print_measured(rows, _used(KV_COLUMNS, rows), output)


def _pairs(type_k: tuple[str, ...], type_v: tuple[str, ...]) -> tuple[tuple[CacheType, CacheType], ...]:
    n = max(len(type_k), len(type_v))
    if {len(type_k), len(type_v)} - {1, n}:
        raise click.UsageError(f"--type-k names {len(type_k)} types and --type-v {len(type_v)}; name as many, or one")
    k, v = (types * n if len(types) == 1 else types for types in (type_k, type_v))
    return tuple((CacheType(a), CacheType(b)) for a, b in zip(k, v))


def _used(columns: list[Column], rows: list[dict[str, Any]]) -> list[Column]:
    """Without the columns that no row fills, nor the text and cache types where there is only one kind."""
    def needed(key: str) -> bool:
        values = {row.get(key) for row in rows}
        return len(values) > 1 if key in ("text", "kv") else values != {None}

    return [column for column in columns if needed(column.key)]
