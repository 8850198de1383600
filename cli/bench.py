"""`edgekv bench`: speed, with llama-bench's letters and names, beside stock llama.cpp in the same run."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgekv.cli.bench_cache import bench_cache
from edgekv.cli.bench_serve import bench_serve
from edgekv.cli.common.ending import ending
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import Group
from edgekv.cli.common.lists import CommaList, ModeList, numbers, pair
from edgekv.cli.common.number_types import WholeNumber
from edgekv.cli.common.shared_options import Parsed, model_path, option, token_bounds
from edgekv.cli.compare import compare
from edgekv.cli.speed_rows import OUTPUTS, print_speed, sentence, write_line
from edgekv.common.enums import CacheType
from edgekv.common.machine import MOST_THREADS
from edgekv.common.units import parse_bytes
from edgekv.config import parse_kv_dir

_NUMBERS = Parsed("N,...", numbers)
_THREADS = Parsed("N,...", partial(numbers, most=MOST_THREADS))
_BUDGETS = Parsed("BYTES,...", lambda text: tuple(parse_bytes(part.strip(), "the KV budget") for part in text.split(",")))
_TYPES = CommaList(click.Choice([kind.value for kind in CacheType]), "TYPE,...")
_FILLS = ("text", "synthetic")

_MODES, _MODES_ON_DISK = ("off", "exact", "sparse"), ("exact", "sparse")

_MODES_HELP = (
    "off (stock, always measured: off-flash and off-noflash, with and without flash attention; naming one of these in place of off "
    "measures that one alone), exact, exact-unobserved (attention mass not measured) and sparse. A mode can be changed: "
    "sparse:sample_budget=1000,recent_tokens=256."
)


def _many(*names: str, **settings: Any) -> Any:
    """An option that takes a list and may be repeated."""
    return option(*names, multiple=True, show_default=True, **settings)


@click.group(cls=Group, invoke_without_command=True, epilog=examples(
    "edgekv bench -p 512 -n 128 -d 0,4096,16384",
    "edgekv bench -m model.gguf --kv-dir /mnt/nvme --kv-budget 64MiB,512MiB",
    "edgekv bench -d 0-32768+8192 --fill synthetic -r 3 --kv-dir /mnt/nvme",
    "edgekv bench -p 0 -d 7680 --kld --modes exact,sparse:sample_budget=500",
))
@_many("-m", "--model", "models", type=click.Path(path_type=Path), metavar="FILE",
       help="A GGUF file; several times for several models.  [default: the default model]")
@_many("-p", "--n-prompt", type=_NUMBERS, default=("512",), help="Tests pp: prompt tokens to read; 0 for none.")
@_many("-n", "--n-gen", type=_NUMBERS, default=("128",), help="Tests tg: tokens to generate one by one; 0 for none.")
@_many("-pg", "--prompt-gen", "n_pg", type=Parsed("PP,TG", pair), help="Tests pp+tg: a prompt is read, then tokens are generated.")
@_many("-d", "--n-depth", "depths", type=_NUMBERS, default=("0",), help="Tokens in the cache before each test.")
@_many("-b", "--batch-size", "batches", type=_NUMBERS, default=("2048",), help="Tokens passed to llama.cpp at once.")
@_many("-ub", "--ubatch-size", "ubatches", type=_NUMBERS, default=("512",), help="Tokens computed at once.")
@_many("-t", "--threads", type=_THREADS, help="CPU threads.  [default: one for each core]")
@_many("-ctk", "--cache-type-k", "type_k", type=_TYPES, default=("f16",), help="Types of the K cache.")
@_many("-ctv", "--cache-type-v", "type_v", type=_TYPES, default=("f16",), help="Types of the V cache.")
@_many("--kv-bytes", type=Parsed("SIZE,...", token_bounds),
       help="Also caches with types by layer, of at most so many bytes of K and V a token, e.g. 24KiB; the modes' own name is in `type_k`, a digit "
            "for each layer.")
@option("-r", "--repetitions", type=WholeNumber(1), default=5, show_default=True, help="Passes of each test, the modes in turns.")
@option("--modes", type=ModeList(), help=f"{_MODES_HELP}  [default: {','.join(_MODES)}; with --kv-dir {','.join(_MODES_ON_DISK)}]")
@option("--kv-dir", type=Parsed("folder", parse_kv_dir), metavar="DIR",
        help="A folder on a disk for K and V, as in chat and serve, in modes sparse and exact. Stock keeps them in memory and is not measured.  "
             "[default: memory]")
@_many("--kv-budget", "budgets", type=_BUDGETS,
       help="With --kv-dir, mode sparse: memory for the rows that were read most lately, a row of the table for each size; auto: as in chat.  "
            "[default: auto]")
@option("--fill", type=click.Choice(_FILLS), default=_FILLS[0], show_default=True,
        help="Content of the cache: a text, which is read once, or synthetic K and V, which cost no computing.")
@option("--text", "texts", multiple=True, metavar="TEXT", default=("prose",), show_default=True,
        help="Text to read and predict: prose, code or dialogue (made from Python's standard library), or a file. Several times for several.")
@option("--kld", is_flag=True,
        help="Also show predictions and the rows read for them: likelihood, divergence from stock and from full attention. JSON always has them.")
@option("--warmup", type=WholeNumber(0), metavar="N",
        help="Tokens that every mode decodes with full attention before its pass.  [default: in mode sparse -n / 8, at most 16]")
@option("--page-size", type=WholeNumber(1), help="Cells per page.  [default: 16]")
@option("--peer", type=click.Path(path_type=Path), metavar="PROGRAM", help="Another llama-bench, which measures the same file in between.")
@option("-o", "--output", type=click.Choice(OUTPUTS), default=OUTPUTS[0], show_default=True, help="How to print.")
@click.pass_context
def bench(ctx: click.Context, **chosen: Any) -> None:
    """Measure speed against stock llama.cpp in the same run, in llama-bench's manner.

    Options, tests (pp512, tg128, "tg128 @ d16384", pp512+tg128) and fields of JSON are llama-bench's. Lists are "1,2,4", ranges
    "0-8192+2048" or "1-8*2". Every combination is measured. At each depth the modes take turns; a depth is read or synthesised once for all of
    them. "x stock" compares with the faster of stock's two rows, which has a star. Some columns:

    \b
    x limit        the time over that with an empty cache, for a token or
                   the same prompt, measured in the same turns
    attention      tests pp: the share of the time that attention to the
                   depth takes: the time beyond that in an empty cache
    ns/pair        that time for each query, key and query head of the
                   layers that EdgeKV serves, times the threads
    rows, read     rows that a head read for a token; their share of the
                   visible rows
    coverage       the estimated share of the attention on these rows
    error          the estimated relative error of a head's output
    hits           the share of the rows read that came from the arena
    KLD            mean divergence of the predicted distribution from
                   off-flash's; that of off-noflash shows the distance of
                   two correct kernels on this model
    KLD exact      the same, from full attention in our kernel
    NLL +%         the increase of the text's negative log-likelihood
    same top       the share of tokens for which both agree on the most
                   likely one
    overhead       the Python layer's share of the time
    disk pages     with --kv-dir: pages of memory (mostly of 4 KiB) that came
                   from disks for a token of the test; 0: all were in memory

    The commands below measure other things.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in chosen if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if given:
            raise click.UsageError(f"options before {ctx.invoked_subcommand!r} would have no effect; write them after it")
        return
    _measure(**chosen)


