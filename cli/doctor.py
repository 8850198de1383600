"""`edgekv doctor`: what is installed, what is used, and what a model would get."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import click

from edgekv.cli.options import model_argument
from edgekv.cli.tables import Column, output_option, print_json, print_rows
from edgekv.errors import EXIT_LIBRARY

LAYER_COLUMNS = [
    Column("layers", "layers", right=False),
    Column("hooked", "attention", lambda hooked: "EdgeKV" if hooked else "stock", right=False),
    Column("heads", "heads/KV"),
    Column("head_dim", "head dim"),
    Column("types", "K/V type", right=False),
    Column("reason", "why", right=False),
]


@click.command()
@model_argument
@output_option("json")
@click.pass_context
def doctor(ctx: click.Context, model: Path | None, output: str) -> None:
    """Tell what is installed, which libraries and instructions are used, and whether there is a GPU.

    With MODEL (a GGUF file) also its shape, what its KV cache takes, and which layers EdgeKV's attention serves; a small
    context is opened for that. The exit code is 5 if the libraries cannot be used.
    """
    from edgekv.diagnosis import diagnose

    report = diagnose(model)
    if output == "json":
        print_json(report)
    else:
        _print(report)
    if report["libraries_error"] is not None:
        ctx.exit(EXIT_LIBRARY)


def _print(report: dict[str, Any]) -> None:
    if report["libraries_error"] is None:
        _line("EdgeKV", f"{report['version']}, built from {report['upstream']}; llama-cpp-python {report['llama_cpp_python']}")
    else:
        _line("EdgeKV", f"CANNOT BE USED: {report['libraries_error']}")
    _line("python", f"{report['python']} on {report['platform']}")
    _line("cpu", f"{report['cpu']['name']}, {report['cpu']['cores']} cores")
    if report["libraries_error"] is None:
        _line("instructions", f"{report['isa']} (available: {', '.join(report['isa_available'])}; EDGEKV_ISA chooses)")
        _line("backends", ", ".join(report["backends"]))
        _line("compiled with", report["system"].rstrip("| "))
        for folder, names in _by_folder(report["libraries"]):
            _line("libraries", f"{folder}: {', '.join(names)}")
    if report["enabled"] is False:
        _line("attention", "EDGEKV=0 is set: every context runs stock llama.cpp attention")
    gpu = report["gpu"]
    for device in gpu["devices"]:
        _line("gpu", device)
    _line("gpu", gpu["reason"])
    _line("default model", report["default_model"] or report["default_model_error"])
    if "model" in report:
        click.echo()
        _print_model(report["model"])


def _print_model(model: dict[str, Any]) -> None:
    _line("model", model["path"])
    _line("name", model["name"] or "(none)")
    _line("kind", f"{model['architecture']}, {model['n_params'] / 1e6:,.1f}M parameters, {model['file_type']}")
    _line("size", _size(model["file_bytes"]))
    dims = sorted({model["head_dim_k"], model["head_dim_v"]}, reverse=True)
    _line("layers", f"{model['n_layer']}, with {_span(model['n_head'])} query and {_span(model['n_head_kv'])} KV heads "
                    f"of {' (K) and '.join(map(str, dims))}{' (V)' * (len(dims) > 1)}")
    _line("context", f"trained for {model['n_ctx_train']:,} tokens; vocabulary {model['n_vocab']:,}")
    if model["rope_freq_base"] is not None:
        scaling = f", {model['rope_scaling']} x {model['rope_scaling_factor'] or 1:g}" if model["rope_scaling"] else ""
        _line("rope", f"base {model['rope_freq_base']:,.0f}, {model['rope_dim']} dimensions{scaling}")
    if any(model["swa"]):
        _line("sliding window", f"{model['sliding_window']:,} tokens in {sum(model['swa'])} of {model['n_layer']} layers")
    _line("chat template", "yes" if model["chat_template"] else "no")
    for kind, n_bytes in model["kv_bytes_per_token"].items():
        _line(f"KV {kind}", f"{n_bytes:,} bytes a token, {_size(model['kv_bytes_trained'][kind])} at the trained context")
    if sparse := model["sparse_bytes_trained"]:
        _line("--kv sparse", f"besides, at the trained context: sketches {_size(sparse['sketches'])}, arena "
                             f"{_size(sparse['arena'])} (--kv-budget sets another), tables {_size(sparse['tables'])}")
    if model["layers_error"] is not None:
        _line("attention", f"not known: {model['layers_error']}")
    else:
        click.echo()
        print_rows(_grouped(model["layers"]), LAYER_COLUMNS, "table")


def _by_folder(libraries: dict[str, str]) -> list[tuple[Path, list[str]]]:
    folders: dict[Path, list[str]] = {}
    for path in map(Path, libraries.values()):
        folders.setdefault(path.parent, []).append(path.name)
    return list(folders.items())


def _grouped(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each run of layers that differ in nothing but their number."""
    rows = []
    for _, group in groupby(layers, key=lambda layer: {key: value for key, value in layer.items() if key != "il"}):
        run = list(group)
        first, last = run[0], run[-1]
        rows.append({
            "layers": f"{first['il']}" if len(run) == 1 else f"{first['il']}-{last['il']}",
            "hooked": first["hooked"],
            "heads": f"{first['n_head']}/{first['n_head_kv']}",
            "head_dim": first["head_dim"],
            "types": f"{_name(first['type_k'])}/{_name(first['type_v'])}",
            "reason": first["reason"],
        })
    return rows


def _name(cache_type: Any) -> str:
    return getattr(cache_type, "value", cache_type)


def _line(label: str, text: str) -> None:
    click.echo(f"{label:<16}{text}")


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}-{high}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB" if n_bytes < 10 << 30 else f"{n_bytes / (1 << 30):,.1f} GiB"
