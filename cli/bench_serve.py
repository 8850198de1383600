"""`edgekv bench serve`: how servers answer several clients at once."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.ending import ending
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import CommaList
from edgekv.cli.common.number_types import WholeNumber
from edgekv.cli.common.shared_options import model_argument, model_path, option
from edgekv.cli.common.tables import NAME, Column, output_option, print_measured
from edgekv.common.enums import STOCK_KERNELS, KvMode
from edgekv.common.machine import MOST_THREADS
from edgekv.common.units import MOST_TOKENS, fixed, tokens

COLUMNS = [
    Column("server", "server", right=False, rank=NAME),
    Column("part", "part", right=False, rank=NAME),
    Column("clients", "clients", rank=3),
    Column("n_prompt", "prompt", tokens, rank=3),
    Column("seconds", "s", partial(fixed, digits=1), rank=6),
    Column("seconds_vs_stock", "x stock", partial(fixed, digits=2), rank=7),
    Column("tokens_per_second", "tokens/s", partial(fixed, digits=1), rank=8, score=lambda row: row["tokens_per_second"]),
    Column("speed_vs_stock", "x stock", partial(fixed, digits=2), rank=8),
    Column("ttft_p50_s", "first token", lambda s: f"{s:.2f} s", rank=6),
    Column("ttft_max_s", "latest", lambda s: f"{s:.2f} s", rank=4),
    Column("gap_p50_ms", "gap ms", partial(fixed, digits=0), rank=5),
    Column("gap_p99_ms", "p99", partial(fixed, digits=0), rank=4),
    Column("gap_max_ms", "worst", partial(fixed, digits=0), rank=3),
]

SERVERS = (*STOCK_KERNELS, KvMode.EXACT.value, KvMode.SPARSE.value)


@click.command(name="serve", epilog=examples(
    "edgekv bench serve",
    "edgekv bench serve --clients 8 --servers off-flash,sparse",
    "edgekv bench serve --url http://127.0.0.1:8080",
))
@model_argument
@option("--url", metavar="URL", help="Use the server at this address instead of starting servers.")
@option("--api-key", metavar="KEY", help="With --url: the server's key.")
@option("--servers", type=CommaList(click.Choice(SERVERS), "SERVER,..."), default=",".join(SERVERS), show_default=True,
        help="What to compare: stock llama.cpp with and without flash attention, and modes of EdgeKV.")
@option("-c", "--clients", type=WholeNumber(1, 64), default=4, show_default=True, help="Clients with requests at the same time.")
@option("-p", "--prompt", "n_prompt", type=WholeNumber(1, MOST_TOKENS), default=1900, show_default=True, help="Tokens of each client's prompt.")
@option("-n", "--answer", "n_answer", type=WholeNumber(2, MOST_TOKENS), default=64, show_default=True, help="Tokens of each answer.")
@option("-r", "--turns", type=WholeNumber(1), default=2, show_default=True, help="Turns of each server.")
@option("-t", "--threads", type=WholeNumber(1, MOST_THREADS), help="CPU threads of each server.  [default: one for each core]")
@option("--text", default="prose", show_default=True, help="Text to read: prose, code or dialogue, or a file.")
@output_option("json", "csv", "md")
def bench_serve(
    model: Path | None, url: str | None, api_key: str | None, servers: tuple[str, ...], clients: int, n_prompt: int, n_answer: int,
    turns: int, threads: int | None, text: str, output: str,
) -> None:
    """Ask servers from several clients at once, in turns, and compare.

    Each turn has two parts: read, with prompts that are new to the server, and decode, with the same prompts again, which it holds.
    The columns:

    \b
    s              until the last client has its last token
    x stock        the better of stock's two servers divided by it; above 1
                   is faster. Beside tokens/s it is of these
    tokens/s       of all clients together, while all of them answer
    first token    the median client's wait for it; latest: the last one's
    gap ms         between two tokens of an answer: median, p99 and worst

    MODEL is a GGUF file; without it the default model is used.
    """
    from edgekv.bench.clients import Load
    from edgekv.bench.serve import ServeBench, run
    from edgekv.bench.text import find_text

    if url is not None and model is not None:
        raise click.UsageError("--url uses a running server; leave MODEL out")
    request = ServeBench(None if url else model_path(model), Load(clients, n_prompt, n_answer), servers, turns, threads, (), url, api_key)
    rows: list[dict[str, Any]] = []
    with ending() as end:
        for so_far in run(request, find_text(text).content, end.show):
            rows = so_far
    end.busy &= url is None  # a server elsewhere may be what is busy here
    if rows:
        print_measured(rows, [column for column in COLUMNS if any(row[column.key] is not None for row in rows)], output, groups=("part",))
        end.say(sentence(rows), output)
    end.close()


def sentence(rows: Sequence[dict[str, Any]]) -> str | None:
    """The best of EdgeKV's modes against llama.cpp; where nothing was compared, what the server gave. None: only llama.cpp was asked."""
    ours = [row for row in rows if row["server"] not in STOCK_KERNELS]
    best = max((row for row in ours if row["part"] == "decode"), key=lambda row: row["tokens_per_second"] or 0.0, default=None)
    if best is None:
        return None
    clients = f"{best['clients']} client{'s' * (best['clients'] > 1)} at {best['n_prompt']:,} tokens"
    if best["tokens_per_second"] is None:
        return f"{clients}: an answer ended before another one began, so that there is no speed of all together; ask for more tokens (-n)"
    if best["speed_vs_stock"] is None:
        get = "gets" if best["clients"] == 1 else "get"
        return f"{clients} {get} {best['tokens_per_second']:,.1f} tokens/s; the first comes after {best['ttft_p50_s']:.2f} s, by the median"
    (read,) = [row["seconds_vs_stock"] for row in ours if row["server"] == best["server"] and row["part"] == "read"]
    return f"With {clients} {best['server']} decodes {best['speed_vs_stock']:.1f}x as fast as llama.cpp, and new prompts are answered {read:.1f}x as fast"
