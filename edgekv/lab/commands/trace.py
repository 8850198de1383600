"""`edgekv lab trace`: record a model's attention, and say what a recording holds."""

from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import Group
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import Parsed, model_argument, model_path, option, threads_option
from edgekv.cli.common.tables import output_option, print_json
from edgekv.common.enums import CacheType
from edgekv.common.units import size
from edgekv.config import SelectionOptions, parse_sample_budget

_TYPE_NAMES = [kind.value for kind in CacheType]


@click.group(cls=Group, epilog=examples(
    "edgekv lab trace record -o prose.npz",
    "edgekv lab sim prose.npz",
))
def trace() -> None:
    """Record where a model's attention goes, to replay it with `edgekv lab sim`."""


@trace.command(epilog=examples(
    "edgekv lab trace record -o prose.npz",
    "edgekv lab trace record -o notes.npz --text notes.txt -d 2048 -n 256",
))
@model_argument
@option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE",
        help="The file to write.", envvar="EDGEKV_TRACE")
@option("--text", default="prose", show_default=True, metavar="TEXT",
        help="Text to read: prose, code or dialogue (made from Python's standard library), or a file.")
@option("-d", "--depth", type=click.IntRange(min=2), default=7168, show_default=True,
        help="Tokens before the counted ones, including those of the window.")
@option("-n", "--steps", type=click.IntRange(min=1), default=1024, show_default=True, help="Counted tokens, decoded one by one.")
@option("--window", type=click.IntRange(min=0), default=32, show_default=True,
        help="The last tokens before them, decoded one by one: every policy sees their attention in full.")
@option("--sample-budget", type=Parsed("NUMBER", parse_sample_budget), default=f"{SelectionOptions.sample_budget:g}", show_default=True, metavar="C",
        help="Sample budget of the pass in mode sparse.")
@option("-ctk", "--cache-type-k", type=click.Choice(_TYPE_NAMES), default="f16", show_default=True, help="Type of the K cache.")
@option("-ctv", "--cache-type-v", type=click.Choice(_TYPE_NAMES), default="f16", show_default=True, help="Type of the V cache.")
@option("--page-size", type=click.IntRange(1), help="Cells per page.  [default: 16]")
@threads_option
def record(
    model: Path | None, output: Path, text: str, depth: int, steps: int, window: int, sample_budget: float, cache_type_k: str,
    cache_type_v: str, page_size: int | None, threads: int | None,
) -> None:
    """Record the attention of a model that reads a text with full attention, and mode sparse's observation of it.

    The text is read in up to the window. The rest is decoded token by token, once with full attention and once in mode sparse. The file
    holds for each token the attention mass on every page of every layer and KV head: summed over the query heads of the group and as their
    maximum, and both again as mode sparse observed them. It also holds how many rows of the page mode sparse read.
    edgekv/lab/traces/file.py describes the format. Only layers that EdgeKV's attention serves are recorded. An interrupted
    recording leaves no file.

    MODEL is a GGUF file; without it the default model is used.
    """
    from edgekv.bench.text import find_text
    from edgekv.common.machine import n_cores
    from edgekv.lab.traces.record import Recording
    from edgekv.lab.traces.record import record as run

    recording = Recording(
        model=model_path(model), text=find_text(text), depth=depth, n_steps=steps, n_warmup=window, resolution=sample_budget,
        n_threads=threads or n_cores(), type_k=CacheType(cache_type_k), type_v=CacheType(cache_type_v), page_size=page_size)
    with progress_bar() as progress:
        run(recording, output, progress, warn=lambda text: click.echo(f"warning: {text}", err=True))
    click.echo(f"{output}: {depth} tokens and {steps} steps, {size(output.stat().st_size)}", err=True)


@trace.command(epilog=examples(
    "edgekv lab trace info prose.npz",
    "edgekv lab trace info prose.npz -o json",
))
@click.argument("file", type=click.Path(path_type=Path))
@output_option("json")
def info(file: Path, output: str) -> None:
    """Describe a trace."""
    from edgekv.lab.traces.trace import Trace

    with Trace.open(file) as opened:
        header = opened.header
    facts: dict[str, Any] = {name: getattr(header, name) for name in (
        "version", "model", "text", "depth", "n_warmup", "n_steps", "n_pages", "page_tokens", "layers", "n_heads", "groups", "resolution",
        "type_k", "type_v")} | {"file_bytes": file.stat().st_size}
    if output == "json":
        print_json(facts)
        return
    heads, groups = sum(map(sum, header.exists)), sorted(set(header.groups))
    lines = {
        "model": header.model, "text": header.text,
        "tokens": f"{header.depth} before the steps ({header.n_warmup} of them the window), {header.n_steps} steps",
        "pages": f"{header.n_pages} of {header.page_tokens} tokens",
        "heads": f"{heads} KV heads in {header.n_layers} layers, {' or '.join(map(str, groups))} query heads each",
        "cache": f"{header.type_k}/{header.type_v}", "sampled": f"at sample budget {header.resolution:,g}",
        "file": f"version {header.version}, {size(facts['file_bytes'])}",
    }
    for name, line in lines.items():
        click.echo(f"{name:9} {line}")
