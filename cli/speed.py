"""`edgekv bench`: speed, with llama-bench's letters and names, beside stock llama.cpp in the same run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgekv.amounts import parse_bytes
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList, ModeList
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.ranges import numbers, pair
from edgekv.cli.common.shared_options import Parsed, model_path, option
from edgekv.cli.speed_rows import OUTPUTS, print_speed, write_line
from edgekv.errors import EdgeKVError
from edgekv.vocab import CacheType

_NUMBERS = Parsed("N,...", numbers)
_TYPES = CommaList(click.Choice([kind.value for kind in CacheType]), "TYPE,...")
_FILLS = ("text", "synthetic")


def _budgets(text: str) -> tuple[int | None, ...]:
    return tuple(parse_bytes(part.strip(), "the KV budget") for part in text.split(","))


def _many(*names: str, **settings: Any) -> Any:
    """An option that takes a list, and may be given several times."""
    return option(*names, multiple=True, show_default=True, **settings)


@click.group(invoke_without_command=True, epilog=examples(
    "edgekv bench -p 512 -n 128 -d 0,4096,16384",
    "edgekv bench -m model.gguf --modes exact,sparse --kv-budget 64MiB,512MiB",
    "edgekv bench -d 0-32768+8192 --fill synthetic -r 3 -o json",
    "edgekv bench kv -d 4096 -t 1,2",
))
@_many("-m", "--model", "models", type=click.Path(path_type=Path), metavar="FILE",
       help="A GGUF file; several times for several models.  [default: the default model]")
@_many("-p", "--n-prompt", type=_NUMBERS, default=("512",), help="Tests pp: tokens of a prompt that is read; 0 for none.")
@_many("-n", "--n-gen", type=_NUMBERS, default=("128",), help="Tests tg: tokens that are generated one by one; 0 for none.")
@_many("-pg", "--prompt-gen", "n_pg", type=Parsed("PP,TG", pair), help="Tests pp+tg: a prompt is read, then tokens are generated.")
@_many("-d", "--n-depth", "depths", type=_NUMBERS, default=("0",), help="Tokens that stand in the cache before.")
@_many("-b", "--batch-size", "batches", type=_NUMBERS, default=("2048",), help="Tokens that are handed to llama.cpp at once.")
@_many("-ub", "--ubatch-size", "ubatches", type=_NUMBERS, default=("512",), help="Tokens that are computed at once.")
@_many("-t", "--threads", type=_NUMBERS, help="CPU threads.  [default: one for each core]")
@_many("-ctk", "--type-k", "--cache-type-k", type=_TYPES, default=("f16",), help="Types of the K cache.")
@_many("-ctv", "--type-v", "--cache-type-v", type=_TYPES, default=("f16",), help="Types of the V cache.")
@option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True, help="Passes of each test, the modes in turns.")
@option("--modes", type=ModeList(), default="off,exact,sparse", show_default=True,
        help="What is measured beside stock, which always is, with flash attention and without. As in `edgekv bench kv`: "
             "sparse:resolution=1000 changes a mode.")
@_many("--kv-budget", "budgets", type=Parsed("BYTES,...", _budgets),
       help="Mode sparse: sizes of the arena, a row for each; auto: none on a processor.  [default: auto]")
@option("--fill", type=click.Choice(_FILLS), default=_FILLS[0], show_default=True,
        help="What stands in the cache: a text that is read once, or made-up K and V, which cost no computing.")
@option("--text", default="prose", show_default=True, help="Text to read: prose, code or dialogue, or a file.")
@option("--peer", type=click.Path(path_type=Path), metavar="PROGRAM", help="Another llama-bench, which is run in between on the same file.")
@option("-o", "--output", type=click.Choice(OUTPUTS), default=OUTPUTS[0], show_default=True, help="How to print.")
@click.pass_context
def bench(ctx: click.Context, **chosen: Any) -> None:
    """Measure speed against stock llama.cpp in the same run, in llama-bench's manner.

    Options, tests (pp512, tg128, "tg128 @ d16384", pp512+tg128) and fields of JSON are llama-bench's. Lists are "1,2,4", ranges
    "0-8192+2048" or "1-8*2". Every combination is measured. At each depth the modes take turns; a depth is read or made up once for all of
    them. "x stock" compares with the faster of stock's two rows, which has a star.

    The commands below measure other things.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in chosen if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if given:
            raise click.UsageError(f"options before {ctx.invoked_subcommand!r} would be without effect; write them behind it")
        return
    _measure(**chosen)


def _measure(
    models: Sequence[Path], modes: tuple[str, ...], fill: str, text: str, peer: Path | None, output: str, repetitions: int, **lists: Any
) -> None:
    from edgekv.lab.engine.environment import environment
    from edgekv.lab.engine.meter import Meter
    from edgekv.lab.engine.request import BenchRequest, Fill
    from edgekv.lab.questions.speed_run import run
    from edgekv.lab.texts.text import find_text
    from edgekv.machine import n_cores
    from edgekv.rates.measuring.interrupts import Interrupts

    found = {name: tuple(dict.fromkeys(chain.from_iterable(lists[name]))) for name in lists if name != "n_pg"}
    types = tuple((CacheType(k), CacheType(v)) for k, v in product(found["type_k"], found["type_v"]))
    request = BenchRequest(
        models=tuple(models) or (model_path(None),), text=find_text(text), n_prompt=found["n_prompt"], n_gen=found["n_gen"],
        n_pg=tuple(lists["n_pg"]), depths=found["depths"], modes=modes, budgets=found["budgets"],
        threads=found["threads"] or (n_cores(),), batches=found["batches"], ubatches=found["ubatches"], cache_types=types,
        n_rounds=repetitions, fill=Fill(fill), peer=peer)
    rows: list[dict[str, Any]] = []
    problem: BaseException | None = None
    stdout = sys.stdout  # a bar takes sys.stdout for itself
    with progress_bar() as show, Interrupts():
        meter = Meter(show)
        try:
            where = environment(max(request.threads))
            for group in run(request, where, meter, warn=lambda said: click.echo(f"warning: {said}", err=True)):
                rows += group
                if output == "jsonl":
                    write_line(group, stdout)
        except (EdgeKVError, KeyboardInterrupt) as error:  # what was measured is printed first
            problem = error
    if rows:
        print_speed(rows, output)
        click.echo(f"measured work {100 * meter.share:.0f} % of {meter.seconds:.0f} s", err=True)
    if problem is not None:
        raise problem
