"""`edgekv bench cache`: what keeping a long prompt takes, and how soon it is back."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.ending import ending
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList
from edgekv.cli.common.number_types import WholeNumber
from edgekv.cli.common.shared_options import Parsed, model_argument, model_path, option, parse_address, threads_option
from edgekv.cli.common.tables import NAME, Column, output_option, print_measured
from edgekv.common.enums import CacheCodec
from edgekv.common.units import MOST_TOKENS, fixed, tokens

_PLACES = {"ram": "RAM", "disk": "disk", "shared": "the shared server"}
_CODECS = (CacheCodec.NONE.value, CacheCodec.ROUND.value)

COLUMNS = [
    Column("place", "place", right=False, rank=NAME),
    Column("codec", "codec", right=False, rank=NAME),
    Column("n_tokens", "tokens", tokens, rank=4),
    Column("bytes_a_token", "B/token", partial(fixed, digits=0), rank=3),
    Column("save_s", "save s", partial(fixed, digits=2), rank=6),
    Column("first_s", "first token s", partial(fixed, digits=2), rank=7),
    Column("first_vs_reading", "x reading", partial(fixed, digits=3), rank=8),
    Column("kld", "KLD", "{:.1e}".format, rank=6),
]


@click.command(name="cache", epilog=examples(
    "edgekv bench cache",
    "edgekv bench cache model.gguf -p 8192 --cache-dir /mnt/nvme",
    "edgekv bench cache --cache-url redis://127.0.0.1:6379/0 -r 5 -o csv",
))
@model_argument
@option("-p", "--prompt", "n_tokens", type=WholeNumber(1, MOST_TOKENS), default=4096, show_default=True, help="Tokens of the prompt that is kept.")
@option("-n", "--predict", "n_predicted", type=WholeNumber(1, MOST_TOKENS), default=64, show_default=True,
        help="Tokens behind it whose predictions are compared.")
@option("--cache-dir", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        help="Measure the disk of this folder; nothing is left there.  [default: no disk]")
@option("--cache-url", "url", type=Parsed("cache_url", parse_address), metavar="URL",
        help="Measure this Redis-compatible server, redis://HOST:PORT/DB; it forgets the rows after a quarter of an hour.  [default: none]")
@option("--codecs", type=CommaList(click.Choice(_CODECS), "CODEC,..."), default=",".join(_CODECS), show_default=True,
        help="Forms of the rows of --cache-dir and --cache-url, as of --cache-codec.")
@option("-r", "--turns", type=WholeNumber(1), default=3, show_default=True, help="Turns; each reads one of the texts.")
@threads_option
@option("--text", "texts", multiple=True, metavar="TEXT", default=("prose",), show_default=True,
        help="Text to read: prose, code or dialogue, or a file. Several times for several.")
@output_option("json", "csv", "md")
def bench_cache(model: Path | None, texts: tuple[str, ...], codecs: tuple[str, ...], threads: int | None, turns: int, output: str, **others: Any) -> None:
    """Keep the rows of a long prompt in RAM, on a disk and on a shared server, and get them back for a prompt that goes on differently.

    Mode exact; saved and loaded as by a server, without its HTTP. In each turn every place keeps the rows that were just read, then the
    context is emptied for each and the prompt comes again. The columns:

    \b
    B/token        bytes of a token in the place
    save s         until all rows are in RAM, on the disk and synced, or sent
    first token s  from the prompt to the prediction behind its last 32
                   tokens, which are new; a disk's page cache is emptied.
                   In the row `none` the whole prompt is read
    x reading      that time over that of row `none`
    KLD            mean divergence of predictions from those behind the rows
                   that were read; in row `none` that of stock's attention
                   over the same rows

    MODEL is a GGUF file; without it the default model is used.
    """
    from edgekv.bench.kept_rows import KeptBench, run
    from edgekv.bench.text import find_text

    request = KeptBench(model_path(model), tuple(find_text(name) for name in texts), codecs=tuple(map(CacheCodec, codecs)), n_threads=threads,
                        n_turns=turns, **others)
    rows: list[dict[str, Any]] = []
    with ending() as end:
        for so_far in run(request, end.show):
            rows = so_far
    if rows:
        print_measured(rows, COLUMNS, output)
        end.say(sentence(rows), output)
    end.close()


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """How soon each place has the prompt back; the row `none` reads it."""
    reading, *others = rows
    places = {row["place"]: row["first_s"] for row in reversed(others)}  # of several codecs the first
    back = " and ".join(f"{places[place]:.2f} s from {name}" for place, name in _PLACES.items() if place in places)
    return f"{reading['n_tokens']:,} tokens are back after {back}; reading them takes {reading['first_s']:.2f} s"
