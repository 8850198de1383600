"""`edgekv doctor`: this installation, and its plans for a model."""

import re
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.shared_options import model_argument, model_path, option
from edgekv.cli.common.tables import NAME, Column, layer_runs, print_json, print_rows, span
from edgekv.cli.common.verdict import Mark, fact, prose, verdict
from edgekv.cli.doctor_gpu import STEPS, Output, prove_gpu, replay_gpu
from edgekv.common.errors import EXIT_LIBRARY
from edgekv.common.units import gibibytes, parameters, size, tokens

LAYER_COLUMNS = [
    Column("layers", "layers", right=False, rank=NAME),
    Column("hooked", "attention", lambda hooked: "EdgeKV" if hooked else "stock", right=False, rank=NAME),
    Column("heads", "heads/KV"),
    Column("head_dim", "head dim"),
    Column("types", "K/V type", right=False),
    Column("reason", "why", right=False, rank=8, least=20),
]

RATE_COLUMNS = [
    Column("what", "rate", right=False, rank=NAME, least=20),
    Column("value", "measured", right=False, rank=NAME),
]

_FOLDER = attrgetter("parent")

_RATES = {
    "link_copy": "host to GPU, one large copy of pinned memory",
    "link_gather": "host to GPU, page by page, read in place by a kernel",
    "link_rows": "host to GPU, row by row (128 to 272 bytes), read in place by a kernel",
    "link_pageable": "host to GPU, one large copy of memory that is not pinned",
    "vram": "GPU memory, read",
    "dram": "host memory, read by the processor",
}

PLAN_COLUMNS = [
    Column("mode", "mode", lambda mode: getattr(mode, "value", mode), right=False, rank=NAME),
    Column("n_ctx", "context", tokens, rank=NAME),
    Column("home", "host: pages", gibibytes, rank=7),
    Column("budget", "GPU: KV budget", gibibytes, rank=7),
    *(Column(name, name, gibibytes) for name in ("sketches", "tables", "staging", "ring", "arena")),
    Column("hot_tokens", "hot tokens", tokens, rank=6),
    Column("fits", "fits", right=False, rank=8),
]


@click.command(epilog=examples(
    "edgekv doctor",
    "edgekv doctor model.gguf",
    "edgekv doctor --gpu model.gguf -o card.json",
    "edgekv doctor --gpu --replay card.json",
))
@model_argument
@option("--recalibrate", is_flag=True, help="Measure the rates of the GPU again; they are kept after the first time.")
@option("--gpu", is_flag=True, help="Test EdgeKV's attention on the GPU, for three minutes at most.")
@option("--quick", is_flag=True, help="With --gpu: 40 seconds at most.")
@option("--only", type=click.Choice(STEPS), multiple=True, help="With --gpu: this step alone. Can be given several times.")
@option("--replay", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help="With --gpu: run the cases that failed in a report again, on the emulated device.")
@option("-o", "--output", type=Output(("table", "json")), metavar="[table|json|FILE]", default="table", show_default=True,
        help="How to print; with --gpu also the file of the report.")
@click.pass_context
def doctor(ctx: click.Context, model: Path | None, recalibrate: bool, gpu: bool, quick: bool, only: tuple[str, ...], replay: Path | None,
           output: str | Path) -> None:
    """Tell what is installed, which libraries and instructions are used, whether there is a GPU, and how fast it is.

    With MODEL (a GGUF file) also its shape, the bytes of its KV cache, the layers that EdgeKV's attention serves (by opening a small
    context), and with a GPU the use of its memory, at the context the model was trained for and at four times that.
    The exit code is 5 if the libraries cannot be used.

    With --gpu EdgeKV's attention is tested on the GPU, with a tiny model of MODEL's head shape: its kernels, and whole answers, against the
    processor's; MODEL's own memory is compared with its plan, and its speed measured. The exit code is 0 if all is right, 1 if something is
    wrong, 5 if there is no GPU to test (with --replay: no emulated device).
    """
    if gpu and replay is not None:
        if model is not None or quick or only or output != "table":
            raise click.UsageError("--replay takes heads and cases from its FILE; leave MODEL, --quick, --only and -o out")
        ctx.exit(replay_gpu(replay))
    if gpu:
        ctx.exit(prove_gpu(model, output, only, quick))
    if quick or only or replay is not None or isinstance(output, Path):
        raise click.UsageError("--quick, --only, --replay and -o FILE go with --gpu")
    from edgekv.diagnosis import diagnose

    report = diagnose(None if model is None else model_path(model), recalibrate)
    if output == "json":
        print_json(report)
    else:
        _print(report)
    if report["libraries_error"] is not None:
        ctx.exit(EXIT_LIBRARY)


_ISA = {"portable": "no vector instructions", "avx2": "AVX2", "avx512": "AVX-512", "avx512bf16": "AVX-512 with BF16", "amx": "AMX", "neon": "NEON"}


