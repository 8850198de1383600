"""`edgekv heads`: what each head attends after a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.options import model_argument, model_path, option, threads_option
from edgekv.cli.tables import Column, output_option, print_json, print_rows
from edgekv.errors import ConfigError
from edgekv.vocab import MAX_QUERY_TOKENS

if TYPE_CHECKING:
    from edgekv.heads import HeadMass

SNIPPET_CHARS = 40


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


COLUMNS = [
    Column("layer", "layer"),
    Column("head", "head"),
    Column("sink", "first %", _percent),
    Column("recent", "recent %", _percent),
    Column("rest", "rest %", _percent),
    Column("effective_pages", "eff. pages", lambda n: f"{n:.1f}"),
    Column("top_page", "top page"),
    Column("top_share", "its %", _percent),
    Column("top_text", "its text", right=False),
]


@click.command()
@model_argument
@option("-p", "--prompt", help="The text to read; without it, standard input.")
@option("-n", "--last", type=click.IntRange(1, MAX_QUERY_TOKENS), default=1, show_default=True,
        help="How many of the prompt's last tokens are decoded one by one and observed.")
@option("--recent", type=click.IntRange(0), default=4, show_default=True, help="How many pages at the end count as recent.")
@option("-l", "--layers", metavar="LIST", help="Show only these layers, e.g. 0,4-7.")
@option("-c", "--ctx", type=click.IntRange(1), metavar="TOKENS", help="Context length.  [default: what the prompt needs]")
@threads_option
@output_option("json", "csv", "md")
def heads(
    model: Path | None, prompt: str | None, last: int, recent: int, layers: str | None, ctx: int | None, threads: int | None,
    output: str,
) -> None:
    """Read a prompt and show where each head's attention went: on the first page (where models park attention they do not need),
    on the last pages, or in between.

    The prompt is taken as it is, without a chat template. Its last tokens are decoded one by one, and their attention
    is summed; the tokens before them are read in batches, which are not observed. A page is 16 tokens. One line is one KV
    head: its query heads are added up. "eff. pages" is the number of pages that an evenly spread head with the same entropy
    would use; "top page" is the strongest page that is neither the first nor recent.

    MODEL is a GGUF file; without it the default model is used.
    """
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError("there is no prompt; give one with -p TEXT or on standard input")
        prompt = sys.stdin.read()
    from edgekv.heads import observe
    from edgekv.llama import Llama
    from edgekv.models import geometry
    from edgekv.vocab import KvMode

    model = model_path(model)
    shape = geometry(model)
    chosen = _layer_list(layers, shape.n_layer)
    # Never more than a token for each byte, plus the one at the start; the context is only as large as it has to be.
    n_ctx = ctx or min(shape.n_ctx_train, len(prompt.encode()) + 8)
    options: dict[str, Any] = {} if threads is None else {"n_threads": threads, "n_threads_batch": threads}
    llama = Llama(str(model), kv=KvMode.EXACT, kv_observe=True, n_ctx=n_ctx, verbose=False, **options)
    try:
        mass = observe(llama, llama.tokenize(prompt.encode()), last, recent)
        texts = [llama.detokenize(mass.page_slice(page)).decode(errors="replace") for page in range(mass.n_pages)]
    finally:
        llama.close()
    if output == "json":
        print_json(_full(mass, model, texts, chosen))
    else:
        if output == "table":
            click.echo(f"{model.name}: {len(mass.tokens)} tokens, {mass.n_pages} pages of {mass.page_tokens}, "
                       f"attention of the last {mass.n_steps} token{'s' * (mass.n_steps > 1)}", err=True)
        print_rows(_rows(mass, texts, chosen), COLUMNS, output)
        for layer in mass.layers:
            if layer.il in chosen and not layer.hooked:
                click.echo(f"layer {layer.il} is not observed: {layer.reason}", err=True)


def _rows(mass: HeadMass, texts: list[str], chosen: list[int]) -> list[dict[str, Any]]:
    sink, recent, rest, effective, top = mass.sink, mass.recent, mass.rest, mass.effective_pages, mass.top_page
    rows = []
    for layer in mass.layers:
        if layer.il not in chosen or not layer.hooked:
            continue
        for head in range(layer.n_head_kv):
            page = int(top[layer.il, head])
            rows.append({
                "layer": layer.il, "head": head, "sink": float(sink[layer.il, head]), "recent": float(recent[layer.il, head]),
                "rest": float(rest[layer.il, head]), "effective_pages": float(effective[layer.il, head]), "top_page": page,
                "top_share": float(mass.pages[layer.il, head, page]) if page >= 0 else None,
                "top_text": _snippet(texts[page]) if page >= 0 else None,
            })
    return rows


def _full(mass: HeadMass, model: Path, texts: list[str], chosen: list[int]) -> dict[str, Any]:
    return {
        "model": model.name,
        "n_tokens": len(mass.tokens),
        "n_steps": mass.n_steps,
        "page_tokens": mass.page_tokens,
        "n_pages": mass.n_pages,
        "recent_pages": mass.recent_pages,
        "layers": [{"layer": il, "hooked": mass.layers[il].hooked, "reason": mass.layers[il].reason} for il in chosen],
        "heads": _rows(mass, texts, chosen),
        "pages": {"axes": ["layer", "kv_head", "page"], "layers": chosen, "share": mass.pages[chosen].tolist(), "text": texts},
    }


def _snippet(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else line[: SNIPPET_CHARS - 1] + "…"


def _layer_list(spec: str | None, n_layer: int) -> list[int]:
    """Layers of a list such as "0,4-7"; all of them for None."""
    if spec is None:
        return list(range(n_layer))
    chosen: set[int] = set()
    for part in spec.split(","):
        first, dash, end = part.strip().partition("-")
        if not first.isdigit() or dash and not end.isdigit():
            raise ConfigError(f"--layers is {spec!r}; give layer numbers and ranges, e.g. 0,4-7")
        chosen.update(range(int(first), int(end or first) + 1))
    if not chosen or max(chosen) >= n_layer:
        raise ConfigError(f"--layers is {spec!r}; this model has the layers 0-{n_layer - 1}")
    return sorted(chosen)
