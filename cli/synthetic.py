"""`edgekv models shapes` and `synth`: model files of random weights in the shape of real ones, to measure with."""

from functools import partial
from pathlib import Path

import click

from edgekv.cli.common import choices
from edgekv.cli.common.examples import examples
from edgekv.cli.common.number_types import WholeNumber
from edgekv.cli.common.progress import progress_bar
from edgekv.cli.common.shared_options import option
from edgekv.cli.common.tables import NAME, Column, output_option, print_rows
from edgekv.common.errors import ConfigError
from edgekv.common.units import MOST_TOKENS, gibibytes, parameters, tokens

WEIGHT_TYPES, MIXTURES = ("q4_0", "q8_0", "f16", "bf16"), ("q4_k_m",)  # as in edgekv.models.shapes, which is too slow for `--help`

SHAPE_COLUMNS = [
    Column("shape", "shape", right=False, rank=NAME),
    Column("architecture", "kind", right=False, rank=4),
    Column("n_params", "parameters", parameters, rank=7),
    Column("n_layer", "layers"),
    Column("heads", "heads/KV"),
    Column("head_dim", "head dim", rank=3),
    Column("n_vocab", "vocabulary", tokens, rank=2),
    Column("n_ctx_train", "context", tokens),
    Column("kv_bytes_per_token", "KV B/token f16", tokens, rank=6),
    *(Column(f"file_bytes_{name}", f"{name} GiB", gibibytes) for name in WEIGHT_TYPES if name != "bf16"),  # as large as f16
]


@click.command(epilog=examples(
    "edgekv models shapes",
    "edgekv models shapes -o json",
))
@output_option("json", "csv", "md")
def shapes(output: str) -> None:
    """List the shapes that `edgekv models synth` knows: layers, heads, KV cache bytes of a token, sizes of the files."""
    from edgekv.models.shapes import SHAPES

    rows = [{
        "shape": shape.name, "architecture": shape.architecture, "n_params": shape.n_params, "n_layer": shape.n_layer,
        "heads": f"{shape.n_head}/{shape.n_head_kv}", "n_expert": shape.experts.n if shape.experts else 0, "head_dim": shape.head_dim,
        "n_embd": shape.n_embd, "n_ff": shape.n_ff,
        "n_vocab": shape.n_vocab, "n_ctx_train": shape.n_ctx_train, "kv_bytes_per_token": shape.kv_bytes_per_token(),
        **{f"file_bytes_{name}": shape.file_bytes(name) for name in WEIGHT_TYPES},
    } for shape in SHAPES.values()]
    print_rows(rows, SHAPE_COLUMNS, output)


# These have their own variables: EDGEKV_OUTPUT is a format elsewhere, EDGEKV_LAYERS a list, EDGEKV_SEED the sampler's.
@click.command(epilog=examples(
    "edgekv models synth llama-3-8b --header-only",
    "edgekv plan synthetic-llama-3-8b-header-q4_0.gguf",
    "edgekv models synth qwen3-0.6b --type q8_0 -o random.gguf",
))
@click.argument("shape", shell_complete=choices.shapes)
@option("-o", "--output", envvar="EDGEKV_SYNTH_OUTPUT", type=click.Path(path_type=Path, dir_okay=False),
        help="The file to write.  [default: synthetic-SHAPE-TYPE.gguf in this folder]")
@option("--type", "weight_type", envvar="EDGEKV_SYNTH_TYPE", type=click.Choice([*WEIGHT_TYPES, *MIXTURES]), default=WEIGHT_TYPES[0],
        show_default=True, help="Type of the matrices; q4_k_m is llama.cpp's mixture, made from a file of f16 beside it.")
@option("--layers", envvar="EDGEKV_SYNTH_LAYERS", type=WholeNumber(1, 512), metavar="N",
        help="Layers to write.  [default: as many as the model has]")
@option("--ctx-train", envvar="EDGEKV_SYNTH_CTX_TRAIN", type=WholeNumber(256, MOST_TOKENS), metavar="TOKENS",
        help="The longest context that the file allows; random weights take any.  [default: the model's]")
@option("--header-only", envvar="EDGEKV_SYNTH_HEADER_ONLY", is_flag=True,
        help="Write the header without the weights, a small file that `edgekv plan` and `edgekv models show` can read.")
@option("--seed", envvar="EDGEKV_SYNTH_SEED", type=WholeNumber(0), default=0, show_default=True, help="Seed of the weights.")
def synth(shape: str, output: Path | None, weight_type: str, layers: int | None, ctx_train: int | None, header_only: bool,
          seed: int) -> None:
    """Write a model of random weights in the shape of a real one (`edgekv models shapes` lists them).

    It has the real one's matrices and vocabulary size, so that each token costs the same, and a tokenizer of single
    characters. It answers random words. The file is complete or absent.
    """
    from msgspec.structs import replace

    from edgekv.models.model_writer import write_header, write_mixture, write_model
    from edgekv.models.shapes import find_shape

    found = find_shape(shape)
    found = replace(found, n_layer=layers or found.n_layer, n_ctx_train=ctx_train or found.n_ctx_train)
    parts = ["synthetic", found.name, *([f"{layers}-layers"] if layers else []), *(["header"] if header_only else []), f"{weight_type}.gguf"]
    path = output or Path("-".join(parts))
    if header_only and weight_type in MIXTURES:
        raise ConfigError(f"a header alone has no {weight_type}: its tensors' types follow from their weights; use --type q4_0")
    if header_only:
        click.echo(write_header(found, path, weight_type))
        return
    with progress_bar(of_bytes=True) as show:
        progress = partial(show, path.name)
        progress(0, found.file_bytes("f16" if weight_type in MIXTURES else weight_type))
        if weight_type in MIXTURES:
            from edgekv._native.quantise import quantise

            write_mixture(found, path, lambda source, target: quantise(source, target, weight_type), seed, progress)
        else:
            write_model(found, path, weight_type, seed, progress)
    click.echo(path)