def _print(report: dict[str, Any]) -> None:
    works = report["libraries_error"] is None
    _print_verdict(report)
    _group("This machine")
    name, family = report["cpu"]["name"], report["cpu"]["family"]
    _line("cpu", f"{'' if family.startswith(name) else f'{name}: '}{family}; {report['cpu']['cores']} cores")
    if works:
        _line("instructions", f"{report['isa']} (available: {', '.join(report['isa_available'])}; EDGEKV_ISA chooses)")
        _print_weights(report["weights"], report["weights_left"])
    _print_gpu(report["gpu"])
    for device in report["devices"]:
        _print_device(device)
    _group("This installation")
    if works:
        _line("EdgeKV", f"{report['version']}, built from {report['upstream']}; llama-cpp-python {report['llama_cpp_python']}")
    _line("python", f"{report['python']} on {report['platform']}")
    _line("date", report["date"])
    if works:
        _line("backends", ", ".join(report["backends"]))
        _line("built for", f"every processor of this kind: {', '.join(report['built_for'])}" if report["built_for"]
              else "this kind of processor alone (EDGEKV_CPU=all builds for every one)")
        _line("compiled with", ", ".join(re.findall(r"(\w+) = 1", report["system"])))
        for folder, paths in groupby(sorted(map(Path, report["libraries"].values()), key=_FOLDER), key=_FOLDER):
            _line("libraries", f"{folder}: {', '.join(path.name for path in paths)}")
    _line("default model", report["default_model"] or report["default_model_error"])
    if "model" in report:
        _group("The model")
        _print_model(report["model"], report["weights"] or {})


def _print_verdict(report: dict[str, Any]) -> None:
    gpu = report["gpu"]
    if report["libraries_error"] is not None:
        verdict(Mark.BAD, f"Not ready: EdgeKV CANNOT BE USED: {report['libraries_error']}")
    elif report["enabled"] is False:
        verdict(Mark.DOUBT, "Turned off: EDGEKV=0 is set, and every context runs stock llama.cpp attention.")
    else:
        used = ", ".join(device["name"] for device in report["devices"] if device["usable"])
        unused = "" if used else " The GPU is not used." if gpu["devices"] else " No GPU."
        verdict(Mark.DOUBT if gpu["devices"] and not used else Mark.GOOD,
                f"Ready: {used + ', ' if used else ''}CPU, {_ISA.get(report['isa'], report['isa'])}.{unused}")


def _group(title: str) -> None:
    click.echo()
    prose(title, "bold")


_LAYOUTS = {"AMX": "in tiles, AMX", "CPU_REPACK": "in interleaved rows", "EDGEKV": "by EdgeKV"}


def _print_weights(weights: dict[str, str | None], left: list[dict[str, str | None]]) -> None:
    """Print the quantised types that the processor multiplies fast. llama.cpp takes a type's first layout, which is its best. left: what our kernels
    were measured to be slower at."""
    of: dict[str, list[str]] = {}
    slow: list[str] = []
    for name, layout in weights.items():
        (slow if layout is None else of.setdefault(layout, [])).append(name)
    fast = "; ".join(f"{', '.join(names)} ({_LAYOUTS.get(layout, layout)})" for layout, names in of.items())
    _line("weights", f"fast kernels for {fast}" if fast else "no type has kernels of its own on this processor")
    if left:
        found = (f"{one['type']} with {one['tokens']}" + (f" ({_LAYOUTS[one['layout']]})" if one["layout"] else "") for one in left)
        _line("", f"llama.cpp's own where they were measured to be faster here: {', '.join(found)}")
    if fast and slow:
        _line("", f"none for {', '.join(slow)}: prompts are read several times more slowly with these")


def _print_gpu(gpu: dict[str, Any]) -> None:
    for device in gpu["devices"]:
        _line("gpu", device)
    _line("gpu", gpu["reason"])
    _line("device library", "libedgekv-cuda" if gpu["device_library"] else
          f"none: {gpu['plugin_problem'] or 'attention runs on the processor (EDGEKV_CUDA=on builds the one for NVIDIA GPUs)'}")
    if gpu["devices"]:
        from edgekv.planning.devices import cupy_install

        limit = gpu["pinned"]["limit"]
        _line("cupy", gpu["cupy"] or f"not installed; {cupy_install(None)}")
        _line("pinned memory", f"up to {size(gpu['pinned']['available'])}, what is free; locked memory (ulimit -l): "
                               + ("no limit" if limit is None else size(limit)))