_LISTS = ("n_prompt", "n_gen", "depths", "batches", "ubatches", "threads", "type_k", "type_v", "budgets", "kv_bytes")


def _measure(
    models: Sequence[Path], modes: tuple[str, ...] | None, fill: str, texts: tuple[str, ...], kld: bool, output: str, repetitions: int, **others: Any
) -> None:
    from edgekv.bench.environment import environment
    from edgekv.bench.meter import Meter
    from edgekv.bench.request import BenchRequest
    from edgekv.bench.speed import run
    from edgekv.bench.text import find_text
    from edgekv.common.machine import n_cores
    from edgekv.measure.filling import Fill

    kv_dir = others["kv_dir"]
    found = {name: tuple(dict.fromkeys(chain.from_iterable(others[name]))) for name in _LISTS}
    types = tuple((CacheType(k), CacheType(v)) for k, v in product(found["type_k"], found["type_v"]))
    request = BenchRequest(
        models=tuple(map(model_path, models or (None,))), texts=tuple(map(find_text, texts)), n_prompt=found["n_prompt"], n_gen=found["n_gen"],
        n_pg=tuple(others["n_pg"]), depths=found["depths"], modes=modes or (_MODES if kv_dir is None else _MODES_ON_DISK),
        budgets=found["budgets"],
        threads=found["threads"] or (n_cores(),), batches=found["batches"], ubatches=found["ubatches"], cache_types=types, kv_bytes=found["kv_bytes"],
        n_rounds=repetitions, fill=Fill(fill), page_size=others["page_size"], n_warmup=others["warmup"], peer=others["peer"], kv_dir=kv_dir)
    rows: list[dict[str, Any]] = []
    stdout = sys.stdout  # a bar takes sys.stdout for itself
    with ending() as end:
        meter = Meter(end.show)
        where = environment(max(request.threads))
        for group in run(request, where, meter, warn=lambda said: click.echo(f"warning: {said}", err=True)):
            rows += group
            if output == "jsonl":
                write_line(group, stdout)
    if rows:
        print_speed(rows, output, kld)
        end.say(sentence(rows), output)
        click.echo(f"{meter.measured:.1f} of {meter.seconds:.0f} s were measurement, the rest loading and filling", err=True)
    end.close()


bench.add_command(bench_serve)
bench.add_command(bench_cache)
bench.add_command(compare)
