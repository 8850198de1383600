"""`edgekv lab heads`: what each head attends after a prompt, and its role."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.lists import numbers
from edgekv.cli.common.shared_options import Parsed, model_argument, model_path, option, threads_option
from edgekv.cli.common.tables import NAME, Column, output_option, print_json, print_rows
from edgekv.common.errors import ConfigError
from edgekv.common.units import percent

if TYPE_CHECKING:
    from edgekv.lab.heads.attended import HeadMass

SNIPPET_CHARS = 40


COLUMNS = [
    Column("layer", "layer", rank=NAME),
    Column("head", "head", rank=NAME),
    Column("role", "role", right=False, rank=NAME),
    Column("sink", "first %", percent, rank=8),
    Column("recent", "recent %", percent, rank=4),
    Column("rest", "rest %", percent, rank=8),
    Column("concentration", "on few %", percent, rank=3),
    Column("change", "change %", percent, rank=3),
    Column("effective_pages", "eff. pages", lambda n: f"{n:.1f}", rank=2),
    Column("top_page", "top page", rank=4),
    Column("top_share", "its %", percent, rank=4),
    Column("top_text", "its text", right=False, rank=7),
]


@click.command(epilog=examples(
    'edgekv lab heads -p "The capital of France is Paris, and that of Spain is"',
    "edgekv lab heads --layers 0,4-7 --picture heads.svg < notes.txt",
    "edgekv lab heads --trace prose.npz",
))
@model_argument
@option("-p", "--prompt", help="The text to read; without it, standard input.")
@option("--trace", type=click.Path(path_type=Path), metavar="FILE",
        help="Read a recorded trace (edgekv lab trace record) in place of running the model; it has no text.")
@option("-n", "--last", type=click.IntRange(1), default=32, show_default=True,
        help="How many of the prompt's last tokens are decoded one by one and observed; roles need two, and some tens to be "
             "sure.")
@option("--recent", type=click.IntRange(0), default=4, show_default=True, help="How many pages at the end count as recent.")
@option("-l", "--layers", type=Parsed("LIST", numbers), metavar="LIST", help="Show only these layers, e.g. 0,4-7.")
@option("--picture", type=click.Path(path_type=Path), metavar="FILE",
        help="Also draw the map of roles, as .png or .svg; needs matplotlib (pip install ./edgekv/lab).")
@option("-c", "--ctx", type=click.IntRange(1), metavar="TOKENS", help="Context length.  [default: what the prompt needs]")
@threads_option
@output_option("json", "csv", "md")
def heads(
    model: Path | None, prompt: str | None, trace: Path | None, last: int, recent: int, layers: tuple[int, ...] | None, picture: Path | None,
    ctx: int | None, threads: int | None, output: str,
) -> None:
    """Read a prompt and show where each head's attention went: on the first page (where models park attention they do not need),
    on the last pages, or in between; and the head's role that follows.

    The prompt is taken as it is, without a chat template. Its last tokens are decoded one by one, and their attention is summed; the
    tokens before them are read in batches, which are not observed. A page is 16 tokens. One line is one KV head: its query heads are
    added up. The map of all layers stands below the table.

    \b
    eff. pages   the number of pages that an evenly spread head with the same
                 entropy would use
    on few       of what is neither on the first page nor on recent ones, the
                 share on its best twentieth of the pages
    change       of the same, the share that moves to other pages from token
                 to token
    top page     the strongest page that is neither the first nor recent

    \b
    retrieval    a fifth or more of its mass in the middle, on few pages,
                 others for each token
    anchor       most of its mass on the first page
    recency      most of its mass on the last pages
    other        none of these: diffuse, or always the same pages

    MODEL is a GGUF file; without it the default model is used.
    """
    if picture is not None:
        from edgekv.lab.report.drawing import check_picture

        check_picture(picture)
    name, mass, texts = _replayed(trace, recent) if trace is not None else _observed(model, prompt, last, recent, ctx, threads)
    chosen = _chosen(layers, len(mass.layers))
    if output == "json":
        print_json(_full(mass, name, texts, chosen))
    else:
        if output == "table":
            click.echo(f"{name}: {mass.n_tokens} tokens, {mass.n_pages} pages of {mass.page_tokens}, "
                       f"attention of the last {mass.n_steps} token{'s' * (mass.n_steps > 1)}", err=True)
        print_rows(_rows(mass, texts, chosen), COLUMNS if texts else COLUMNS[:-1], output)
        if output == "table":
            _print_map(mass, chosen)
        for layer in mass.layers:
            if layer.il in chosen and not layer.hooked:
                click.echo(f"layer {layer.il} is not observed: {layer.reason}", err=True)
    if picture is not None:
        _draw(mass, name, picture)


def _replayed(path: Path, recent: int) -> tuple[str, HeadMass, list[str]]:
    from edgekv.lab.heads.attended import replay
    from edgekv.lab.traces.trace import Trace

    trace = Trace.open(path)
    return f"{trace.header.model}, {path.name}", replay(trace, recent), []


def _observed(
    model: Path | None, prompt: str | None, last: int, recent: int, ctx: int | None, threads: int | None
) -> tuple[str, HeadMass, list[str]]:
    """The model's name, its heads' mass, and the text of each page."""
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError("there is no prompt; give one with -p TEXT or on standard input")
        prompt = sys.stdin.read()
    from edgekv.common.enums import KvMode
    from edgekv.lab.heads.attended import observe
    from edgekv.llama import Llama
    from edgekv.models import geometry

    model = model_path(model)
    # A text has at most one token for each byte, plus one at the start; the context is no larger than it must be.
    n_ctx = ctx or min(geometry(model).n_ctx_train, len(prompt.encode()) + 8)
    options: dict[str, Any] = {} if threads is None else {"n_threads": threads, "n_threads_batch": threads}
    llama = Llama(str(model), kv=KvMode.EXACT, observe=True, n_ctx=n_ctx, verbose=False, **options)
    try:
        mass = observe(llama, llama.tokenize(prompt.encode()), last, recent)
        texts = [llama.detokenize(mass.page_slice(page)).decode(errors="replace") for page in range(mass.n_pages)]
    finally:
        llama.close()
    return model.name, mass, texts


def _print_map(mass: HeadMass, chosen: list[int]) -> None:
    """Print a line for each head with a letter for each layer, in blocks as wide as the terminal."""
    from edgekv.lab.heads.roles import ROLES, UNKNOWN

    known = mass.profile.roles()[chosen]
    if (known == UNKNOWN).all():
        click.echo("\nroles need two observed tokens or more (-n)")
        return
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def cell(role: int) -> str:
        letter = "." if role == UNKNOWN else ROLES[role].letter
        return click.style(letter, fg=_COLOURS[ROLES[role].value]) if styled and role != UNKNOWN else letter

    counts = ", ".join(f"{cell(i)} {role.value} {int((known == i).sum())}" for i, role in enumerate(ROLES))
    click.echo(f"\nroles: {counts}")
    label = max(len("layer"), len(f"head {known.shape[1] - 1}"))
    per_line = max(10, shutil.get_terminal_size().columns - label - 2)
    for first in range(0, len(chosen), per_line):
        part = chosen[first : first + per_line]
        click.echo(f"{'layer':>{label}}  {_ruler(part)}")
        for head in range(known.shape[1]):
            line = "".join(cell(role) for role in known[first : first + per_line, head])
            click.echo(f"{f'head {head}':>{label}}  {line}")


_COLOURS = {"retrieval": "red", "anchor": "blue", "recency": "green", "other": "bright_black"}


def _ruler(layers: list[int]) -> str:
    """Layer numbers above the first letter and every tenth, where there is room."""
    line = ""
    for column, il in enumerate(layers):
        if (column == 0 or il % 10 == 0) and len(line) <= max(0, column - 1):
            line = line.ljust(column) + str(il)
    return line


def _draw(mass: HeadMass, name: str, picture: Path) -> None:
    from edgekv.lab.report import drawing
    from edgekv.lab.report.pictures import role_map

    title = f"Head roles of {name}: {mass.n_tokens} tokens, the last {mass.n_steps} observed"
    with drawing.style():
        drawing.save(role_map(mass.profile, title), picture)
    click.echo(f"the map is in {picture}", err=True)


def _rows(mass: HeadMass, texts: list[str], chosen: list[int]) -> list[dict[str, Any]]:
    from edgekv.lab.heads.roles import MEASURES

    profile, effective, top = mass.profile, mass.effective_pages, mass.top_page
    roles = profile.names()
    rows = []
    for layer in mass.layers:
        if layer.il not in chosen or not layer.hooked:
            continue
        for head in range(layer.n_head_kv):
            page = int(top[layer.il, head])
            rows.append({
                "layer": layer.il, "head": head, "role": roles[layer.il][head],
                **{"rest" if name == "middle" else name: float(getattr(profile, name)[layer.il, head]) for name in MEASURES},
                "effective_pages": float(effective[layer.il, head]), "top_page": page,
                "top_share": float(mass.pages[layer.il, head, page]) if page >= 0 else None,
                "top_text": _snippet(texts[page]) if texts and page >= 0 else None,
            })
    return rows


def _full(mass: HeadMass, model: str, texts: list[str], chosen: list[int]) -> dict[str, Any]:
    return {
        "model": model, **{name: getattr(mass, name) for name in ("n_tokens", "n_steps", "page_tokens", "n_pages", "recent_pages")},
        "layers": [{"layer": il, "hooked": mass.layers[il].hooked, "reason": mass.layers[il].reason} for il in chosen],
        "heads": _rows(mass, texts, chosen),
        "pages": {"axes": ["layer", "kv_head", "page"], "layers": chosen, "share": mass.pages[chosen].tolist(), "text": texts},
    }


def _snippet(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else line[: SNIPPET_CHARS - 1] + "…"


def _chosen(layers: tuple[int, ...] | None, n_layer: int) -> list[int]:
    """Those that are asked for; None: all."""
    chosen = sorted(set(range(n_layer) if layers is None else layers))
    if chosen[-1] >= n_layer:
        raise ConfigError(f"--layers names layer {chosen[-1]}; this model has the layers 0-{n_layer - 1}")
    return chosen
