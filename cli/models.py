"""`edgekv models`: which models are here, what one is, and how to get more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from edgekv.cli.common import choices
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import Group
from edgekv.cli.common.shared_options import model_argument, model_path, option
from edgekv.cli.common.tables import NAME, Column, layer_runs, output_option, print_json, print_rows
from edgekv.cli.synthetic import shapes, synth
from edgekv.common.units import gibibytes, parameters, size, tokens

if TYPE_CHECKING:
    from edgekv.models.geometry import ModelFile
    from edgekv.models.local import LocalModel

LIST_COLUMNS = [
    Column("name", "model", right=False, rank=NAME),
    Column("source", "from", right=False, rank=3),
    Column("architecture", "kind", right=False, rank=2),
    Column("n_params", "parameters", parameters, rank=7),
    Column("file_type", "type", right=False, rank=6),
    Column("file_bytes", "GiB", gibibytes, rank=6),
    Column("layers", "EdgeKV layers", rank=4),
    Column("kv_bytes_per_token", "KV B/token", tokens, rank=3),
    Column("n_ctx_train", "trained for", tokens, rank=4),
    Column("fits_tokens", "fits now", tokens, rank=8),
    Column("problem", "problem", right=False, rank=8, least=20),
]

TYPE_COLUMNS = [
    Column("type", "type", right=False),
    Column("tensors", "tensors", tokens),
    Column("numbers", "numbers", parameters),
    Column("bytes", "size", size),
]

LAYER_COLUMNS = [
    Column("layers", "layers", right=False, rank=NAME),
    Column("attention", "attention", right=False, rank=NAME),
    Column("heads", "heads/KV"),
    Column("reason", "why", right=False, rank=8, least=20),
]

_TEMPLATE_LINES = 6


@click.group(cls=Group, epilog=examples(
    "edgekv models list",
    "edgekv models show model.gguf",
    "edgekv models synth llama-3-8b --header-only",
))
def models() -> None:
    """Find models on this machine, describe them, fetch more, and write ones of random weights to measure with."""


models.add_command(shapes)
models.add_command(synth)


@models.command("list", epilog=examples(
    "edgekv models list",
    "edgekv models list -o json",
))
@output_option("json", "csv", "md")
def list_models(output: str) -> None:
    """List the default model and GGUF files in known caches: Hugging Face's, llama.cpp's, Ollama's, LM Studio's.

    "fits now" is the longest context whose cache and weights fit into free memory, up to the length that the model was trained for.
    """
    from edgekv.models.local import local_models

    rows = [_row(model) for model in local_models()]
    if output == "table" and not rows:
        click.echo("there is no model here; `edgekv models pull hf:USER/REPO` fetches one", err=True)
        return
    print_rows(rows, [column for column in LIST_COLUMNS if column.key != "problem" or any(row["problem"] for row in rows)], output)


def _row(local: LocalModel) -> dict[str, Any]:
    from edgekv.common.errors import ModelError
    from edgekv.models.geometry import open_model
    from edgekv.planning.available import available_bytes
    from edgekv.planning.fit import sparse_layers
    from edgekv.planning.plan import fitting_context

    row: dict[str, Any] = {"name": local.name, "source": local.source, "path": str(local.path)}
    facts = ("architecture", "n_params", "file_type", "file_bytes", "n_layer", "n_ctx_train")
    try:
        file = open_model(local.path)
    except ModelError as error:
        return {**row, **dict.fromkeys((*facts, "layers", "kv_bytes_per_token", "fits_tokens")), "problem": str(error)}
    g = file.geometry
    return {**row, **{name: getattr(g, name) for name in facts}, "layers": f"{len(sparse_layers(g))}/{g.n_layer}",
            "kv_bytes_per_token": g.kv_bytes_per_token(), "fits_tokens": fitting_context(file, available_bytes()), "problem": None}


@models.command(epilog=examples(
    "edgekv models show",
    "edgekv models show model.gguf --full",
    "edgekv models show model.gguf --json",
))
@model_argument
@option("--full", envvar="EDGEKV_SHOW_FULL", is_flag=True, help="The whole chat template, not its first lines.")
@option("--json", "as_json", envvar="EDGEKV_SHOW_JSON", is_flag=True, help="Print everything as JSON.")
def show(model: Path | None, full: bool, as_json: bool) -> None:
    """Describe MODEL from its header: shape, tensors by type, KV bytes of a token, served layers and why not the others, chat template.

    MODEL is a GGUF file, or a name of `edgekv models list`; without one, the default model.
    """
    from edgekv.models.geometry import open_model

    file = open_model(model_path(model), whole=False)
    facts = _facts(file)
    if as_json:
        print_json(facts)
    else:
        _print(facts, full)


@models.command(epilog=examples(
    "edgekv models path",
    'edgekv chat "$(edgekv models path SmolLM2)"',
))
@click.argument("name", required=False, shell_complete=choices.model_names)
def path(name: str | None) -> None:
    """Print where a model of `edgekv models list` is: the one called NAME, or the only one that has NAME in its name.

    Without NAME, the default model. `edgekv chat "$(edgekv models path NAME)"` uses it.
    """
    from edgekv.models.local import find_local

    click.echo(find_local(name).path if name else model_path(None))


@models.command(epilog=examples(
    "edgekv models pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF",
    "edgekv models pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
))
@click.argument("address")
def pull(address: str) -> None:
    """Fetch a model from Hugging Face: hf:USER/REPO or hf:USER/REPO:QUANT, such as hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M.

    Without QUANT, Q4_K_M if there is one. huggingface_hub stores it in its cache; an interrupted download is resumed. Prints the path of
    the file.
    """
    from edgekv.models.hub import Address
    from edgekv.models.hub import pull as fetch

    click.echo(fetch(Address.parse(address), lambda text: click.echo(text, err=True)))


def _facts(file: ModelFile) -> dict[str, Any]:
    from edgekv.common.enums import CacheType
    from edgekv.planning.fit import layers

    g = file.geometry
    by_type: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors:
        row = by_type.setdefault(tensor.type, {"type": tensor.type, "tensors": 0, "numbers": 0, "bytes": 0})
        row["tensors"] += 1
        row["numbers"] += tensor.n_elements
        row["bytes"] += tensor.n_bytes
    return structs.asdict(g) | {
        "path": str(g.path),
        "tensors": sorted(by_type.values(), key=lambda row: -row["bytes"]),
        "kv_bytes_per_token_by_type": {kind.value: g.kv_bytes_per_token(kind.value, kind.value) for kind in CacheType if g.holds(kind.value)},
        "layers": [to_builtins(layer) for layer in layers(g)],
        "chat_template_text": file.header.value("tokenizer.chat_template"),
    }


def _print(facts: dict[str, Any], full: bool) -> None:
    _line("model", facts["path"])
    _line("name", facts["name"] or "(none)")
    _line("kind", f"{facts['architecture']}, {parameters(facts['n_params'])} parameters, {facts['file_type']}, {size(facts['tensor_bytes'])} of weights")
    dims = f"{facts['head_dim_k']}" + ("" if facts["head_dim_k"] == facts["head_dim_v"] else f" (K) and {facts['head_dim_v']} (V)")
    _line("shape", f"{facts['n_layer']} layers, {max(facts['n_head'])} query and {max(facts['n_head_kv'])} KV heads of {dims}, width {facts['n_embd']:,}")
    _line("context", f"trained for {facts['n_ctx_train']:,} tokens; vocabulary {facts['n_vocab']:,}")
    for kind, n_bytes in facts["kv_bytes_per_token_by_type"].items():
        _line(f"KV {kind}", f"{n_bytes:,} bytes a token")
    if facts["recurrent_bytes"]:
        _line("state", f"{size(facts['recurrent_bytes'])} of recurrent layers, however long the context")
    click.echo()
    print_rows(facts["tensors"], TYPE_COLUMNS, "table")
    click.echo()
    print_rows([{"layers": numbers, "attention": "EdgeKV" if layer["served"] or layer["whole"] else "stock", "heads": f"{layer['n_head']}/{layer['n_head_kv']}",
                 "reason": layer["reason"]} for numbers, layer in layer_runs(facts["layers"])], LAYER_COLUMNS, "table")
    click.echo()
    _print_template(facts["chat_template_text"], full)


def _print_template(template: str | None, full: bool) -> None:
    if template is None:
        click.echo("chat template: none; the chat uses a plain one")
        return
    lines = template.splitlines() or [""]
    click.echo("chat template:")
    for line in lines if full else lines[:_TEMPLATE_LINES]:
        click.echo(f"  {line if full else line[:120]}")
    if not full and (len(lines) > _TEMPLATE_LINES or max(map(len, lines)) > 120):
        click.echo(f"  ... ({len(template):,} characters in all; --full shows them)")


def _line(label: str, text: str) -> None:
    click.echo(f"{label:<10}{text}")