def _print_device(device: dict[str, Any]) -> None:
    free = f"{size(device['free_bytes'])} of {size(device['total_bytes'])} free"
    label = f"device {device['index']}"
    if device["arch"]:  # an emulated device has no architecture
        _line(label, f"{device['name']}, compute capability {device['arch'] // 10}.{device['arch'] % 10}, {device['n_sm']} multiprocessors")
        _line("", f"driver for CUDA {_cuda(device['driver'])}, this build is of CUDA {_cuda(device['runtime'])}; {free}")
    else:
        _line(label, f"{device['name']}; {free}")
    _line("", "this build has code for it" if device["usable"] else f"CANNOT BE USED: {device['problem']}")
    if device["rates"] is not None:
        click.echo()
        print_rows(_rate_rows(device["rates"]), RATE_COLUMNS, "table")
        click.echo()
    elif device["usable"]:
        _line("rates", f"could not be measured: {device['rates_error']}")


def _cuda(version: int) -> str:
    """13010: 13.1."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _rate_rows(rates: dict[str, float]) -> list[dict[str, str]]:
    rows = [{"what": label, "value": f"{rates[name] / 1e9:,.1f} GB/s"} for name, label in _RATES.items()]
    return [*rows, {"what": "from one launch to the next", "value": f"{rates['launch_us']:.1f} us"},
            {"what": "without pinning copies take", "value": f"{max(1.0, rates['link_copy'] / rates['link_pageable']):.1f}x as long"}]


def _print_plans(plans: list[dict[str, Any]]) -> None:
    for name, group in groupby(plans, key=lambda plan: plan["device"]):
        rows = list(group)
        click.echo()
        click.echo(f"on {name}, in GiB (weights {gibibytes(rows[0]['weights'])}; host memory free {gibibytes(rows[0]['available'])}):")
        print_rows([{**row, "staging": row["staging"] + row["scratch"], "fits": "no" if row["problem"] else "yes"} for row in rows],
                   PLAN_COLUMNS, "table")
        for row in rows:
            if row["problem"]:
                click.echo(f"{row['mode'].value} at {row['n_ctx']:,} tokens does not fit: {row['problem']}")


def _print_model(model: dict[str, Any], weights: dict[str, str | None]) -> None:
    _line("model", model["path"])
    _line("name", model["name"] or "(none)")
    _line("kind", f"{model['architecture']}, {parameters(model['n_params'])} parameters, {model['file_type']}")
    kind = next((name for name in weights if f"{model['file_type']}_".startswith(f"{name}_")), None)
    if kind is not None and weights[kind] is None and any(weights.values()):
        _line("weights", f"{kind} is not among the types that are multiplied fast here; a file in one of them reads prompts several times "
                         "as fast")
    _line("size", size(model["file_bytes"]))
    dims = sorted({model["head_dim_k"], model["head_dim_v"]}, reverse=True)
    _line("layers", f"{model['n_layer']}, with {span(model['n_head'])} query and {span(model['n_head_kv'])} KV heads "
                    f"of {' (K) and '.join(map(str, dims))}{' (V)' * (len(dims) > 1)}")
    _line("context", f"trained for {model['n_ctx_train']:,} tokens; vocabulary {model['n_vocab']:,}")
    if model["rope_freq_base"] is not None:
        scaling = f", {model['rope_scaling']} x {model['rope_scaling_factor'] or 1:g}" if model["rope_scaling"] else ""
        _line("rope", f"base {model['rope_freq_base']:,.0f}, {model['rope_dim']} dimensions{scaling}")
    if any(model["swa"]):
        _line("sliding window", f"{model['sliding_window']:,} tokens in {sum(model['swa'])} of {model['n_layer']} layers")
    _line("chat template", "yes" if model["chat_template"] else "no")
    for kind, n_bytes in model["kv_bytes_per_token"].items():
        _line(f"KV {kind}", f"{n_bytes:,} bytes a token, {size(model['kv_bytes_trained'][kind])} at the trained context")
    if sparse := model["sparse_bytes_trained"]:
        _line("--kv sparse", f"besides, at the trained context: sketches {size(sparse['sketches'])}, tables "
                             f"{size(sparse['tables'])}, work space {size(sparse['workspace'])}")
    if evict := model["evict"]:
        _line("--kv evict", f"K and V {size(evict['home'])} however long the context, tables {size(evict['tables'])} "
                            f"(--evict-to {evict['evict_to']}; another number of tokens or bytes keeps another share)")
    if model["layers_error"] is not None:
        _line("attention", f"not known: {model['layers_error']}")
    else:
        click.echo()
        print_rows(_layer_rows(model["layers"]), LAYER_COLUMNS, "table")
    _print_plans(model["device_plans"])


def _layer_rows(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each run of layers that differ only in their numbers."""
    return [{
        "layers": numbers,
        "hooked": layer["hooked"] or layer["whole"],
        "heads": f"{layer['n_head']}/{layer['n_head_kv']}",
        "head_dim": layer["head_dim"],
        "types": f"{_name(layer['type_k'])}/{_name(layer['type_v'])}",
        "reason": layer["reason"],
    } for numbers, layer in layer_runs(layers)]


def _name(cache_type: Any) -> str:
    return getattr(cache_type, "value", cache_type)


def _line(label: str, text: str) -> None:
    fact(label, text, 16)
